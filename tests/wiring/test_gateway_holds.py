"""Requests for services without replicas wait in the real Envoy and our picker until there is one."""

import asyncio
import json

import aiohttp
import openai
import pytest
import pytest_asyncio

from fakes.gateway import gateway, until
from fakes.stub_runtime import stub_runtimes
from kvasir_api.state import QueueBounds
from kvasir_gateway.envoy.bootstrap import INNER_SOCKET
from kvasir_gateway.hold_queue import HoldLimits

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-holds")]
LIMITS = HoldLimits(max_requests=250, max_bytes=1 << 20, max_wait_s=120.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway(hold=LIMITS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    async with stub_runtimes(2) as stubs:
        yield stubs


async def known(front, name):
    front.objects.serve(name)

    async def listed():
        async with front.client.get(f"{front.url}/v1/models/{name}") as response:
            return response.status == 200

    await until(listed, "the service is known")


async def holds(front, name, number, tasks=()):
    """Whether so many wait. tasks: requests of which none must have an answer yet."""
    assert not [task.result() for task in tasks if task.done()]
    return (await front.demand(name)).held == number


async def test_two_hundred_requests_wait_for_the_first_replica(front, pods):
    await known(front, "crowd")
    tasks = [asyncio.create_task(front.post("crowd", prompt="x" * (100 + i))) for i in range(200)]
    await until(lambda: holds(front, "crowd", 200, tasks), "all wait")
    assert (await front.demand("crowd")).held_bytes > 200 * 100
    front.objects.serve("crowd", pods[0])
    answers = await asyncio.gather(*tasks)
    assert {(status, body) for status, body, _ in answers} == {(200, pods[0].whole())}
    assert len(pods[0].seen) == 200
    assert await holds(front, "crowd", 0)


async def test_requests_wait_for_longer_than_a_choice_may_take(pods):
    async with gateway(hold=LIMITS, message_timeout_s=3) as front:
        await known(front, "slow")
        task = asyncio.create_task(front.post("slow"))
        await until(lambda: waits_for(front, "slow", 3.5), "it has waited for longer")
        front.objects.serve("slow", pods[0])
        assert (await task)[0] == 200


async def waits_for(front, name, seconds):
    demand = await front.demand(name)
    return demand.held == 1 and demand.last_request_age_s >= seconds


async def test_bodies_of_any_length_come_whole_behind_a_wait(front, pods):
    await known(front, "long")
    body = json.dumps({"model": "long", "prompt": "y" * 700_000}).encode()
    task = asyncio.create_task(front.client.post(f"{front.url}/v1/completions", data=body))
    await until(lambda: holds(front, "long", 1), "it waits")
    front.objects.serve("long", pods[0])
    async with await task as response:
        assert (response.status, await response.read()) == (200, pods[0].whole())
    assert int(pods[0].seen[-1].headers["content-length"]) == len(body)


async def test_a_client_that_leaves_waits_no_longer_and_reaches_no_replica(front, pods):
    await known(front, "left")
    tasks = [asyncio.create_task(front.post("left")) for _ in range(20)]
    await until(lambda: holds(front, "left", 20, tasks), "all wait")
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    await until(lambda: holds(front, "left", 1), "one waits")
    assert (await front.demand("left")).abandoned == 19
    front.objects.serve("left", pods[1])
    assert (await tasks[0])[0] == 200
    assert len(pods[1].seen) == 1


async def test_what_is_beyond_the_bounds_is_refused_with_a_time_to_come_back(front, pods):
    await known(front, "full")
    tasks = [asyncio.create_task(front.post("full")) for _ in range(LIMITS.max_requests)]
    await until(lambda: holds(front, "full", LIMITS.max_requests, tasks), "the queue is full")
    status, body, headers = await front.post("full")
    assert (status, json.loads(body)["error"]["code"]) == (429, "overloaded")
    assert int(headers["retry-after"]) >= 1
    other = asyncio.create_task(front.post("full", headers={"authorization": "Bearer other"}))
    gave_way = asyncio.create_task(next_of(tasks))
    assert (await gave_way)[0] == 429
    demand = await front.demand("full")
    assert (demand.shed, demand.expired, demand.abandoned) == (1, 1, 0)
    await until(lambda: holds(front, "full", LIMITS.max_requests), "the other tenant waits in its place")
    front.objects.serve("full", *pods)
    assert (await other)[0] == 200
    assert sorted(status for status, _, _ in await asyncio.gather(*tasks)) == [200] * (LIMITS.max_requests - 1) + [429]


async def next_of(tasks):
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    return done.pop().result()


async def test_the_openai_client_simply_waits(front, pods):
    await known(front, "asleep")
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="k", max_retries=0) as client:
        task = asyncio.create_task(client.models.with_raw_response.list())
        assert (await task).status_code == 200
        asked = asyncio.create_task(
            client.completions.with_raw_response.create(model="asleep", prompt="x", max_tokens=1)
        )
        await until(lambda: holds(front, "asleep", 1), "it waits")
        front.objects.serve("asleep", pods[0])
        assert (await asked).status_code == 200


async def test_held_requests_survive_a_drain_and_keep_the_gateway_until_they_are_answered(front, pods):
    await known(front, "leaving")
    task = asyncio.create_task(front.post("leaving"))
    await until(lambda: holds(front, "leaving", 1), "it waits")
    drained = asyncio.create_task(front.drain())
    await until(lambda: not_ready(front), "the gateway drains")
    assert not drained.done()
    front.objects.serve("leaving", pods[0])
    assert (await task)[0] == 200
    async with asyncio.timeout(60):
        assert await drained == "drained"
    assert "takes requests" in await front.drain(on=False)
    await until(front.is_ready, "ready again")


async def not_ready(front):
    return not await front.is_ready()


async def test_who_has_waited_for_too_long_is_refused():
    async with gateway(hold=HoldLimits(max_wait_s=0.05)) as front:
        await known(front, "never")
        status, body, headers = await front.post("never")
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_ready_replica")
        assert int(headers["retry-after"]) >= 1
        assert "x-should-retry" not in headers


async def test_requests_for_busy_replicas_wait_and_go_as_there_is_room(front, pods):
    full = {"max_sequences": 1, "running": 1, "waiting": 1, "queue": QueueBounds(requests=1)}
    for stub in pods:
        stub.set_state(**full)
    front.objects.serve("busy", *pods)
    await until(lambda: have_been_read(front, "busy", pods), "the picker has read that they are full")
    tasks = [asyncio.create_task(front.post("busy")) for _ in range(20)]
    await until(lambda: holds(front, "busy", 20, tasks), "all wait")
    assert not any(stub.seen for stub in pods)
    pods[0].set_state(waiting=0)
    # Each reading has room for one: the one that was sent since counts until the next.
    assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 20
    assert (len(pods[0].seen), len(pods[1].seen)) == (20, 0)


async def have_been_read(front, name, pods):
    before = [stub.state_reads for stub in pods]
    await until(lambda: all(stub.state_reads > n + 1 for stub, n in zip(pods, before, strict=True)), "they are read")
    return await front.has_ready(name, len(pods))


async def test_a_refusal_goes_to_another_replica_where_that_has_room(front, pods):
    refusal = 429, b'{"error": {"code": "overloaded"}}'
    front.objects.serve("refusing", *pods)
    await until(lambda: have_been_read(front, "refusing", pods), "both are read")
    pods[0].failure = refusal
    assert {(await front.post("refusing"))[0] for _ in range(6)} == {200}
    assert pods[0].seen, "it was tried"
    pods[1].failure = refusal
    status, body, _ = await front.post("refusing")
    assert (status, body) == refusal


async def test_a_refusal_that_nothing_foresaw_is_decided_again_and_waits_where_all_refuse(front, pods):
    front.objects.serve("unforeseen", *pods)
    await until(lambda: have_been_read(front, "unforeseen", pods), "both are read")
    pods[0].refusals = pods[1].refusals = 1
    prompt = "x" * 200_000
    status, _, headers = await front.post("unforeseen", prompt=prompt)
    assert (status, headers["x-kvasir-service"]) == (200, "default/unforeseen")
    seen = [*pods[0].seen, *pods[1].seen]
    assert len(seen) == 3, "once at each, and at one of them again when both had reported"
    assert {json.loads(await request.read())["prompt"] for request in seen} == {prompt}
    assert len({request.headers["x-request-id"] for request in seen}) == 1
    assert sorted(request.headers.get("x-stainless-retry-count", "") for request in seen) == ["", "1", "1"]
    await until(lambda: stands(front, "unforeseen", inflight=0, held=0), "nothing is left")
    assert not [request for request in seen if "x-envoy-original-url" in request.headers], "each is the picker's choice"
    assert (await front.demand("unforeseen")).requests == 1


async def test_a_refusal_is_decided_again_whatever_scheme_the_client_had(front, pods):
    """As of a stream that came by TLS, on its way from the relay."""
    front.objects.serve("secure", *pods)
    await until(lambda: have_been_read(front, "secure", pods), "both are read")
    pods[0].refusals = pods[1].refusals = 1
    connector = aiohttp.UnixConnector(path=str(front.directory / INNER_SOCKET))
    headers = {"x-kvasir-relayed": "of-the-relay", "x-forwarded-proto": "https"}
    async with aiohttp.ClientSession(connector=connector) as session:
        where, body = "http://gateway/v1/chat/completions", {"model": "secure"}
        async with session.post(where, json=body, headers=headers, allow_redirects=False) as response:
            assert response.status == 200, await response.text()
    assert len(pods[0].seen) + len(pods[1].seen) == 3


async def stands(front, name, **want):
    demand = await front.demand(name)
    return {field: getattr(demand, field) for field in want} == want


async def test_a_request_that_replicas_refuse_again_and_again_gets_their_answer(front, pods):
    front.objects.serve("always", pods[0])
    await until(lambda: have_been_read(front, "always", pods[:1]), "it is read")
    pods[0].refusals = 4
    status, body, headers = await front.post("always")
    assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (429, "overloaded", "1")
    assert pods[0].refusals == 0
    await until(lambda: stands(front, "always", inflight=0, held=0), "nothing is left")


@pytest.mark.parametrize(("host", "status"), [("a_b:8080", 429), ("[::1]:8080", 200), ("a.b", 200)])
async def test_no_host_that_a_client_names_gets_it_a_redirect(front, pods, host, status):
    front.objects.serve("hosts", pods[0])
    await until(lambda: have_been_read(front, "hosts", pods[:1]), "it is read")
    pods[0].refusals = 1
    assert (await front.post("hosts", headers={"host": host}))[0] == status


async def refused_once(pod):
    return pod.refusals < 4


@pytest.mark.parametrize(
    "elsewhere",
    [
        "{}/v1/responses/of-another/cancel",
        "{}/v1/chat/completions/of-another/tool_results",
        "{}/v1/chat/completions?x=1",
        "{}/metrics",
        "http://another/v1/chat/completions",
    ],
)
async def test_a_pod_cannot_send_a_request_to_another_address(front, pods, elsewhere):
    front.objects.serve("liar", pods[0])
    await until(lambda: have_been_read(front, "liar", pods[:1]), "it is read")
    pods[0].refers_to = elsewhere.format(front.url)
    status, body, _ = await front.post("liar")
    assert (status, json.loads(body)["error"]["code"]) == (503, "upstream_unavailable")
    assert [request.path for request in pods[0].seen] == ["/v1/chat/completions"]
    pods[0].refers_to = ""
    await until(lambda: stands(front, "liar", inflight=0, held=0), "nothing is left")


async def test_a_client_that_leaves_after_a_refusal_waits_no_longer(front, pods):
    front.objects.serve("leaver", pods[0])
    await until(lambda: have_been_read(front, "leaver", pods[:1]), "it is read")
    pods[0].refusals = 4
    task = asyncio.create_task(front.post("leaver"))
    await until(lambda: refused_once(pods[0]), "it has been refused")
    task.cancel()
    await until(lambda: stands(front, "leaver", inflight=0, held=0), "nothing is left")
    pods[0].refusals = 0
    assert (await front.post("leaver"))[0] == 200


async def test_a_refusal_is_the_answer_where_no_other_replica_has_room(front, pods):
    full = {"max_sequences": 1, "running": 1, "waiting": 1, "queue": QueueBounds(requests=1)}
    pods[1].set_state(**full)
    pods[0].failure = 429, b'{"error": {"code": "ttft_unreachable"}}'
    front.objects.serve("alone", *pods)
    await until(lambda: have_been_read(front, "alone", pods), "both are read")
    assert (await front.post("alone"))[:2] == pods[0].failure
    assert (len(pods[0].seen), len(pods[1].seen)) == (1, 0)
