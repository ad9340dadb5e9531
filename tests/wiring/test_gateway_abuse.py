"""What clients do to a gateway by accident or on purpose, at its real Envoy: each is refused or served, and no other
client notices."""

import asyncio
import contextlib
import gzip
import json
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from fakes.gateway import DEADLINE_S, gateway, until
from fakes.stub_runtime import StubRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-abuse")]
KEY = "sk-of-nobody-else-0123456789"
ABSENT, OK, WRONG = 404, 200, 400
PAGES = ("/metrics", "/state", "/readyz", "/livez")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod():
    stub = await StubRuntime("pod").start()
    yield stub
    await stub.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(pod):
    async with gateway(request_timeout_s=10) as running:
        running.objects.serve("tiny", pod)
        await until(lambda: running.routes("tiny"), "tiny")
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def witness(front, pod):
    """A stream of another client that is under way for all of the test, and whole in the end."""
    pod.hold_tokens = held = asyncio.Event()
    async with front.client.post(f"{front.url}/v1/chat/completions", json={"model": "tiny"}) as response:
        assert await response.content.readexactly(len(pod.piece(0))) == pod.piece(0)
        pod.hold_tokens = None
        yield
        held.set()
        assert pod.piece(0) + await response.read() == pod.whole()


def chat(front, body, **headers):
    headers = {"content-type": "application/json", **headers}
    return front.client.post(f"{front.url}/v1/chat/completions", data=body, headers=headers)


def body(**fields):
    return json.dumps({"model": "tiny", **fields}).encode()


BODIES = {
    "compressed": (gzip.compress(body(prompt="x" * 1000)), WRONG),
    "deep": (b'{"model": "tiny", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", WRONG),
    "deep-and-open": (b'{"model": "tiny", "a": ' + b'{"a":' * 100_000, WRONG),
    "a-list": (b'["tiny"]', OK),
    "many-values": (b'{"model": "tiny", "prompt": [' + b"1," * 400_000 + b"1]}", OK),
    "many-messages": (b'{"model": "tiny", "messages": [' + b'{"role":"user"},' * 50_000 + b"{}]}", OK),
    "a-model-twice": (b'{"model": "other", "model": "tiny"}', OK),
    "no-utf-8": (b'{"model": "tiny", "prompt": "\xff\xfe"}', WRONG),
    "a-lone-surrogate": (b'{"model": "tiny", "prompt": "\\ud800"}', WRONG),
    "a-model-of-a-lone-surrogate": (b'{"model": "\\ud800"}', WRONG),
    "a-mark-of-byte-order": (b"\xef\xbb\xbf" + body(), WRONG),
    "nul-and-bidi": (body(prompt="a\0b\u202ec\x1b[2J"), OK),
    "a-model-with-nul": (body(model="ti\0ny"), ABSENT),
    "a-model-of-a-line": (body(model="a\r\nx-kvasir-cluster: default.tiny"), ABSENT),
    "a-model-that-is-a-path": (body(model="../../default/tiny"), ABSENT),
    "a-model-of-encoded-dots": (body(model="%2e%2e%2fdefault%2ftiny"), ABSENT),
    "a-model-of-a-megabyte": (body(model="x" * 900_000), ABSENT),
    "infinite": (b'{"model": "tiny", "temperature": 1e400}', OK),
    "no-number": (b'{"model": "tiny", "temperature": NaN}', WRONG),
    "digits": (b'{"model": "tiny", "n": ' + b"9" * 400 + b"}", OK),
    "negative": (body(n=-(1 << 70), max_tokens=-1, best_of=[], priority="now"), OK),
}
"""A body of each kind, and whether the gateway itself refuses it or leaves it to the pod, which gets it as it is."""


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize(("sent", "status"), BODIES.values(), ids=BODIES)
async def test_a_hostile_body_is_refused_or_reaches_the_pod_as_it_is(front, pod, sent, status):
    before = len(pod.seen)
    async with chat(front, sent) as response:
        said = await response.read()
    assert response.status == status, said[:300]
    assert [await seen.read() for seen in pod.seen[before:]] == [sent] * (status == OK)
    if status != OK:
        assert len(said) < 2000, "names are cut"
        assert json.loads(said)["error"]["code"]


@pytest.mark.usefixtures("witness")
async def test_what_a_body_asks_of_a_replica_is_not_done_by_the_gateway(front, pod):
    """No grammar is compiled, no template rendered, and no address reached but the pod's."""
    called = []

    async def reached(reader, writer):
        called.append(await reader.read(1))
        writer.close()

    trap = await asyncio.start_server(reached, "127.0.0.1", 0)
    async with trap:
        url = f"http://127.0.0.1:{trap.sockets[0].getsockname()[1]}/latest/meta-data"
        image = {"type": "image_url", "image_url": {"url": url}}
        sent = body(
            messages=[{"role": "user", "content": [image, {"type": "text", "text": "{{ 7 * 7 }}"}]}],
            chat_template="{% for x in range(10**9) %}{% endfor %}",
            guided_regex="(a+)+$" * 1000,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": url}}},
        )
        async with chat(front, sent, referer=url, forwarded=f"host={url}") as response:
            assert (response.status, await response.read()) == (200, pod.whole())
    assert await pod.seen[-1].read() == sent
    assert called == []


class LongAnswers(StubRuntime):
    """Streams of 128 MiB."""

    def piece(self, index):
        return b"data: " + b"x" * (1 << 20) + b"\n\n"


async def test_a_reader_that_stops_reading_stalls_no_other(front, pod):
    """The rest of its answer stays at the pod: neither Envoy nor the picker keeps it."""
    long = await LongAnswers("long").start()
    long.tokens = 128
    front.objects.serve("long", long)
    sent = b'{"model": "long"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(sent)

    async def begun():
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port, limit=1 << 10)
        writer.write(head + sent)
        opened.append(writer)
        return (await reader.readline()).startswith(b"HTTP/1.1 200")

    opened = []
    await until(begun, "the service is known")
    answers = await asyncio.gather(*(front.post("tiny") for _ in range(40)))
    assert {(status, found) for status, found, _ in answers} == {(200, pod.whole())}
    assert long.open == 1, "it waits for its reader"
    assert resident_bytes(front.envoy.pid) < 128 << 20
    for writer in opened:
        writer.transport.abort()
    await until(lambda: gone(long), "the pod's stream ends with its reader")
    await long.stop()


async def gone(pod):
    return pod.open == 0


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.usefixtures("witness")
async def test_slow_heads_slow_bodies_and_idle_connections_hold_up_no_other(front, pod):
    before = len(pod.seen)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    starts = {b"": 100, head + b"x-slow: ": 20, head + b"content-length: 100\r\n\r\n{": 20}
    opened = [
        (start, *await asyncio.open_connection("127.0.0.1", front.port))
        for start, n in starts.items()
        for _ in range(n)
    ]
    for start, _, writer in opened:
        writer.write(start)
    answers = await asyncio.gather(*(front.post("tiny") for _ in range(20)))
    assert {(status, found) for status, found, _ in answers} == {(200, pod.whole())}
    for start, reader, _ in opened:
        if start:  # those that are idle have begun no request
            said = await asyncio.wait_for(reader.read(), DEADLINE_S)
            assert said == b"" or said.startswith(b"HTTP/1.1 408"), said
    for _, _, writer in opened:
        writer.close()
    assert len(pod.seen) == before + len(answers), "no unfinished request reached the pod"


@pytest.mark.usefixtures("witness")
async def test_a_body_without_an_end_is_cut_off(front, pod):
    async def endless():
        while True:
            yield b" " * (1 << 16)

    before = len(pod.seen)
    try:
        async with chat(front, endless()) as response:
            assert response.status in (413, 408), "by its length, or by its time where the machine is slow"
    except aiohttp.ClientError:
        pass  # the connection was closed while it still sent
    assert len(pod.seen) == before


async def test_bodies_that_take_all_memory_are_refused_and_end_no_stream(pod):
    """Envoy keeps what has come of each body; none of these has its end."""
    async with gateway(max_heap_bytes=64 << 20) as front:
        front.objects.serve("tiny", pod)
        await until(lambda: front.routes("tiny"), "tiny")
        pod.hold_tokens = held = asyncio.Event()
        begun = await chat(front, body()).__aenter__()
        assert await begun.content.readexactly(len(pod.piece(0))) == pod.piece(0)
        pod.hold_tokens, opened = None, []

        async def refused():
            _, writer = await asyncio.open_connection("127.0.0.1", front.port)
            opened.append(writer)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
            writer.write(b"x" * 999_000)
            with contextlib.suppress(ConnectionError):  # Envoy refuses it before it has read all
                await writer.drain()
            status, said, headers = await front.post("tiny")
            if status == 200:
                return False
            code = json.loads(said)["error"]["code"]
            assert (status, code, headers["retry-after"]) == (503, "gateway_unavailable", "1")
            return True

        await until(refused, "there is no memory for more")
        assert resident_bytes(front.envoy.pid) < 192 << 20
        for writer in opened:
            writer.transport.abort()
        await until(lambda: front.routes("tiny"), "there is memory again")
        held.set()
        assert pod.piece(0) + await begun.read() == pod.whole()


@pytest.mark.usefixtures("witness")
async def test_a_key_is_shown_nowhere(front, pod):
    """Wherever a client puts it, sent or refused; the pod alone gets its headers."""
    url = f"{front.url}/v1/chat/completions"
    places = [
        (url, {"authorization": f"Bearer {KEY}"}),
        (url, {"x-api-key": KEY}),
        (f"{url}?api_key={KEY}", {}),
        (url, {"cookie": f"key={KEY}", "proxy-authorization": KEY}),
    ]
    for where, headers in places:
        async with front.client.post(where, json={"model": "tiny"}, headers=headers) as response:
            assert response.status == 200
    async with front.client.post(url, json={"model": "closed"}, headers={"x-api-key": KEY}) as response:
        assert KEY not in await response.text()
    log = front.directory / "envoy.log"
    assert (await front.post("tiny", headers={"x-request-id": "the-last-one"}))[0] == 200

    async def logged():
        return b"the-last-one" in log.read_bytes()

    await until(logged, "Envoy has written the line of the last request")
    pages = [text for page in PAGES for text in [(await front.page(page))[1]]]
    for shown in (log.read_text(), *pages, *(line.decode() for line in front.audit_lines)):
        assert KEY not in shown


async def test_refusals_at_once_name_different_times_to_come_back(front):
    """Clients that were refused together come back one after another."""
    front.objects.serve("absent")

    async def refused():
        return (await front.post("absent"))[0] == 503

    await until(refused, "the service is known")
    answers = await asyncio.gather(*(front.post("absent") for _ in range(60)))
    assert {status for status, _, _ in answers} == {503}
    times = {int(headers["retry-after"]) for _, _, headers in answers}
    assert len(times) > 2, times
    assert times <= set(range(2, 7))
