"""One stream of a server over a socket of its own, read at any speed and left at any moment.

Cheap enough for a thousand at once in one process, which the openai client is not.
"""

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DONE: Final = b"data: [DONE]"
READ_EVERY_S: Final = 1.0
RECEIVE_BUFFER: Final = 4096
"""Bytes that the kernel holds for a slow reader, so that its speed reaches the server."""

Address = tuple[str, int]


@dataclass(slots=True)
class StreamSeen:
    """What a client saw. first_s: from its request to the first event; gaps_s: between two events."""

    status: int = 0
    num_events: int = 0
    first_s: float = -1.0
    gaps_s: list[float] = field(default_factory=list)
    has_reason: bool = False
    is_done: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it ended as a stream ends."""
        return self.status == 200 and self.has_reason and self.is_done


def head_and_body(address: Address, body: Mapping[str, Any], **headers: str) -> bytes:
    """A request for a completion, to be sent on a connection that the server closes."""
    raw = json.dumps({**body, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address[0]}\r\nconnection: close\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{head}content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw


async def read(address: Address, body: Mapping[str, Any], **headers: str) -> StreamSeen:
    """The whole stream, as fast as it comes. A connection that breaks leaves what was seen until then.

    headers: of the request, beside its own.
    """
    seen, clock = StreamSeen(), asyncio.get_running_loop().time
    began = last = clock()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head_and_body(address, body, **headers))
        seen.status = int((await reader.readline()).split()[1])
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            now = clock()
            if line.startswith(DONE):
                seen.is_done = True
                continue
            seen.has_reason |= b'"finish_reason":"' in line
            seen.num_events += 1
            if seen.first_s < 0:
                seen.first_s = now - began
            else:
                seen.gaps_s.append(now - last)
            last = now
    except (OSError, IndexError, ValueError):
        pass
    finally:
        if writer is not None:
            writer.transport.abort()
    return seen


async def leave(address: Address, body: Mapping[str, Any], after_s: float, sent_fraction: float = 1.0) -> None:
    """Send a request, or the first part of it, and reset the connection after a while, whatever came."""
    _, writer = await asyncio.open_connection(*address)
    request = head_and_body(address, body)
    writer.write(request[: max(1, round(len(request) * sent_fraction))])
    await asyncio.sleep(after_s)
    writer.transport.abort()


async def read_slowly(address: Address, body: Mapping[str, Any], bytes_per_s: int) -> int:
    """Read so many bytes once a second until cancelled or the stream ends. Returns how many bytes were read."""
    loop, count = asyncio.get_running_loop(), 0
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        await loop.sock_connect(connection, address)
        await loop.sock_sendall(connection, head_and_body(address, body))
        try:
            while part := await loop.sock_recv(connection, bytes_per_s):
                count += len(part)
                await asyncio.sleep(READ_EVERY_S)
        except OSError:
            pass
    return count
