"""External backends of routes with the real Envoy, relay and picker, and a server of OpenAI's API over TLS."""

import asyncio
import contextlib
import itertools
import json
from dataclasses import dataclass

import openai
import pytest
import pytest_asyncio
from aiohttp import web
from openai import AsyncOpenAI

from fakes import tls_files
from fakes.gateway import Gateway, gateway, grant, until
from fakes.openai_server import WORDS, OpenAiServer, event, with_status
from fakes.stub_runtime import StubRuntime, stub_runtimes
from kvasir_gateway.hold_queue import HoldLimits

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-backends")]
MESSAGES = [{"role": "user", "content": "hi"}]
PAIRS = 32
WRONG = {
    "no-network": {"networks": []},
    "of-others": {"namespaces": ["other"]},
    "no-ca": {"ca": ""},
    "no-tls": {"url": "http://127.0.0.1:1/v1"},
    "misspelt": {"keys": "x"},
}


@dataclass
class World:
    """one, two: servers outside of the cluster. Each test has a number, and backends of its own with it, since failures
    of one that another test caused would rest it: one-0 is the server one."""

    front: Gateway
    one: OpenAiServer
    two: OpenAiServer
    pod: StubRuntime
    number: int

    @property
    def names(self):
        """Of this test's backends."""
        return f"one-{self.number}", f"two-{self.number}"

    async def route(self, *targets, fallbacks=(), more=()):
        """Route a new name to services, and to these backends; returns the name once the gateway knows it."""
        backends = [{"name": name, "model": f"model-of-{name}"} for name in (*self.names, *more)]
        name = f"r{self.number}-{len(targets)}{len(fallbacks)}"
        self.front.objects.route(
            name,
            rules=[{"targets": [{"service": target} for target in targets]}],
            fallbacks=[{"service": other} for other in fallbacks],
            backends=backends,
        )
        await until(lambda: self.knows(f"default/{name}"), "the route")
        return f"default/{name}"

    async def knows(self, model):
        """Whether a model is listed."""
        async with self.front.client.get(f"{self.front.url}/v1/models/{model}") as response:
            return response.status == 200

    async def answers(self, model):
        """Whether a request is answered."""
        return (await self.front.post(model, messages=MESSAGES))[0] == 200

    def client(self, **fields):
        """The official one."""
        return AsyncOpenAI(base_url=f"{self.front.url}/v1", max_retries=0, **{"api_key": "of-the-client", **fields})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    directory, ca = tmp_path_factory.mktemp("tls"), tls_files.authority()
    async with contextlib.AsyncExitStack() as stack:
        servers = [OpenAiServer(name, ca, directory / name) for name in ("one", "two")]
        for server in servers:
            await stack.enter_async_context(server.serving())
        port = await stack.enter_async_context(flooding(ca, directory / "flood"))
        front = await stack.enter_async_context(gateway(hold=HoldLimits(max_wait_s=60)))
        files = {f"{server.name}-{number}": server.file() for server in servers for number in range(PAIRS)}
        files |= {name: servers[0].file(**fields) for name, fields in WRONG.items()}
        files["flood"] = servers[0].file(url=f"https://127.0.0.1:{port}/v1")
        files["closed"] = servers[0].file(anonymous=False)
        front.backends.mkdir()
        for name, file in files.items():
            (front.backends / f"{name}.json").write_text(json.dumps(file))
        await front.start_relay()
        (pod,) = await stack.enter_async_context(stub_runtimes(1))
        world = World(front, *servers, pod, 0)
        probe = await world.route("one-0")
        await until(lambda: world.answers(probe), "the gateway knows the backends")
        yield world, itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def world(made):
    first, numbers = made
    found = World(first.front, first.one, first.two, first.pod, next(numbers))
    found.front.objects.serve("own", found.pod)
    await until(lambda: found.front.routes("own"), "our own replica")
    found.one.seen.clear()
    yield found
    for server in (found.one, found.two):
        server.answer = server.hold = None
        server.seen.clear()


@contextlib.asynccontextmanager
async def flooding(ca, directory):
    """A server whose heads do not end."""
    tls_files.issued(ca, directory)

    async def flood(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(1000):
                writer.write(f"x-{number}: {'a' * 4000}\r\n".encode())
                await writer.drain()
        writer.transport.abort()

    secure = tls_files.server_side(directory)
    async with await asyncio.start_server(flood, "127.0.0.1", 0, ssl=secure) as server:
        yield server.sockets[0].getsockname()[1]


def by(headers):
    """The service and the fallback's reason that the head of an answer names."""
    return headers.get("x-kvasir-service", ""), headers.get("x-kvasir-fallback", "")


def code(body):
    return json.loads(body)["error"]["code"]


async def test_the_official_client_gets_answers_of_a_backend_that_learns_nothing_of_the_client(world):
    one, _ = world.names
    model = await world.route(one)
    headers = {"x-secret": "s", "cookie": "c=" + "1" * 9000, "x-session-id": "u", "x-kvasir-backend": "two-0"}
    async with world.client(default_headers=headers) as client:
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, seed=1)
        assert raw.parse().choices[0].message.content == "".join(WORDS)
        assert by(raw.headers) == (f"{model}/{one}", "")
        assert not {"set-cookie", "location", "x-ratelimit-limit-requests"} & raw.headers.keys()
        stream = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
        assert [chunk.choices[0].delta.content for chunk in chunks] == list(WORDS), "no chunk of the usage alone"
        counted = await client.chat.completions.create(
            model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk.usage.completion_tokens async for chunk in counted if chunk.usage] == [3]
    path, seen, body = world.one.seen[0]
    assert path == "/openai/v1/chat/completions"
    assert body == {"model": f"model-of-{one}", "messages": MESSAGES, "seed": 1}
    assert seen.pop("authorization") == "Bearer key-of-one"
    assert seen.keys() == {"host", "accept", "accept-encoding", "user-agent", "content-length", "content-type"}
    assert world.one.seen[1][2]["stream_options"] == {"include_usage": True}
    assert world.two.seen == []


async def test_a_backend_answers_where_our_own_cannot_and_no_longer(world):
    one, _ = world.names
    front, model = world.front, await world.route("own", fallbacks=[one])
    assert by((await front.post(model))[2]) == ("default/own", "")
    front.objects.serve("own")

    async def falls_back():
        return by((await front.post(model, stream=True))[2]) == (f"{model}/{one}", "AtZero")

    await until(falls_back, "it has no replica")
    assert (await front.demand("own")).last_request_age_s >= 0, "a request wakes the target all the same"
    front.objects.serve("own", world.pod)

    async def is_back():
        return by((await front.post(model))[2]) == ("default/own", "")

    await until(is_back, "our own replica again")
    labels = f'namespace="default",reason="at_zero",route="{model[8:]}",service="{model[8:]}/{one}"'
    assert f"kvasir_gateway_routed_requests_total{{{labels}}}" in (await front.page("/metrics"))[1]


@pytest.mark.parametrize(
    ("answer", "wanted", "stream"),
    [
        (with_status(401), (503, "backend_unauthorized"), True),
        (with_status(429, **{"retry-after": "7"}), (429, "backend_rate_limited"), False),
        (with_status(500), (503, "backend_unavailable"), True),
        (with_status(404), (503, "backend_invalid_answer"), False),
        (with_status(307, location="https://127.0.0.1:1/"), (503, "backend_invalid_answer"), False),
    ],
)
async def test_what_fails_before_the_first_byte_goes_to_the_next_one_or_is_told(world, answer, wanted, stream):
    one, two = world.names
    front, alone, both = world.front, await world.route(one), await world.route(one, fallbacks=[two])
    world.one.answer = answer
    status, body, headers = await front.post(both, stream=stream, messages=MESSAGES)
    assert (status, by(headers)) == (200, (f"{both}/{two}", "Stalled"))
    asked = [found["model"] for _, _, found in (*world.one.seen, *world.two.seen)]
    assert asked == [f"model-of-{one}", f"model-of-{two}"]
    status, body, headers = await front.post(alone, stream=stream, messages=MESSAGES)
    assert (status, code(body)) == wanted
    assert "x-kvasir-backend-failed" not in headers
    assert b"key-of-one" not in body
    assert int(headers["retry-after"]) == (7 if wanted[0] == 429 else 2)
    world.one.answer = None
    assert await world.answers(alone), "where nothing else can answer, one that failed is tried again"


async def test_an_error_about_the_request_is_the_clients(world):
    one, two = world.names
    model = await world.route(one, fallbacks=[two])
    world.one.answer = with_status(400)
    async with world.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=model, messages=MESSAGES)
    assert refused.value.code == "theirs"
    assert world.two.seen == []


def hostile(kind):
    """What a backend does in place of an answer."""

    async def answer(request):
        if kind == "html":
            return web.Response(text="<html>", content_type="text/html")
        if kind == "compressed":
            return web.Response(body=b"{}", headers={"content-type": "text/event-stream", "content-encoding": "gzip"})
        if kind == "empty":
            return web.Response(body=b"", headers={"content-type": "text/event-stream"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(64 if kind == "event" else 0):
                await response.write(b"data: " + b"a" * 65536)
        if request.transport is not None:
            request.transport.abort()
        return response

    return answer


@pytest.mark.parametrize("kind", ["html", "compressed", "empty", "event", "cut"])
async def test_a_hostile_backend_gets_no_answer_through_and_harms_no_other(world, kind):
    one, two = world.names
    model = await world.route(one, fallbacks=[two])
    world.one.answer = hostile(kind)
    asked = [world.front.post(model, stream=True, messages=MESSAGES) for _ in range(4)]
    others = [world.front.post("own") for _ in range(8)]
    found = await asyncio.gather(*asked, *others)
    assert {(status, *by(headers)) for status, _, headers in found[:4]} == {(200, f"{model}/{two}", "Stalled")}
    assert [body for _, body, _ in found[4:]] == [world.pod.whole()] * 8


async def test_a_head_without_an_end_is_no_answer(world):
    _, two = world.names
    model = await world.route("flood", fallbacks=[two], more=["flood"])
    flooded, own = await asyncio.gather(world.front.post(model, messages=MESSAGES), world.front.post("own"))
    assert (flooded[0], by(flooded[2])) == (200, (f"{model}/{two}", "Stalled"))
    assert own[1] == world.pod.whole()


async def test_a_stream_without_its_end_does_not_look_whole(world):
    model = await world.route(world.names[0])

    async def without_end(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event({"choices": []}))
        return response

    world.one.answer = without_end
    async with world.client() as client:
        stream = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIConnectionError):
            _ = [chunk async for chunk in stream]


async def test_a_client_that_leaves_ends_the_backends_stream(world):
    """Whenever it does: also just when the head of the answer is on its way, from hop to hop."""
    model = await world.route(world.names[0])
    begun, gone = asyncio.Event(), asyncio.Event()

    async def watched(request):
        begun.set()
        try:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(event({"choices": []}))
            await asyncio.Event().wait()
        finally:
            gone.set()

    world.one.answer = watched
    for number in range(60):
        begun.clear()
        gone.clear()
        asking = asyncio.create_task(world.front.post(model, stream=True, messages=MESSAGES))
        await begun.wait()
        await asyncio.sleep(number % 6 / 2000)
        asking.cancel()
        await until(gone.is_set, "the backend sees its client leave")


@pytest.mark.parametrize("name", WRONG)
async def test_without_the_administrators_word_nothing_is_sent(world, name):
    _, two = world.names
    model = await world.route(name, fallbacks=[two], more=[name])
    status, _, headers = await world.front.post(model, messages=MESSAGES)
    assert (status, by(headers)) == (200, (f"{model}/{two}", "Stalled"))
    assert world.one.seen == []


async def test_a_key_that_is_replaced_counts_without_a_restart_and_breaks_no_stream(world):
    one, _ = world.names
    model, world.one.hold = await world.route(one), asyncio.Event()
    stream = asyncio.create_task(world.front.post(model, stream=True, messages=MESSAGES))
    await until(lambda: len(world.one.seen) == 1, "the stream has begun")
    (world.front.backends / f"{one}.json").write_text(json.dumps(world.one.file(key="another")))

    async def is_new():
        await world.front.post(model, messages=MESSAGES)
        return world.one.seen[-1][1]["authorization"] == "Bearer another"

    await until(is_new, "the new key")
    world.one.hold.set()
    status, body, _ = await stream
    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)


async def test_only_what_openais_api_has_without_memory_goes_to_a_backend(world):
    model = await world.route(world.names[0])
    for path in ("/v1/responses", "/v1/messages", "/api/chat"):
        body = {"model": model, "messages": [], "input": "x"}
        async with world.front.client.post(world.front.url + path, json=body) as response:
            assert response.status == 503, path
    assert world.one.seen == []


async def test_tenants_keys_limits_and_tokens_count_as_with_our_own(world):
    front, model = world.front, await world.route("closed", more=["closed"])
    status, body, _ = await front.post(model, messages=MESSAGES)
    assert (status, code(body)) == (503, "no_ready_replica"), "nothing has checked who it is"
    assert world.one.seen == []
    may = grant("may", "k-may", services=("own", "closed"), tokens_per_minute=100_000)
    await front.set_tenants(may, grant("not", "k-not", services=("own",)))
    key = {"authorization": "Bearer k-may"}

    async def opened():
        return (await front.post(model, messages=MESSAGES, headers=key))[0] == 200

    await until(opened, "the tenant")
    assert (await front.post(model, messages=MESSAGES))[0] == 401
    status, body, _ = await front.post(model, messages=MESSAGES, headers={"authorization": "Bearer k-not"})
    assert (status, code(body)) == (404, "model_not_found")
    assert {head["authorization"] for _, head, _ in world.one.seen} == {"Bearer key-of-one"}

    def counted():
        lines = [json.loads(line) for line in front.audit_lines]
        return [line for line in lines if line["endpoint"] == "closed" and line["completion_tokens"] == 3]

    await until(lambda: bool(counted()), "a line with what the backend counted")
    line = counted()[0]
    assert (line["tenant"], line["service"], line["status"]) == ("may", f"{model[8:]}/closed", 200)
    assert (line["prompt_tokens"], line["cached_tokens"]) == (7, 5)
    assert b"key-of-one" not in b"".join(front.audit_lines)
    await front.set_tenants()
    await until(lambda: front.routes("own"), "open again")
