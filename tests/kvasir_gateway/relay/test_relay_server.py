"""The relay between two sockets: what passes it, and what does not."""

import asyncio
import gzip

import aiohttp
import pytest
from aiohttp import web

from fakes.gateway import until
from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import INNER_SOCKET, RELAY_SOCKET
from kvasir_gateway.relay.relay_server import RelayServer
from kvasir_gateway.relay.relayed_request import MAX_KEPT_BYTES, MAX_TRIED
from kvasir_kube import http_sites

EVENTS = [f"data: {n}\n\n".encode() for n in range(4)]
END = b"data: [DONE]\n\n"
MAX_BODY_BYTES = 1 << 16
LINES = {"max_line_size": 1 << 17, "max_field_size": 1 << 17}
"""Of a client and a server without bounds of their own."""


class Inner:
    """In place of Envoy: each request is answered by the next of `answers`."""

    def __init__(self):
        self.answers, self.bodies, self.headers, self.targets = [], [], [], []

    async def answer(self, request):
        self.bodies.append(await request.read())
        self.headers.append(request.headers)
        self.targets.append((request.method, request.path_qs))
        return await self.answers.pop(0)(request)


def stream(*events, cut=None, pieces=True):
    """A replica that sends these events and then ends. cut: when it is set, the connection breaks instead."""

    async def answer(request):
        headers = {"content-type": "text/event-stream", names.HEADER_ANSWER: "cmpl-1", names.HEADER_SERVICE: "n/s"}
        headers |= {names.HEADER_CONTINUATION: "pieces"} if pieces else {}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for event in events:
            await response.write(event)
        if cut is not None:
            await cut.wait()
            request.transport.abort()
        return response

    return answer


def refusal(status):
    async def answer(_request):
        return web.json_response({"error": {"code": "no", "message": str(status)}}, status=status)

    return answer


def piece(token):
    return f": {names.COMMENT_CONTINUATION} {token}\n\n".encode()


@pytest.fixture
async def inner(tmp_path):
    made = Inner()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, **LINES)
    await runner.setup()
    await http_sites.UnixSite(runner, str(tmp_path / INNER_SOCKET)).start()
    yield made
    await runner.cleanup()


@pytest.fixture
async def relay(inner, tmp_path):
    stop = asyncio.Event()
    running = asyncio.create_task(RelayServer(tmp_path, max_body_bytes=MAX_BODY_BYTES).run(stop))
    await until((tmp_path / RELAY_SOCKET).exists, "the relay listens")
    connector = aiohttp.UnixConnector(path=str(tmp_path / RELAY_SOCKET))
    async with aiohttp.ClientSession(connector=connector, base_url="http://relay") as session:
        yield session
    stop.set()
    await running
    assert not (tmp_path / RELAY_SOCKET).exists()


def resumable(relay, path="/v1/chat/completions", **more):
    headers = {names.HEADER_RESUME: "1", names.HEADER_INFLIGHT_ID: "id", "authorization": "Bearer k"} | more
    return relay.post(path, data=b'{"model": "m", "x": 1}', headers=headers)


async def test_a_stream_goes_on_at_another_replica(relay, inner):
    inner.answers = [
        stream(EVENTS[0], piece("a"), EVENTS[1], piece("b"), EVENTS[2], cut=(cut := asyncio.Event())),
        stream(EVENTS[2], piece("c"), EVENTS[3], piece("d"), END),
    ]
    async with resumable(relay) as response:
        assert await response.content.readexactly(len(b"".join(EVENTS[:2]))) == b"".join(EVENTS[:2])
        cut.set()
        assert await response.read() == b"".join(EVENTS[2:]) + END
        assert not {names.HEADER_CONTINUATION, names.HEADER_ANSWER} & response.headers.keys()
    assert inner.bodies == [b'{"model": "m", "x": 1}', b'{"model": "m", "x": 1,"continuation":"a.b"}']
    assert [headers.get(names.HEADER_ANSWER) for headers in inner.headers] == [None, "cmpl-1"]
    for headers in inner.headers:
        assert (headers[names.HEADER_RELAYED], headers["authorization"]) == ("id", "Bearer k")
        assert headers[names.HEADER_CONTINUATION] == "pieces"
        assert names.HEADER_RESUME not in headers


async def test_a_stream_that_broke_before_its_first_piece_begins_again(relay, inner):
    inner.answers = [stream(EVENTS[0], cut=(cut := asyncio.Event())), stream(EVENTS[0], piece("a"), END)]
    async with resumable(relay) as response:
        cut.set()
        assert await response.read() == EVENTS[0] + END
    assert inner.bodies[0] == inner.bodies[1]


@pytest.mark.parametrize("code", ["draining", "engine_failed"])
async def test_a_stream_that_a_replica_hands_over_goes_on(relay, inner, code):
    mark = f": {names.COMMENT_HANDED_OVER} {code}\n\n".encode()
    inner.answers = [
        stream(EVENTS[0], piece("a"), mark, b'data: {"error": {}}\n\n'),
        refusal(503),
        stream(*EVENTS[1:], piece("b"), END),
    ]
    async with resumable(relay) as response:
        assert await response.read() == b"".join(EVENTS) + END


async def test_a_request_from_which_replicas_fail_is_not_sent_to_all_of_them(relay, inner):
    cuts = [asyncio.Event() for _ in range(9)]
    inner.answers = [stream(EVENTS[0], piece(str(n)), cut=cut) for n, cut in enumerate(cuts)]
    async with resumable(relay) as response:
        for cut in cuts[:4]:
            assert await response.content.readexactly(len(EVENTS[0])) == EVENTS[0]
            cut.set()
        read = await response.read()
    assert len(inner.bodies) == 4
    assert b"upstream_unavailable" in read
    assert END not in read


async def test_replicas_that_hand_over_what_they_have_not_begun_are_not_asked_for_ever(relay, inner):
    mark = f": {names.COMMENT_HANDED_OVER} draining\n\n".encode()
    inner.answers = [
        stream(EVENTS[0], piece("a"), mark, b'data: {"error": {}}\n\n'),
        *(stream(piece("again"), mark) for _ in range(9)),
    ]
    async with resumable(relay) as response:
        read = await response.read()
    assert len(inner.bodies) == 5
    assert read.startswith(EVENTS[0] + b'data: {"error"')
    assert b"upstream_unavailable" in read


async def test_a_stream_of_which_too_much_would_be_kept_is_passed_on_as_it_is(relay, inner):
    part = b"x" * (1 << 20)
    parts = [part] * (MAX_KEPT_BYTES // len(part) + 1)
    inner.answers = [stream(EVENTS[0], piece("a"), b"data: ", *parts, cut=(cut := asyncio.Event()))]
    async with resumable(relay) as response:
        want = EVENTS[0] + b"data: " + b"".join(parts)
        assert await response.content.readexactly(len(want)) == want
        cut.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert len(inner.bodies) == 1


async def test_a_client_that_joins_the_pieces_itself_gets_them(relay, inner):
    sent = [EVENTS[0], piece("a"), EVENTS[1], piece("b")]
    inner.answers = [stream(*sent, END), stream(*sent, cut=(cut := asyncio.Event()))]
    own = {names.HEADER_CONTINUATION: "pieces"}
    async with resumable(relay, **own) as response:
        assert response.headers[names.HEADER_CONTINUATION] == "pieces"
        assert await response.read() == b"".join(sent) + END
    async with resumable(relay, **own) as response:
        cut.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert len(inner.bodies) == 2


async def test_a_token_that_no_replica_takes_ends_the_stream_with_its_error(relay, inner):
    inner.answers = [stream(EVENTS[0], piece("a"), cut=(cut := asyncio.Event())), refusal(400)]
    async with resumable(relay) as response:
        assert await response.content.readexactly(len(EVENTS[0])) == EVENTS[0]
        cut.set()
        assert (await response.read()).startswith(b'data: {"error": {"code": "no"')


async def test_replicas_that_write_no_pieces_are_passed_on_as_they_are(relay, inner):
    inner.answers = [stream(*EVENTS, END, pieces=False), stream(EVENTS[0], cut=(cut := asyncio.Event()), pieces=False)]
    async with resumable(relay) as response:
        assert await response.read() == b"".join(EVENTS) + END
    async with resumable(relay) as response:
        cut.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


def given_back(code="upstream_unavailable", *, status=503, message="broke"):
    async def answer(_request):
        return web.json_response({"error": {"code": code, "message": message}}, status=status)

    return answer


@pytest.mark.parametrize("code", ["upstream_unavailable", "draining", "engine_failed"])
async def test_a_stream_whose_replica_failed_before_it_began_is_sent_again(relay, inner, code):
    inner.answers = [given_back(code), stream(*EVENTS, piece("a"), END)]
    async with resumable(relay) as response:
        assert (response.status, await response.read()) == (200, b"".join(EVENTS) + END)
    assert inner.bodies[0] == inner.bodies[1]


def failed(service, status=503, code="backend_unavailable"):
    """What the inner listener answers where an external backend failed."""

    async def answer(_request):
        headers = {names.HEADER_BACKEND_FAILED: "x", names.HEADER_SERVICE: service}
        return web.json_response({"error": {"code": code, "message": service}}, status=status, headers=headers)

    return answer


def plain(relay):
    return relay.post("/v1/chat/completions", data=b'{"model": "m"}', headers={names.HEADER_INFLIGHT_ID: "id"})


def none_ready():
    async def answer(_request):
        return web.json_response({"error": {"code": "no_ready_replica", "message": "none"}}, status=503)

    return answer


async def test_where_an_external_backend_fails_the_next_one_is_asked(relay, inner):
    inner.answers = [failed("ns/r/one"), failed("ns/r/two", 429), stream(END, pieces=False)]
    async with plain(relay) as response:
        assert (response.status, await response.read()) == (200, END)
    tried = [headers.get(names.HEADER_TRIED) for headers in inner.headers]
    assert tried == [None, "ns/r/one", "ns/r/one,ns/r/two"]
    assert len(set(inner.bodies)) == 1


async def test_where_nothing_is_left_the_last_failure_is_told(relay, inner):
    inner.answers = [failed("ns/r/one"), failed("ns/r/two", 429), none_ready()]
    async with plain(relay) as response:
        assert (response.status, (await response.json())["error"]["message"]) == (429, "ns/r/two")
        assert names.HEADER_BACKEND_FAILED not in response.headers


@pytest.mark.parametrize(("service", "sent"), [("ns/r/one", MAX_TRIED + 1), ("ns/service", 1)])
async def test_backends_are_not_tried_for_ever_and_a_pod_cannot_pass_for_one(relay, inner, service, sent):
    inner.answers = [failed(service) for _ in range(100)]
    async with plain(relay) as response:
        assert response.status == 503
    assert len(inner.bodies) == sent


async def test_one_that_is_not_to_be_resumed_is_not_sent_again(relay, inner):
    inner.answers = [given_back()]
    async with relay.post("/v1/chat/completions", data=b"{}") as response:
        assert (response.status, (await response.json())["error"]["message"]) == (503, "broke")


@pytest.mark.parametrize("status", [400, 401, 429, 503])
async def test_a_refusal_is_passed_on_as_it_is(relay, inner, status):
    inner.answers = [refusal(status)]
    async with resumable(relay) as response:
        assert (response.status, (await response.json())["error"]["message"]) == (status, str(status))
    assert len(inner.bodies) == 1


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "model_not_found", "The model `draining-a` does not exist here."),
        (503, "unavailable", "No replica: engine_failed"),
        (400, "draining", "m"),
        (503, None, "upstream_unavailable"),
    ],
)
async def test_only_the_code_of_an_error_says_that_a_request_was_given_back(relay, inner, status, code, message):
    inner.answers = [given_back(code, status=status, message=message) for _ in range(4)]
    async with resumable(relay) as response:
        assert (response.status, (await response.json())["error"]["message"]) == (status, message)
    assert len(inner.bodies) == 1


@pytest.mark.parametrize("document", [b"draining", b'["draining"]', b'{"error": "draining"}', b'{"code": "draining"}'])
async def test_an_error_that_has_no_code_is_passed_on(relay, inner, document):
    async def answer(_request):
        return web.Response(body=document, status=503)

    inner.answers = [answer] * 4
    async with resumable(relay) as response:
        assert (response.status, await response.read()) == (503, document)
    assert len(inner.bodies) == 1


def answer_with(status=200, body=b"{}", **headers):
    async def answer(_request):
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def test_a_pods_cookies_are_no_other_clients(relay, inner):
    inner.answers = [answer_with(**{"set-cookie": "who=a; Path=/"}), answer_with()]
    for _ in range(2):
        async with relay.post("/v1/chat/completions", data=b"{}", headers={"cookie": "own=1"}) as response:
            assert response.status == 200
        relay.cookie_jar.clear()
    assert [headers.getall("cookie") for headers in inner.headers] == [["own=1"], ["own=1"]]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_pods_redirect_is_passed_on_and_not_followed(relay, inner, status):
    inner.answers = [answer_with(status, b"there", location="/v1/responses/abc"), answer_with()]
    async with relay.post("/v1/chat/completions", data=b"{}", allow_redirects=False) as response:
        assert (response.status, response.headers["location"]) == (status, "/v1/responses/abc")
        assert await response.read() == b"there"
    assert inner.targets == [("POST", "/v1/chat/completions")]


async def test_what_a_pod_compressed_is_passed_on_as_it_is(relay, inner):
    inner.answers = [answer_with(body=gzip.compress(b"x" * 100_000), **{"content-encoding": "gzip"})]
    async with relay.post("/v1/chat/completions", data=b"{}") as response:
        assert await response.read() == b"x" * 100_000


async def test_heads_that_envoy_lets_through_pass(relay, inner):
    large, query = "k" * (60 << 10), "q=" + "v" * (50 << 10)
    inner.answers = [answer_with(large=large)]
    headers = {"authorization": "Bearer " + large}
    async with relay.post(f"/v1/chat/completions?{query}", data=b"{}", headers=headers, **LINES) as response:
        assert (response.status, response.headers["large"]) == (200, large)
    assert inner.headers[0]["authorization"] == "Bearer " + large
    assert inner.targets == [("POST", f"/v1/chat/completions?{query}")]


def body_of(size):
    return b'{"x":"' + b"x" * (size - 8) + b'"}'


async def chunks_of(body):
    for start in range(0, len(body), 1000):
        yield body[start : start + 1000]


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_have_a_bound_together(relay, inner, chunked):
    """One that ends, or whose client goes away, leaves its room to others."""
    let_go = asyncio.Event()

    async def wait(_request):
        await let_go.wait()
        return web.json_response({})

    def post(size):
        body = body_of(size)
        return relay.post("/v1/chat/completions", data=chunks_of(body) if chunked else body)

    inner.answers = [wait, wait, answer_with(), answer_with()]
    first, left = (asyncio.create_task(post(MAX_BODY_BYTES // 2)) for _ in range(2))
    await until(lambda: len(inner.bodies) == 2, "both are relayed")
    async with post(2000) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (429, "overloaded")
        assert response.headers["retry-after"]
    async with post(MAX_BODY_BYTES + 1) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (413, "body_too_large")
    assert len(inner.bodies) == 2

    left.cancel()

    async def passes(size):
        async with post(size) as response:
            return response.status == 200

    await until(lambda: passes(2000), "the room of one whose client left")
    let_go.set()
    async with await first as response:
        assert response.status == 200
    await until(lambda: passes(MAX_BODY_BYTES), "the room of one that ended")
    assert inner.bodies[-1] == body_of(MAX_BODY_BYTES)
