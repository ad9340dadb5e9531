"""Many ops ports in one process, each of a pod under steady load: `python -m fakes.state_ports COUNT [idle]`.

It prints the ports on one line and serves until its input ends. Each read of a port is some seconds later for its pod:
requests have come and ended, tokens were computed, and the load is a little higher or lower than before. With idle
nothing happens any more.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from kvasir_api import state

CAPACITY: Final = 100_000
SEQUENCES: Final = 64
PROMPT, ANSWER = 500, 200
ENDED: Final = 4
"""Requests that end between two reads: no fewer than by which running falls, or fewer would have come than before."""
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "


def idle(number: int, reads: int) -> state.RuntimeState:
    """What a pod says whose requests have all ended before the first read."""
    ended = reading(number, 1)
    kv = state.KvState(capacity_tokens=CAPACITY, free_tokens=CAPACITY)
    totals = msgspec.structs.replace(ended.totals, completions=ended.totals.arrivals)
    return msgspec.structs.replace(ended, kv=kv, running=0, totals=totals, sequence_number=4 * reads)


def reading(number: int, reads: int) -> state.RuntimeState:
    """What the pod of that number says at that read; `RuntimeState` that contradicts nothing."""
    running = 8 + (number + reads) % 5
    ended, came = ENDED * reads, ENDED * reads + running
    pinned = running * (PROMPT + ANSWER // 2)
    totals = state.RequestTotals(
        arrivals=came,
        completions=ended,
        prompt_tokens=came * PROMPT,
        uncached_prompt_tokens=came * PROMPT,
        generation_tokens=ended * ANSWER,
        kv_token_seconds=float(ended * (PROMPT + ANSWER // 2) * 8),
    )
    return state.RuntimeState(
        phase="ready",
        kv=state.KvState(capacity_tokens=CAPACITY, pinned_tokens=pinned, free_tokens=CAPACITY - pinned),
        running=running,
        max_sequences=SEQUENCES,
        max_model_len=4096,
        totals=totals,
        rates=state.MeasuredRates(prefill_tokens_per_s=20_000.0, decode_step_s=0.02),
        decoded=state.DecodeTotals(steps=80 * reads, seconds=1.6 * reads, rows=800 * reads, kv_tokens=480_000 * reads),
        device="cpu",
        kernels="native",
    )


class StatePort(asyncio.Protocol):
    """One connection of a reader that sends one request at a time."""

    def __init__(self, number: int, reads: list[int], says: Callable[[int, int], state.RuntimeState]) -> None:
        self._number, self._reads, self._says, self._received = number, reads, says, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received.endswith(b"\r\n\r\n") or self._transport is None:
            return
        self._received = b""
        self._reads[self._number] += 1
        body = state.encode(self._says(self._number, self._reads[self._number]))
        self._transport.write(HEAD + str(len(body)).encode() + b"\r\n\r\n" + body)


async def main(count: int, says: Callable[[int, int], state.RuntimeState]) -> None:
    """Listen, print the ports, and serve until standard input ends."""
    loop, reads = asyncio.get_running_loop(), [0] * count
    servers = [
        await loop.create_server(lambda number=number: StatePort(number, reads, says), "127.0.0.1", 0)  # type: ignore[misc]
        for number in range(count)
    ]
    sys.stdout.write(" ".join(str(server.sockets[0].getsockname()[1]) for server in servers) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), idle if sys.argv[2:] == ["idle"] else reading))
