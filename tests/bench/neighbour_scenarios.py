"""What a server does to those it serves when others misbehave: each scenario is a load and a few figures with goals.

Called by `bench.neighbours` at full length and by a test for seconds; a scenario decides nothing about the server, and
knows it by its two ports and its processes.
"""

import asyncio
import json
import random
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from fakes import sse_stream
from fakes.sse_stream import Address

SETTLE_S: Final = 120.0
POLL_S: Final = 0.05
IDLE_POLLS: Final = 5
RAMP_FRACTION: Final = 0.1
"""Of a run, in which its streams begin: left out of the slope."""
MOST_STEP_TOKENS: Final = 1024
FILL_TOKENS: Final = 1024
FILLED_AT_ONCE: Final = 32
"""Requests with prompts of FILL_TOKENS that take all of the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that runs. pids: its processes, the API's and the engine's."""

    model: str
    http: Address
    ops: Address
    pids: tuple[int, int]

    def body(self, prompt_tokens: int, max_tokens: int, first: int = 5) -> dict[str, Any]:
        """A request of so many tokens. first: another one makes a prompt that shares nothing."""
        prompt = [first % 50 + 5, *(5 + place % 50 for place in range(prompt_tokens - 1))]
        return {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the page. value: of unit; is_met: whether it is within the goal, "" where it has none."""

    scenario: str
    name: str
    value: float
    unit: str = ""
    goal: str = ""
    is_met: bool = True


async def streams(target: Target, *, count: int, seconds: float, max_tokens: int) -> list[Figure]:
    """So many streams at once: each that ends is followed by another. Their lengths are drawn, max_tokens in the mean.

    What a server takes once and keeps is taken before: products are compiled for numbers of tokens in a step, pages of
    the KV cache are taken when they are first written, and those of the heap by a first wave of streams that is as
    long as the measured one, and of which one fewer runs after the other until none does.
    """
    await _compute_sizes(target)
    await _fill_cache(target)
    clock, seen, memory = asyncio.get_running_loop().time, [0, 0], list[tuple[float, float, float]]()

    async def client(number: int, ends: float) -> None:
        rng = random.Random(number)
        while clock() < ends:
            body = target.body(16, rng.randint(1, 2 * max_tokens - 1), number)
            one = await sse_stream.read(target.http, body)
            seen[0] += 1
            seen[1] += not one.is_whole

    async def sample() -> None:
        while True:
            api, engine = map(_rss_bytes, target.pids)
            memory.append((clock(), api, engine))
            await asyncio.sleep(min(1.0, seconds / 20))

    async def all_clients(seconds: float) -> None:
        ends = clock() + seconds
        await asyncio.gather(*(client(number, ends) for number in range(count)))

    await all_clients(seconds)
    seen[0] = 0
    sampling = asyncio.create_task(sample())
    await all_clients(seconds)
    sampling.cancel()
    times, *processes = zip(*memory[int(len(memory) * RAMP_FRACTION) :], strict=True)
    api, engine = (slope(list(zip(times, held, strict=True))) * 3600 / 1e6 for held in processes)
    name, growth = f"{count:,} streams at once for {seconds:,.0f} s", api + engine
    return [
        Figure(scenario=name, name="streams that ended", value=seen[0]),
        Figure(scenario=name, name="broken", value=seen[1], goal="0", is_met=seen[1] == 0),
        Figure(scenario=name, name="growth of memory, of the API process", value=api, unit="MB/h"),
        Figure(scenario=name, name="growth of memory, of the engine", value=engine, unit="MB/h"),
        Figure(scenario=name, name="growth of memory", value=growth, unit="MB/h", goal="≤ 1", is_met=growth <= 1),
    ]


async def aborts(target: Target, *, count: int, at_once: int, longest_s: float, seed: int = 1) -> list[Figure]:
    """Clients that go away at random moments: in the middle of a request, before the first token, or in the answer."""
    rng = random.Random(seed)
    await _settled(target)
    descriptors, tasks = partial(_num_descriptors, target), partial(_num_tasks, target)
    before = await _least(descriptors), await _least(tasks)
    gate = asyncio.Semaphore(at_once)

    async def client(after_s: float, sent: float, tokens: int) -> None:
        async with gate:
            await sse_stream.leave(target.http, target.body(tokens, 400, tokens), after_s, sent)

    plans = [
        (rng.uniform(0, longest_s), 1.0 if rng.random() < 0.9 else rng.random(), rng.randint(2, 200))
        for _ in range(count)
    ]
    await asyncio.gather(*(client(*plan) for plan in plans))
    await sse_stream.read(target.http, target.body(4, 1))  # connections are accepted in their order
    state = await _settled(target)
    blocks = state["kv"]["pinned_tokens"] // state["kv"]["block_size"]
    figures = {
        "blocks that stay pinned": blocks,
        "requests that stay open": state["running"] + state["waiting"] + state["server_load"],
        "descriptors more than before": await _least(descriptors, before[0]) - before[0],
        "tasks of the event loop more than before": await _least(tasks, before[1]) - before[1],
    }
    name = f"{count:,} aborts at random moments"
    return [
        Figure(scenario=name, name=what, value=value, goal="0", is_met=value <= 0) for what, value in figures.items()
    ]


async def slow_readers(
    target: Target, *, count: int, bytes_per_s: int, others: int, max_tokens: int, slow_tokens: int
) -> list[Figure]:
    """Others' time between events beside clients that hardly read, and beside as many that do."""

    async def measured(background: Callable[[int], Awaitable[object]]) -> float:
        beside = [asyncio.create_task(_forever(background, number)) for number in range(count)]
        try:
            ran = await asyncio.gather(
                *(sse_stream.read(target.http, target.body(16, max_tokens, number)) for number in range(others))
            )
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        await _settled(target)
        return quantile(0.99, [gap for one in ran for gap in one.gaps_s])

    fast_s = await measured(lambda number: sse_stream.read(target.http, target.body(24, slow_tokens, number)))
    slow_s = await measured(
        lambda number: sse_stream.read_slowly(target.http, target.body(24, slow_tokens, number), bytes_per_s)
    )
    name = f"{count:,} readers of {bytes_per_s} bytes/s"
    ratio = slow_s / fast_s
    return [
        Figure(
            scenario=name, name="others' p99 between tokens beside as many that read", value=1e3 * fast_s, unit="ms"
        ),
        Figure(scenario=name, name="others' p99 between tokens", value=1e3 * slow_s, unit="ms"),
        Figure(scenario=name, name="ratio", value=ratio, goal="< 2", is_met=ratio < 2),
    ]


async def long_prompts(target: Target, *, tokens: int, requests: int, pause_s: float) -> list[Figure]:
    """Time to the first token of short prompts, alone and while one long prompt after the other is computed."""

    async def first_s() -> float:
        ran = []
        for number in range(requests):
            ran.append(await sse_stream.read(target.http, target.body(16, 2, number)))
            await asyncio.sleep(pause_s)
        return quantile(0.99, [one.first_s for one in ran])

    alone_s = await first_s()
    long = asyncio.create_task(_forever(lambda number: sse_stream.read(target.http, target.body(tokens, 1, number)), 0))
    try:
        await _until(lambda state: state["running"] > 0, target)
        beside_s = await first_s()
    finally:
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
    await _settled(target)
    name = f"short prompts beside prompts of {tokens:,} tokens"
    ratio = beside_s / alone_s
    return [
        Figure(scenario=name, name="p99 of the first token, alone", value=1e3 * alone_s, unit="ms"),
        Figure(scenario=name, name="p99 of the first token", value=1e3 * beside_s, unit="ms"),
        Figure(scenario=name, name="ratio", value=ratio, goal="≤ 3", is_met=ratio <= 3),
    ]


def quantile(q: float, values: Sequence[float]) -> float:
    """The least value that a share q of them does not exceed. Raises ValueError for none."""
    if not values:
        raise ValueError("no value was measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def _compute_sizes(target: Target) -> None:
    """Prompts that are alone in their steps, of each number of tokens that products are compiled for."""
    for size in [*range(1, 8), *(first << doubled for doubled in range(8) for first in range(8, 16))]:
        if size <= MOST_STEP_TOKENS:
            await sse_stream.read(target.http, target.body(size, 1, size))


async def _fill_cache(target: Target) -> None:
    """Prompts that share nothing, until no block of the KV cache is free."""
    kv = (await _settled(target))["kv"]
    most = 4 * (FILLED_AT_ONCE + kv["capacity_tokens"] // FILL_TOKENS)  # a busy server may refuse some
    for first in range(0, most, FILLED_AT_ONCE):
        bodies = [target.body(FILL_TOKENS, 1) for _ in range(FILLED_AT_ONCE)]
        for number, body in enumerate(bodies, first):
            body["prompt"][:3] = [5 + number // 50**place % 50 for place in range(3)]
        await asyncio.gather(*(sse_stream.read(target.http, body) for body in bodies))
        kv = (await _settled(target))["kv"]
        if not kv["free_tokens"]:
            return
    raise RuntimeError(f"{kv['free_tokens']} tokens of the KV cache stay free")


async def _forever(client: Callable[[int], Awaitable[object]], number: int) -> None:
    """One after the other; each with another prompt."""
    turn = 0
    while True:
        await client(number + 7 * turn)
        turn += 1
        await asyncio.sleep(0)


async def _settled(target: Target) -> dict[str, Any]:
    """The state once nothing is pinned and no request is open, several times in a row."""
    state: dict[str, Any] = {}
    for _ in range(IDLE_POLLS):
        state = await _until(_is_idle, target)
    return state


def _is_idle(state: dict[str, Any]) -> bool:
    return not (state["running"] or state["waiting"] or state["server_load"] or state["kv"]["pinned_tokens"])


async def _until(holds: Callable[[dict[str, Any]], bool], target: Target) -> dict[str, Any]:
    """Raises TimeoutError with the last state where it does not come."""
    state: dict[str, Any] = {}
    try:
        async with asyncio.timeout(SETTLE_S):
            while True:
                await asyncio.sleep(POLL_S)
                state = {**await _get(target.http, "/load"), **await _get(target.ops, "/state")}
                if holds(state):
                    return state
    except TimeoutError as error:
        raise TimeoutError(f"not in {SETTLE_S:.0f} s: {json.dumps(state)[:2000]}") from error


async def _get(address: Address, path: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(_url(address, path)) as response:
        found: dict[str, Any] = await response.json()
        return found


def _url(address: Address, path: str) -> str:
    return f"http://{address[0]}:{address[1]}{path}"


def _rss_bytes(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024.0 * int(status.partition("VmRSS:")[2].split()[0])


async def _least(count: Callable[[], Awaitable[int]], goal: int = 0) -> int:
    """The least number for a while, since connections that have just ended are closed a moment later.

    goal: as few are enough; without one a second is.
    """
    clock = asyncio.get_running_loop().time
    ends, least = clock() + (SETTLE_S if goal else 1.0), sys.maxsize
    while clock() < ends and least > goal:
        least = min(least, await count())
        await asyncio.sleep(POLL_S)
    return least


async def _num_descriptors(target: Target) -> int:
    """Open in all processes."""
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in target.pids)


async def _num_tasks(target: Target) -> int:
    """Of the API process, that of this scrape among them."""
    async with aiohttp.ClientSession() as session, session.get(_url(target.http, "/metrics")) as response:
        samples = re.findall(r"^kvasir_event_loop_tasks\{.*\} (\S+)$", await response.text(), re.MULTILINE)
    return int(float(samples[0]))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By least squares; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
