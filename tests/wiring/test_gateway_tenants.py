"""Tenants at the real Envoy with our picker: keys, models and limits as the openai client meets them."""

import asyncio
import json
import time
import uuid

import openai
import pytest
import pytest_asyncio

from fakes.gateway import DEADLINE_S, gateway, grant, until
from fakes.stub_runtime import stub_runtimes
from kvasir_api import names

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-tenants")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway() as running, stub_runtimes(1) as (pod,):
        running.objects.serve("chat", pod)
        running.objects.serve("code", pod)
        await until(lambda: running.routes("chat"), "chat")
        await until(lambda: running.routes("code"), "code")
        running.pod = pod
        yield running


async def publish(front, *grants, key, status=200, model="chat"):
    """Until the picker has read them."""
    await front.set_tenants(*grants)

    async def counts():
        return (await front.post(model, headers=bearer(key)))[0] == status

    await until(counts, f"{key} is answered {status}")


async def published(front, *grants):
    """The picker has read them, as it accepts a key that came with them, and no other: before the first reading it
    accepts all."""
    await front.set_tenants(*grants, grant("probe", probe := f"k-{uuid.uuid4().hex}"))
    await until(lambda: answers(front, f"k-{uuid.uuid4().hex}", 401), "keys count")
    await until(lambda: accepted(front, probe), "they are read")


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def client(front, key):
    return openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)


async def models(front, key):
    async with client(front, key) as asked:
        return [model.id async for model in asked.models.list()]


async def asked(front, key, **fields):
    async with client(front, key) as sender:
        return await sender.chat.completions.with_raw_response.create(
            model="chat", messages=[{"role": "user", "content": "x"}], stream=True, **fields
        )


async def test_keys_open_models_and_the_request_reaches_the_pod_unchanged(front):
    await publish(front, grant("team", "k-team", services=("chat",)), key="none", status=401)
    assert await models(front, "k-team") == ["chat"]
    answer = await asked(front, "k-team")
    assert answer.status_code == 200
    assert front.pod.seen[-1].headers["authorization"] == "Bearer k-team"
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    with pytest.raises(openai.AuthenticationError) as refused:
        await asked(front, "wrong")
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        await models(front, "wrong")
    async with client(front, "k-team") as sender:
        with pytest.raises(openai.NotFoundError):
            await sender.chat.completions.create(model="code", messages=[])


async def test_a_client_cannot_name_its_tenant(front):
    """However often it sends the header that replicas trust, they get one, with the name of the key's tenant."""
    front.objects.serve("trusting", front.pod, tenant_header="X-Tenant")
    await published(front, grant("mine", "k-mine"))
    await until(lambda: accepted(front, "k-mine", model="trusting"), "it is served")
    headers = [("authorization", "Bearer k-mine"), ("x-tenant", "theirs"), ("X-Tenant", "others")]
    body = {"model": "trusting"}
    async with front.client.post(f"{front.url}/v1/chat/completions", json=body, headers=headers) as response:
        assert (response.status, await response.read()) == (200, front.pod.whole())
    assert front.pod.seen[-1].headers.getall("x-tenant") == ["mine"]


async def test_an_old_key_ends_with_its_grace(front):
    ends = time.time() + 3600
    old, new = grant("old", "k-old", until=ends), grant("new", "k-new")
    await publish(front, old, new, key="k-old")
    assert (await asked(front, "k-new")).status_code == 200
    await publish(front, grant("old", "k-old", until=time.time() - 1), new, key="k-old", status=401)
    assert (await asked(front, "k-new")).status_code == 200


async def test_limits_are_in_headers_that_clients_read(front):
    team = grant("limits", "k-limits", requests_per_minute=3, tokens_per_minute=100_000)
    await published(front, team)
    forged = dict.fromkeys(names.HEADERS_RATE_LIMIT, "999")
    left = []
    while True:  # not three times: one comes back every 20 s, which may have passed
        try:
            answer = await asked(front, "k-limits", extra_headers=forged)
        except openai.RateLimitError as error:
            refused = error
            break
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 100_000
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        left.append(answer.headers["x-ratelimit-remaining-requests"])
    assert (left[:1], left[-1:], len(left) >= 3) == (["2"], ["0"], True)
    headers = refused.response.headers
    assert refused.code == "rate_limit_exceeded"
    assert 1 <= int(headers["retry-after"]) <= 20
    assert headers["x-ratelimit-remaining-requests"] == "0"


async def accepted(front, key, model="chat"):
    return await answers(front, key, 200, model=model)


async def answers(front, key, status, model="chat"):
    return (await front.post(model, headers=bearer(key)))[0] == status


async def test_so_many_streams_run_at_once_and_an_end_makes_room(front):
    await published(front, grant("few", "k-few", concurrent_requests=2))
    front.pod.hold_tokens = asyncio.Event()
    streams = [
        front.client.post(f"{front.url}/v1/chat/completions", json={"model": "chat"}, headers=bearer("k-few"))
        for _ in range(2)
    ]
    one, two = [await asyncio.create_task(stream.__aenter__()) for stream in streams]
    assert (one.status, two.status) == (200, 200)
    assert (await front.post("chat", headers=bearer("k-few")))[0] == 429
    one.close()  # the client leaves
    front.pod.hold_tokens.set()
    front.pod.hold_tokens = None
    await until(lambda: accepted(front, "k-few"), "the place of the first is free")
    await two.read()
    two.close()


async def test_so_many_streams_run_at_once_at_two_gateways_together(front):
    """Each counts what runs at the other one; an end at one of them makes room at both."""
    async with gateway(objects=front.objects) as other:
        urls = [f"http://127.0.0.1:{one.state_port}" for one in (front, other)]
        both = grant("both", "k-both", concurrent_requests=1)
        await published(other, both)
        await published(front, both)
        hold = front.pod.hold_tokens = asyncio.Event()
        where, sent = f"{front.url}/v1/chat/completions", {"model": "chat"}
        async with front.client.post(where, json=sent, headers=bearer("k-both")) as stream:
            assert stream.status == 200
            front.objects.gateway_urls = urls  # it began before they knew each other
            front.pod.hold_tokens = None  # what comes later ends at once
            await until(lambda: refuses(other, "k-both"), "it counts at the other one")
            hold.set()
            await stream.read()
        await until(lambda: accepted(other, "k-both"), "its place is free")
        await until(lambda: accepted(front, "k-both"), "here too")
        front.objects.gateway_urls = []


async def refuses(front, key):
    """While it has no request of its own that counts."""
    return await front.inflight("chat") == 0 and await answers(front, key, 429)


async def audited(front, request_id):
    """The line of a request, which comes when its replica has reported what it took."""

    def lines():
        return [found for line in front.audit_lines if (found := json.loads(line))["request_id"] == request_id]

    await until(lambda: bool(lines()), "its line")
    (line,) = lines()
    return line


async def test_each_request_has_a_line_with_what_it_took(front):
    team = grant("audited", "k-audited", requests_per_minute=1)
    await published(front, team)
    headers = {**bearer("k-audited"), "x-request-id": "mine"}
    assert (await front.post("chat", headers=headers, messages=["a secret"]))[0] == 200
    line = await audited(front, "mine")
    assert (line["namespace"], line["service"], line["tenant"], line["model"]) == ("default", "chat", "audited", "chat")
    assert (line["status"], line["outcome"], line["endpoint"]) == (200, "ok", f"127.0.0.1:{front.pod.http_port}")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (11, front.pod.tokens)
    assert (await front.post("chat", headers={**headers, "x-request-id": "refused"}))[0] == 429
    line = await audited(front, "refused")
    assert (line["status"], line["outcome"], line["endpoint"], line["tenant"]) == (429, "refused", "", "audited")
    written = b"".join(front.audit_lines)
    assert b"k-audited" not in written
    assert b"a secret" not in written


async def test_a_limit_of_tokens_counts_what_replicas_counted(front):
    """The gateway estimates a few tokens for the body; the replica counted more than ten minutes' worth."""
    await published(front, grant("counted", "k-counted", tokens_per_minute=600))
    front.pod.prompt_tokens, few = 10_000, front.pod.prompt_tokens
    answer = await front.post("chat", headers={**bearer("k-counted"), "x-request-id": "counted"})
    assert (answer[0], answer[2]["x-ratelimit-limit-tokens"]) == (200, "600")
    assert int(answer[2]["x-ratelimit-remaining-tokens"]) > 500
    assert (await audited(front, "counted"))["prompt_tokens"] == 10_000
    front.pod.prompt_tokens = few
    status, _, headers = await front.post("chat", headers=bearer("k-counted"))
    assert (status, headers["x-ratelimit-remaining-tokens"]) == (429, "0")
    assert int(headers["retry-after"]) > 600
