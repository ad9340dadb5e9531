"""Streams of gRPC on a unix socket, judged by the client of grpcio; and by frames what that client does not do."""

import asyncio
import contextlib
import gc
import socket
import stat
import struct
import weakref

import grpc.aio
import pytest

from fakes.gateway import until
from kvasir_gateway.picker.grpc_streams import (
    FIRST_WINDOW,
    MOST_FRAME_BYTES,
    PREFACE,
    GrpcConnection,
    GrpcStreamServer,
)

MIB = 1 << 20
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8


class Echo:
    """Answers each message with itself; `end NAME` ends the stream, `fail` raises, `wait` is not answered."""

    def __init__(self, stream, left):
        self.stream, self._left = stream, left

    def received(self, message):
        if message == b"fail":
            raise RuntimeError("as requested")
        if message.startswith(b"end"):
            self.stream.end(message)
        elif message != b"wait":
            self.stream.send(message)

    def left(self):
        self._left.put_nowait(self.stream.id)


@pytest.fixture
def left():
    """Ids of streams that clients left."""
    return asyncio.Queue()


@contextlib.asynccontextmanager
async def serving(path, left, *, most_bytes=9 * MIB):
    """A channel to a server that runs."""
    server = GrpcStreamServer(path, lambda stream: Echo(stream, left), most_bytes=most_bytes)
    await server.start()
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield server, channel.stream_stream("/any.Service/Method")
    await server.stop(0)


async def test_messages_go_both_ways_until_the_server_ends_the_stream(tmp_path, left):
    async with serving(tmp_path / "s", left) as (_, call):
        stream = call()
        for message in (b"one", b"", b"end of it"):
            await stream.write(message)
            assert await stream.read() == message
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK
    assert left.empty()


async def test_messages_longer_than_every_window_pass_whole(tmp_path, left):
    message = bytes(range(256)) * (8 * MIB // 256)
    async with serving(tmp_path / "s", left) as (_, call):
        streams = [call() for _ in range(3)]
        for stream in streams:
            await stream.write(message)
        for stream in streams:
            assert await stream.read() == message
            await stream.write(b"end")
            assert await stream.read() == b"end"


async def test_streams_at_once_do_not_mix(tmp_path, left):
    async with serving(tmp_path / "s", left) as (_, call):

        async def one(number):
            stream, message = call(), b"end %d " % number * (1 + number * 100)
            await stream.write(message)
            return await stream.read() == message and await stream.code() == grpc.StatusCode.OK

        assert all(await asyncio.gather(*(one(number) for number in range(200))))


async def test_the_handler_of_a_stream_that_its_client_leaves_is_called(tmp_path, left):
    async with serving(tmp_path / "s", left) as (_, call):
        stays, leaves, closes = call(), call(), call()
        for stream in (stays, leaves, closes):
            await stream.write(b"here")
            assert await stream.read() == b"here"
        leaves.cancel()
        await left.get()
        await closes.done_writing()
        await left.get()
        await stays.write(b"end")
        assert await stays.read() == b"end"
    assert left.empty()


async def test_all_handlers_of_a_connection_that_ends_are_called(tmp_path, left):
    async with serving(tmp_path / "s", left) as (_, call):
        streams = [call() for _ in range(3)]
        for stream in streams:
            await stream.write(b"here")
            assert await stream.read() == b"here"
    assert {await left.get() for _ in streams} == {1, 3, 5}


async def test_a_handler_that_fails_ends_its_stream_alone(tmp_path, left):
    async with serving(tmp_path / "s", left) as (_, call):
        fails, other = call(), call()
        for stream, message in ((fails, b"fail"), (other, b"here")):
            await stream.write(message)
        assert await fails.code() == grpc.StatusCode.UNKNOWN
        assert await other.read() == b"here"
        await other.write(b"fail")
        assert await other.code() == grpc.StatusCode.UNKNOWN


async def test_a_message_that_is_too_long_ends_its_stream(tmp_path, left):
    async with serving(tmp_path / "s", left, most_bytes=MIB) as (_, call):
        fits, too_long = call(), call()
        await fits.write(b"x" * MIB)
        assert len(await fits.read()) == MIB
        await too_long.write(b"x" * (MIB + 1))
        assert await too_long.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_server_that_stops_lets_streams_end_and_takes_no_new_ones(tmp_path, left):
    async with serving(tmp_path / "s", left) as (server, call):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
        runs = call()
        await runs.write(b"here")
        assert await runs.read() == b"here"
        stopping = asyncio.create_task(server.stop(60))
        await until(lambda: not (tmp_path / "s").exists(), "the socket is gone")
        refused = call()
        assert await refused.code() == grpc.StatusCode.UNAVAILABLE
        await runs.write(b"end")
        assert await runs.read() == b"end"
        await stopping


async def test_a_server_that_stops_breaks_what_does_not_end(tmp_path, left):
    async with serving(tmp_path / "s", left) as (server, call):
        waits = call()
        await waits.write(b"wait")
        await waits.write(b"here")
        assert await waits.read() == b"here"
        await server.stop(0.01)
        assert await waits.code() == grpc.StatusCode.UNAVAILABLE
        assert await left.get() == 1


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_as_the_server_stops_is_closed(tmp_path, left, turns):
    server = GrpcStreamServer(tmp_path / "s", lambda stream: Echo(stream, left), most_bytes=MIB)
    await server.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop(0)
        client.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1024):  # a connection that was made begins with settings
                pass


async def test_the_socket_of_an_earlier_process_is_replaced(tmp_path, left):
    (tmp_path / "s").touch()
    async with serving(tmp_path / "s", left) as (_, call):
        stream = call()
        await stream.write(b"end")
        assert await stream.read() == b"end"


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written, self.is_closed = b"", False

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def frames(self):
        """What was written since the last call: type, flags, stream and payload of each frame."""
        found, self.written = [], self.written
        while self.written:
            size, kind, flags = int.from_bytes(self.written[:3]), self.written[3], self.written[4]
            found.append((kind, flags, int.from_bytes(self.written[5:9]), self.written[9 : 9 + size]))
            self.written = self.written[9 + size :]
        return found


@pytest.fixture
def transport():
    return FakeTransport()


@pytest.fixture
def connection(transport, left):
    made = GrpcConnection(lambda stream: Echo(stream, left), most_bytes=MIB, lost=lambda _: None)
    made.connection_made(transport)
    return made


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def message(text):
    return struct.pack(">BI", 0, len(text)) + text


def received(frames):
    """The messages of one stream."""
    joined, found = b"".join(payload for kind, _, _, payload in frames if kind == DATA), []
    while joined:
        size = int.from_bytes(joined[1:5])
        found.append(joined[5 : 5 + size])
        joined = joined[5 + size :]
    return found


OPENED = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0x4, 1, b"not decoded")


async def test_frames_may_come_in_any_pieces(connection, transport):
    whole = OPENED + frame(DATA, 0, 1, message(b"one")[:6]) + frame(DATA, 0, 1, message(b"one")[6:] + message(b"two"))
    for byte in whole:
        connection.data_received(bytes((byte,)))
    frames = transport.frames()
    assert received(frames) == [b"one", b"two"]
    assert [kind for kind, *_ in frames][:3] == [SETTINGS, WINDOW_UPDATE, SETTINGS]


async def test_padding_priorities_and_unknown_frames_are_skipped(connection, transport):
    padded = bytes((3,)) + message(b"one") + b"\0\0\0"
    connection.data_received(OPENED + frame(2, 0, 1, b"12345") + frame(0xB, 0, 0, b"new") + frame(DATA, 0x8, 1, padded))
    assert received(transport.frames()) == [b"one"]


async def test_a_ping_is_answered_with_its_payload(connection, transport):
    connection.data_received(OPENED + frame(PING, 0, 0, b"12345678") + frame(PING, 1, 0, b"an ack.."))
    assert transport.frames()[-1] == (PING, 1, 0, b"12345678")


async def test_no_more_is_sent_than_the_client_has_room_for(connection, transport):
    text = b"x" * (FIRST_WINDOW - 5)
    connection.data_received(OPENED + b"".join(frame(DATA, 0, 1, part) for part in parts(message(text))))
    connection.data_received(frame(DATA, 0, 1, message(b"end")))
    frames = transport.frames()
    assert sum(len(payload) for kind, *_, payload in frames if kind == DATA) == FIRST_WINDOW
    assert max(len(payload) for *_, payload in frames) == MOST_FRAME_BYTES
    connection.data_received(frame(WINDOW_UPDATE, 0, 1, (100).to_bytes(4)))
    assert transport.frames() == []
    connection.data_received(frame(WINDOW_UPDATE, 0, 0, (3).to_bytes(4)))
    assert [payload for *_, payload in transport.frames()] == [message(b"end")[:3]]
    connection.data_received(frame(WINDOW_UPDATE, 0, 0, (100).to_bytes(4)))
    assert [(kind, flags) for kind, flags, *_ in transport.frames()] == [(DATA, 0), (HEADERS, 0x5)]


async def test_a_setting_changes_the_windows_of_streams_that_run(connection, transport):
    connection.data_received(OPENED + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2)))
    connection.data_received(frame(DATA, 0, 1, message(b"end")))
    assert [payload for kind, *_, payload in transport.frames() if kind == DATA] == [message(b"end")[:2]]
    connection.data_received(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100)))
    acknowledged, rest, trailers = transport.frames()
    assert acknowledged[:2] == (SETTINGS, 1), "the client knows before more comes than it had room for"
    assert (rest[3], trailers[0]) == (message(b"end")[2:], HEADERS)


@pytest.mark.parametrize("last", [frame(DATA, 0, 1, message(b"end")), frame(RST_STREAM, 0, 1, b"\0\0\0\x08")])
async def test_a_stream_that_is_over_leaves_nothing_to_collect(transport, left, last):
    made = []

    def accept(stream):
        handler = Echo(stream, left)
        made.append(weakref.ref(handler))
        return handler

    gc.disable()
    try:
        connection = GrpcConnection(accept, most_bytes=MIB, lost=lambda _: None)
        connection.connection_made(transport)
        connection.data_received(OPENED + frame(DATA, 0, 1, message(b"one")))
        assert made[0]() is not None
        connection.data_received(last)
        assert made[0]() is None
    finally:
        gc.enable()


async def test_nothing_is_sent_to_a_stream_that_is_over(connection, transport, left):
    connection.data_received(OPENED + frame(DATA, 0, 1, message(b"wait")) + frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert left.get_nowait() == 1
    transport.frames()
    connection.data_received(frame(DATA, 0, 1, message(b"late")) + frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert transport.frames() == []
    assert left.empty()


async def test_a_client_that_ends_a_stream_is_told_that_it_is_over(connection, transport, left):
    connection.data_received(OPENED + frame(DATA, 0, 1, message(b"wait")) + frame(DATA, 0x1, 1))
    kind, flags, _, payload = transport.frames()[-1]
    assert (kind, flags, payload[-13:]) == (HEADERS, 0x5, b"grpc-status\x011")
    assert left.get_nowait() == 1


async def test_a_stream_fails_once_and_not_when_it_is_over(transport, left):
    made = []

    def accept(stream):
        made.append(stream)
        return Echo(stream, left)

    connection = GrpcConnection(accept, most_bytes=MIB, lost=lambda _: None)
    connection.connection_made(transport)
    connection.data_received(OPENED + frame(HEADERS, 0x4, 3))
    connection.data_received(frame(DATA, 0, 3, message(b"end")))
    transport.frames()
    for stream in [*made, *made]:
        stream.fail()
    ((kind, flags, number, payload),) = transport.frames()
    assert (kind, flags, number, payload[-13:]) == (HEADERS, 0x5, 1, b"grpc-status\x012")


async def test_a_handler_that_cannot_end_breaks_no_other_stream(transport):
    class Stubborn:
        def received(self, message): ...

        def left(self):
            raise RuntimeError("as requested")

    connection = GrpcConnection(lambda _: Stubborn(), most_bytes=MIB, lost=lambda _: None)
    connection.connection_made(transport)
    connection.data_received(OPENED + frame(RST_STREAM, 0, 1, b"\0\0\0\x08") + frame(PING, 0, 0, b"12345678"))
    assert transport.frames()[-1][0] == PING
    connection.data_received(frame(HEADERS, 0x4, 3))
    connection.connection_lost(None)
    assert connection.closed.is_set()


async def test_first_answers_do_not_wait_for_all_requests_that_came_together(connection, transport):
    many = b"".join(
        frame(HEADERS, 0x4, number) + frame(DATA, 0, number, message(b"end")) for number in range(3, 203, 2)
    )
    written = []
    transport.write = written.append
    connection.data_received(OPENED + many)
    assert len(written) > 10
    assert b"".join(written).count(b"grpc-status") == 100


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: picker\r\n\r\n",
        OPENED + frame(DATA, 0, 1, b"x" * (MOST_FRAME_BYTES + 1)),
        OPENED + frame(SETTINGS, 0, 0, b"odd"),
        OPENED + frame(WINDOW_UPDATE, 0, 0, b"odd"),
        OPENED + frame(DATA, 0x8, 1),
        OPENED + frame(DATA, 0x8, 1, b"\x03\0\0"),
    ],
)
async def test_what_is_no_http2_ends_the_connection(connection, transport, sent):
    connection.data_received(sent)
    assert transport.is_closed
    kind, _, _, payload = transport.frames()[-1]
    assert (kind, payload[4:]) == (GOAWAY, (1).to_bytes(4))


def parts(whole):
    return [whole[at : at + MOST_FRAME_BYTES] for at in range(0, len(whole), MOST_FRAME_BYTES)]
