"""A gRPC server of streams for one client that is trusted: Envoy, over a unix socket that the pod's containers share.

For each stream grpcio takes half a millisecond in five threads, more than all that the picker does for a request; this
takes a tenth, in the event loop. It has the part of HTTP/2 (RFC 9113) that is needed for that. The socket has one
method, so that heads of requests are never decoded. Knows no message and nothing of what a stream is about.
"""

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from kvasir_gateway import unix_socket
from kvasir_kube import http_sites

LOG: Final = logging.getLogger(__name__)
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_FRAME_BYTES: Final = 1 << 14
"""Payload of a frame, both ways: what HTTP/2 begins with."""
MOST_WINDOW: Final = (1 << 31) - 1
FIRST_WINDOW: Final = (1 << 16) - 1
"""Bytes that either side may send on a connection, or on a stream, before the other one allows more."""
RENEWED_BYTES: Final = 1 << 30
"""So many received bytes are given back to the connection's window at once; that of a stream outlasts it."""
WRITTEN_AT_ONCE: Final = 16
"""Frames: the first answers do not wait for all that came with their requests."""
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
FRAME: Final = struct.Struct(">BHBBI")
"""Length in three bytes, type, flags, stream."""
MESSAGE: Final = struct.Struct(">BI")
"""Whether it is compressed, length."""
SETTING: Final = struct.Struct(">HI")
MOST_STREAMS, INITIAL_WINDOW = 3, 4
"""Of the settings, those that count here."""
NO_ERROR, PROTOCOL_ERROR = 0, 1
CANCELLED, UNKNOWN, RESOURCE_EXHAUSTED = b"1", b"2", b"8"
"""Of the codes of gRPC."""
HEAD: Final = b"\x88\x0f\x10\x10application/grpc"
""":status 200 and a content-type, as HPACK (RFC 7541) writes them without its table."""


class FrameType(IntEnum):
    """Those that count here; others are skipped."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


class StreamHandler(Protocol):
    """What becomes of one stream. Called in the event loop."""

    def received(self, message: bytes) -> None:
        """A message came. An exception ends the stream."""
        ...

    def left(self) -> None:
        """The client has ended the stream, or its connection, before the server has. No call follows."""
        ...


class GrpcStream:
    """The server's side of one stream."""

    __slots__ = ("connection", "handler", "id", "incoming", "is_begun", "is_ending", "outgoing", "window")

    def __init__(self, connection: "GrpcConnection", stream_id: int, window: int) -> None:
        self.connection, self.id, self.window = connection, stream_id, window
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.is_begun = self.is_ending = False
        self.handler: StreamHandler | None = None

    def send(self, message: bytes) -> None:
        """Send a message; nothing happens where the stream is over."""
        self.connection.send(self, message, ends=False)

    def end(self, message: bytes) -> None:
        """Send the last message, and that all went well."""
        self.connection.send(self, message, ends=True)

    def fail(self) -> None:
        """End the stream without an answer, for a fault that is logged; for calls outside of `received`."""
        self.connection.fail(self, UNKNOWN)


Accept = Callable[[GrpcStream], StreamHandler]


class GrpcConnection(asyncio.Protocol):
    """One connection. most_bytes: a longer message ends its stream. lost: called at its end.

    ended: it takes no new streams, and those that it had are over. closed: it is over.
    """

    def __init__(self, accept: Accept, *, most_bytes: int, lost: Callable[["GrpcConnection"], None]) -> None:
        self.ended, self.closed = asyncio.Event(), asyncio.Event()
        self._accept, self._most_bytes, self._lost = accept, most_bytes, lost
        self._transport: asyncio.Transport | None = None
        self._received, self._written = bytearray(), list[bytes]()
        self._has_preface, self._is_receiving, self._is_stopping = False, False, False
        self._streams: dict[int, GrpcStream] = {}
        self._blocked: dict[int, GrpcStream] = {}
        self._last_id, self._unrenewed = 0, 0
        self._window = self._stream_window = FIRST_WINDOW

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_stopping:
            self.abort()
        settings = SETTING.pack(MOST_STREAMS, MOST_WINDOW) + SETTING.pack(INITIAL_WINDOW, MOST_WINDOW)
        self._write(_frame(FrameType.SETTINGS, 0, 0, settings))
        self._write(_frame(FrameType.WINDOW_UPDATE, 0, 0, (MOST_WINDOW - FIRST_WINDOW).to_bytes(4)))

    def data_received(self, data: bytes) -> None:
        """As of asyncio.Protocol. What is no HTTP/2 ends the connection."""
        self._received += data
        self._is_receiving = True
        try:
            self._take_frames()
        except ValueError as error:
            LOG.warning("closed a connection of Envoy: %s", error)
            self._write(_goaway(self._last_id, PROTOCOL_ERROR))
            self._flush()
            self.close()
        finally:
            self._is_receiving = False
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- the reason changes nothing
        """As of asyncio.Protocol."""
        self._transport = None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            _leave(stream)
        self.ended.set()
        self.closed.set()
        self._lost(self)

    def send(self, stream: GrpcStream, message: bytes, *, ends: bool) -> None:
        """As of GrpcStream."""
        if stream.id not in self._streams or stream.is_ending:
            return
        if not stream.is_begun:
            stream.is_begun = True
            self._write(_frame(FrameType.HEADERS, END_HEADERS, stream.id, HEAD))
        stream.outgoing += MESSAGE.pack(0, len(message))
        stream.outgoing += message
        stream.is_ending = ends
        self._send_more(stream)

    def fail(self, stream: GrpcStream, code: bytes) -> None:
        """The stream is over; nothing happens where it was. code: of gRPC."""
        if stream.id in self._streams:
            stream.is_ending = True
            self._write(_trailers(stream.id, code, b"" if stream.is_begun else HEAD))
            self._forget(stream.id)

    def stop(self) -> None:
        """Take no new streams."""
        if not self._is_stopping:
            self._is_stopping = True
            self._write(_goaway(self._last_id, NO_ERROR))
            self._remove(0)

    def close(self) -> None:
        """End it after what was written."""
        if self._transport is not None:
            self._transport.close()

    async def drained(self) -> None:
        """Close it, stopped, as soon as its streams are over; returns when it is over."""
        await self.ended.wait()
        self.close()
        await self.closed.wait()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _take_frames(self) -> None:
        received, at = self._received, 0
        if not self._has_preface:
            if len(received) < len(PREFACE):
                return
            if not received.startswith(PREFACE):
                raise ValueError("it does not begin as HTTP/2 does")
            self._has_preface, at = True, len(PREFACE)
        while len(received) - at >= FRAME.size:
            high, low, kind, flags, stream_id = FRAME.unpack_from(received, at)
            begin = at + FRAME.size
            end = begin + (high << 16) + low
            if end - begin > MOST_FRAME_BYTES:
                raise ValueError(f"a frame has {end - begin} bytes, at most {MOST_FRAME_BYTES} are allowed")
            if len(received) < end:
                break
            self._take_frame(kind, flags, stream_id & MOST_WINDOW, bytes(received[begin:end]))
            at = end
        del received[:at]

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == FrameType.DATA:
            self._take_data(stream_id, flags, payload)
        elif kind == FrameType.HEADERS:
            self._take_head(stream_id, flags)
        elif kind == FrameType.RST_STREAM:
            self._forget(stream_id)
        elif kind == FrameType.WINDOW_UPDATE:
            self._widen(stream_id, _uint32(payload))
        elif kind == FrameType.SETTINGS and not flags & ACK:
            self._take_settings(payload)
        elif kind == FrameType.PING and not flags & ACK:
            self._write(_frame(FrameType.PING, ACK, 0, payload))

    def _take_head(self, stream_id: int, flags: int) -> None:
        """A stream begins; or its client has ended one."""
        if stream_id > self._last_id and not self._is_stopping:
            self._last_id = stream_id
            stream = self._streams[stream_id] = GrpcStream(self, stream_id, self._stream_window)
            stream.handler = self._accept(stream)
        if flags & END_STREAM and stream_id in self._streams:
            self.fail(self._streams[stream_id], CANCELLED)

    def _take_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._unrenewed += len(payload)
        if self._unrenewed >= RENEWED_BYTES:
            self._write(_frame(FrameType.WINDOW_UPDATE, 0, 0, self._unrenewed.to_bytes(4)))
            self._unrenewed = 0
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ending:
            return
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                raise ValueError("a frame is padding beyond its end")
            payload = payload[1 : len(payload) - payload[0]]
        stream.incoming += payload
        self._take_messages(stream)
        if flags & END_STREAM:
            self.fail(stream, CANCELLED)

    def _take_messages(self, stream: GrpcStream) -> None:
        incoming = stream.incoming
        while len(incoming) >= MESSAGE.size and not stream.is_ending:
            compressed, length = MESSAGE.unpack_from(incoming)
            end = MESSAGE.size + length
            if compressed or length > self._most_bytes:
                self.fail(stream, RESOURCE_EXHAUSTED)
            elif len(incoming) < end:
                return
            else:
                message = bytes(incoming[MESSAGE.size : end])
                del incoming[:end]
                try:
                    assert stream.handler is not None
                    stream.handler.received(message)
                except Exception:
                    LOG.exception("a request could not be answered")
                    self.fail(stream, UNKNOWN)

    def _take_settings(self, payload: bytes) -> None:
        if len(payload) % SETTING.size:
            raise ValueError(f"settings have {len(payload)} bytes")
        for name, value in SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
        self._write(_frame(FrameType.SETTINGS, ACK, 0))  # before anything that they allow
        self._send_blocked()

    def _widen(self, stream_id: int, by: int) -> None:
        if not stream_id:
            self._window += by
            self._send_blocked()
        elif stream := self._streams.get(stream_id):
            stream.window += by
            self._send_more(stream)

    def _send_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            self._send_more(stream)

    def _send_more(self, stream: GrpcStream) -> None:
        """What the windows allow; and the end, once all is sent."""
        outgoing = stream.outgoing
        while outgoing and (most := min(len(outgoing), MOST_FRAME_BYTES, stream.window, self._window)) > 0:
            self._write(_frame(FrameType.DATA, 0, stream.id, bytes(outgoing[:most])))
            del outgoing[:most]
            stream.window -= most
            self._window -= most
        if outgoing:
            self._blocked[stream.id] = stream
        else:
            self._blocked.pop(stream.id, None)
            if stream.is_ending:
                self._write(_trailers(stream.id, b"0"))
                self._remove(stream.id)
                stream.handler = None  # which refers to the stream: both are freed without a search for cycles

    def _forget(self, stream_id: int) -> None:
        """A stream ends before the server has ended it."""
        self._blocked.pop(stream_id, None)
        stream = self._remove(stream_id)
        if stream is not None:
            _leave(stream)

    def _remove(self, stream_id: int) -> GrpcStream | None:
        stream = self._streams.pop(stream_id, None)
        if self._is_stopping and not self._streams:
            self.ended.set()
        return stream

    def _write(self, data: bytes) -> None:
        self._written.append(data)
        if not self._is_receiving or len(self._written) >= WRITTEN_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """At once what was written while frames were taken."""
        if self._written and self._transport is not None:
            self._transport.write(b"".join(self._written))
        self._written.clear()


class GrpcStreamServer:
    """Listens on a unix socket. accept: returns what handles a new stream. Arguments as of GrpcConnection."""

    def __init__(self, path: Path, accept: Accept, *, most_bytes: int) -> None:
        self._path, self._accept, self._most_bytes = path, accept, most_bytes
        self._connections: set[GrpcConnection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; the socket of an earlier process is replaced."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._connection, self._path, backlog=unix_socket.BACKLOG
        )
        self._path.chmod(0o660)

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, and let running streams end within the grace."""
        if self._server is not None:
            await http_sites.stop_accepting(self._server)
            self._server.close()
            self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(connection.drained() for connection in self._connections))
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # for their ends

    def _connection(self) -> GrpcConnection:
        made = GrpcConnection(self._accept, most_bytes=self._most_bytes, lost=self._connections.discard)
        self._connections.add(made)
        return made


def _leave(stream: GrpcStream) -> None:
    handler, stream.handler = stream.handler, None
    if handler is not None:
        try:
            handler.left()
        except Exception:  # the other streams of the connection go on
            LOG.exception("a request that its client left could not be ended")


def _frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def _trailers(stream_id: int, code: bytes, head: bytes = b"") -> bytes:
    return _frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream_id, head + b"\x00\x0bgrpc-status\x01" + code)


def _goaway(last_id: int, code: int) -> bytes:
    return _frame(FrameType.GOAWAY, 0, 0, struct.pack(">II", last_id, code))


def _uint32(payload: bytes) -> int:
    if len(payload) != 4:
        raise ValueError(f"a frame of four bytes has {len(payload)}")
    return int.from_bytes(payload) & MOST_WINDOW
