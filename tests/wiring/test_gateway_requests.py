"""Requests of the real client through the real Envoy to a real server: their trace, and who may abort them by id."""

import contextlib

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.collector import collector, values
from fakes.gateway import RunningPod, gateway, until
from kvasir_api import names

pytestmark = [pytest.mark.asyncio, pytest.mark.xdist_group("gateway-requests")]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HELLO = [{"role": "user", "content": "hello"}]
LONG = {"max_tokens": 3000, "stream": True}


@pytest.fixture(scope="module")
def sink():
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def replica(tmp_path_factory, sink):
    model = checkpoints.write(tmp_path_factory.mktemp("models") / "real")
    keys = ("--api-key", "key-of-a", "--api-key", "key-of-b")
    env = {names.ENV_SERVICE: "default/real", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    traced = ("--otlp-traces-endpoint", sink.url, "--otlp-sample-percent", "0")
    with api_process(model, *keys, *traced, env=env, faults={"step_s": 0.1}) as found:
        yield found


@contextlib.asynccontextmanager
async def before(replica):
    """A gateway that routes to it."""
    async with gateway() as front:
        front.objects.serve("real", RunningPod("pod", replica.http[1], replica.ops[1]))

        await until(lambda: front.has_ready("real", 1), "the replica")
        async with client_of(front) as client:
            await client.completions.create(model="real", prompt="a", max_tokens=1)
        yield front


def client_of(front, key="key-of-a"):
    return openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=5)


async def test_the_spans_of_a_replica_are_children_of_the_clients_span(replica, sink):
    async with before(replica) as front, client_of(front) as client:
        trace = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        answer = await client.chat.completions.create(
            model="real", messages=HELLO, max_tokens=4, extra_headers=trace, extra_body={"ignore_eos": True}
        )
        await until(lambda: bool(sink.named("chat real") and sink.named("decode")), "its spans")
    (span,) = sink.named("chat real")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=1")
    assert values(span.attributes)["gen_ai.response.id"] == answer.id
    inside = [one for one, _ in sink.spans if one.parent_span_id == span.span_id]
    assert {one.name for one in inside} >= {"prefill", "decode"}
    assert {one.trace_id.hex() for one in inside} == {TRACE}


async def test_a_running_answer_is_aborted_by_its_own_tenant_alone(replica):
    async with before(replica) as front, client_of(front) as client, client_of(front, "key-of-b") as other:

        async def aborted(by, path="/abort_requests", **body):
            url = f"{front.url}{path}"
            async with front.client.post(url, json=body, headers={"authorization": f"Bearer {by.api_key}"}) as response:
                return response.status, await response.json()

        for create in (
            lambda: client.chat.completions.create(model="real", messages=HELLO, **LONG),
            lambda: client.completions.create(model="real", prompt="hello", **LONG),
        ):
            stream = await create()
            answer_id = (await anext(aiter(stream))).id

            async def unknown_to_others(answer_id=answer_id):
                return await aborted(other, request_ids=[answer_id]) == (200, {"num_aborted": 0})

            assert await unknown_to_others()

            async def own(answer_id=answer_id):
                return (await aborted(client, request_ids=[answer_id, "cmpl-gone"]))[1] == {"num_aborted": 1}

            await until(own, "its own tenant aborts it, once the gateway knows the replica's name")
            with pytest.raises(openai.APIError) as caught:
                async for _ in stream:
                    pass
            assert caught.value.code == "request_aborted"
            assert await aborted(client, "/abort_request", rid=answer_id) == (200, {"num_aborted": 0})
        assert (await aborted(client, "/abort_request", abort_all=True))[0] == 400
