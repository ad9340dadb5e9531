"""What the gateway adds to requests, and what it takes: each scenario is a load on a gateway before replicas without an
engine, and a few figures with goals.

Called by `bench.gateway` at full length and by a test for a moment.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles
from typing import Any, Final

import aiohttp

from bench.gateway_replacements import Fleet
from bench.gateway_rig import MODEL, GatewayProcesses, Replica
from bench.neighbour_scenarios import Figure, slope
from fakes import sse_stream
from kvasir_api import names

KIB: Final = 1024
SESSION: Final = "x-session-id"
STREAM_EVENTS: Final = 20
STREAM_PAUSE_S: Final = 0.2
WARM_REQUESTS: Final = 200
RAMP_S: Final = 0.005
MIX: Final = {"whole": 50, "stream": 20, "resumed": 15, "leaves": 8, "unknown": 4, "no JSON": 3}
"""Percent of the requests of `memory`. resumed: a stream that goes on elsewhere where its replica drains; leaves: the
client does, before its answer ends; unknown: the model is."""


async def rate(front: GatewayProcesses, _pods: Sequence[Replica], *, count: int, at_once: int) -> list[Figure]:
    """Requests with bodies of 8 kB, each as soon as one has ended. Counted by the processor seconds of the two
    processes, so that other load on the machine changes little."""
    url = f"http://127.0.0.1:{front.address[1]}/v1/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(number: int) -> None:
            async with session.post(url, json=_body(number, prompt_bytes=8 * KIB)) as response:
                assert response.status == 200, await response.text()
                await response.read()

        await _each(WARM_REQUESTS, at_once, ask)
        before, began = front.cpu_s(), time.monotonic()
        await _each(count, at_once, ask)
        wall, after = time.monotonic() - began, front.cpu_s()
    envoy, picker = (1000 * (after[name] - before[name]) / count for name in ("Envoy", "picker"))
    of = f"{count} requests of 8 kB"
    both = 1000 / (envoy + picker)
    return [
        Figure(scenario=of, name="requests a second per core", value=round(both), goal=">= 1,000", is_met=both >= 1000),
        Figure(scenario=of, name="Envoy, processor time of each", value=envoy, unit="ms"),
        Figure(scenario=of, name="picker, processor time of each", value=picker, unit="ms"),
        Figure(scenario=of, name="requests a second, all processes on this machine", value=round(count / wall)),
    ]


async def added(front: GatewayProcesses, pods: Sequence[Replica], *, streams: int, pairs: int) -> list[Figure]:
    """Time to the first event of streams one after the other, through the gateway and to a replica directly in turns,
    while others stream through the gateway."""
    ends = asyncio.Event()
    background = [asyncio.create_task(_stream_on(front, number, ends)) for number in range(streams)]
    through, direct = list[float](), list[float]()
    await asyncio.sleep(STREAM_EVENTS * STREAM_PAUSE_S)
    for number in range(pairs):
        sides = [(through, front.address), (direct, pods[number % len(pods)].address)]
        for times, address in sides if number % 2 else reversed(sides):
            seen = await sse_stream.read(address, _body(number, prompt_bytes=KIB, max_tokens=1, pause_s=0))
            assert seen.is_whole
            times.append(1000 * seen.first_s)
    ends.set()
    whole = [one for found in await asyncio.gather(*background) for one in found]
    of, own = f"{streams} streams", [a - b for a, b in zip(through, direct, strict=True)]
    p50, p99 = (_percentile(through, at) - _percentile(direct, at) for at in (50, 99))
    return [
        Figure(scenario=of, name="TTFT of a replica, p50", value=_percentile(direct, 50), unit="ms"),
        Figure(scenario=of, name="TTFT of a replica, p99", value=_percentile(direct, 99), unit="ms"),
        Figure(scenario=of, name="added to the p50", value=p50, unit="ms"),
        Figure(scenario=of, name="added to the p99", value=p99, unit="ms", goal="<= 15 ms", is_met=p99 <= 15),
        Figure(scenario=of, name="added in a pair, p50", value=_percentile(own, 50), unit="ms"),
        Figure(scenario=of, name="streams that broke", value=whole.count(False), goal="0", is_met=all(whole)),
    ]


async def many_streams(
    front: GatewayProcesses, _pods: Sequence[Replica], *, streams: int, seconds: float, events: int = 30
) -> list[Figure]:
    """So many at once for a while, an event a second each; one that ends is followed by another. The slope of memory is
    of the second half."""
    body = _body(0, prompt_bytes=KIB, max_tokens=events, pause_s=1.0)
    ends = asyncio.Event()
    tasks = []
    for number in range(streams):
        tasks.append(asyncio.create_task(_stream_on(front, number, ends, body)))
        await asyncio.sleep(RAMP_S)
    began, points = time.monotonic(), list[tuple[float, dict[str, float]]]()
    while (passed := time.monotonic() - began) < seconds:
        points.append((passed, front.rss_mib()))
        await asyncio.sleep(min(1.0, seconds / 10))
    ends.set()
    whole = [one for found in await asyncio.gather(*tasks) for one in found]
    late = [point for point in points if point[0] >= seconds / 2]
    of = f"{streams:,} streams"
    figures = [Figure(scenario=of, name="streams that ended", value=len(whole))]
    figures.append(Figure(scenario=of, name="broken", value=whole.count(False), goal="0", is_met=all(whole)))
    for name in ("Envoy", "picker"):
        per_minute = 60 * slope([(at, rss[name]) for at, rss in late])
        figures += [
            Figure(scenario=of, name=f"{name}, memory", value=max(rss[name] for _, rss in points), unit="MiB"),
            Figure(scenario=of, name=f"{name}, memory that it takes in a minute", value=per_minute, unit="MiB"),
        ]
    return figures


async def memory(
    front: GatewayProcesses,
    pods: Sequence[Replica],
    *,
    seconds: float,
    per_s: float = 25.0,
    change_s: float = 30.0,
    flat_share: float = 0.05,
) -> list[Figure]:
    """Requests of all kinds of MIX at even moments, and every half minute a replica that drains and leaves, or one that
    comes. flat_share: what a process may take in an hour, of what it has."""
    fleet = Fleet(front, pods, spare=0)

    async def leaves_and_returns() -> None:
        while True:
            for change in (fleet.remove, fleet.add):
                await asyncio.sleep(change_s)
                await change()

    began, points, number = time.monotonic(), list[tuple[float, dict[str, float]]](), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        changing, asked = group.create_task(leaves_and_returns()), set[asyncio.Task[bool]]()
        strange = 0
        while (passed := time.monotonic() - began) < seconds:
            await asyncio.sleep(max(0.0, number / per_s - passed))
            if number % round(per_s) == 0:
                points.append((passed / 3600, front.rss_mib()))
                ended = {task for task in asked if task.done()}
                asked -= ended
                strange += sum(not task.result() for task in ended)
            asked.add(group.create_task(_any_kind(front, session, number)))
            number += 1
        strange += [await task for task in asked].count(False)
        changing.cancel()
    of, late = f"{number:,} requests in {seconds / 60:.0f} minutes", points[len(points) // 2 :]
    figures = [
        Figure(scenario=of, name="answers that were not as expected", value=strange, goal="0", is_met=not strange)
    ]
    for name in points[0][1]:
        seen, taken = [rss[name] for _, rss in points], slope([(at, rss[name]) for at, rss in late])
        figures += [
            Figure(scenario=of, name=f"{name}, memory, {which}", value=value, unit="MiB")
            for which, value in (("least", min(seen)), ("median", median(seen)), ("most", max(seen)))
        ]
        goal = f"<= {100 * flat_share:.0f} % of it"
        of_hour = f"{name}, memory it takes in an hour"
        within = taken <= flat_share * max(seen)
        figures.append(Figure(scenario=of, name=of_hour, value=taken, unit="MiB", goal=goal, is_met=within))
    return figures


async def _any_kind(front: GatewayProcesses, session: aiohttp.ClientSession, number: int) -> bool:
    """One request of MIX; whether its answer is as expected. Every second session comes again."""
    draw = random.Random(number)
    kind = draw.choices(list(MIX), list(MIX.values()))[0]
    prompt_bytes = draw.choice((1, 3, 10, 30)) * KIB
    body = _body(number, prompt_bytes=prompt_bytes, max_tokens=draw.randint(1, 20), pause_s=STREAM_PAUSE_S)
    if kind in {"stream", "resumed"}:
        headers = {names.HEADER_RESUME: "1"} if kind == "resumed" else {}
        return (await sse_stream.read(front.address, body, **headers)).is_whole
    if kind == "leaves":
        await sse_stream.leave(front.address, body, after_s=2 * draw.random(), sent_fraction=min(1, 2 * draw.random()))
        return True
    sent = b"{" if kind == "no JSON" else json.dumps({**body, **({"model": "none"} if kind == "unknown" else {})})
    session_id = f"session-{number if number % 2 else draw.randrange(100)}"
    url = f"http://127.0.0.1:{front.address[1]}/v1/completions"
    async with session.post(
        url, data=sent, headers={"content-type": "application/json", SESSION: session_id}
    ) as response:
        await response.read()
        return response.status == {"unknown": 404, "no JSON": 400}.get(kind, 200)


async def moved(front: GatewayProcesses, pods: Sequence[Replica], *, keys: int) -> list[Figure]:
    """Sessions that get another replica when one leaves, of at least three: those of two have no choice."""
    url = f"http://127.0.0.1:{front.address[1]}/v1/completions"
    async with aiohttp.ClientSession() as session:

        async def places() -> list[str]:
            placed: dict[int, str] = {}

            async def ask(number: int) -> None:
                headers = {SESSION: f"session-{number}"}
                async with session.post(url, json=_body(number, prompt_bytes=KIB), headers=headers) as response:
                    placed[number] = response.headers["x-pod"]

            await _each(keys, 16, ask)
            return [placed[number] for number in range(keys)]

        before = await places()
        await front.serve(pods[1:])
        after = await places()
        await front.serve(pods)
    left = sum(one == pods[0].name for one in before)
    strays = sum(one not in (pods[0].name, other) for one, other in zip(before, after, strict=True))
    of = f"{keys} sessions, one of {len(pods)} replicas leaves"
    return [
        Figure(scenario=of, name="sessions of that replica", value=left),
        Figure(scenario=of, name="sessions of others that moved", value=strays, goal="0", is_met=strays == 0),
    ]


async def _stream_on(
    front: GatewayProcesses, number: int, ends: asyncio.Event, body: dict[str, Any] | None = None
) -> list[bool]:
    """One stream after the other until told to end; whether each was whole."""
    whole = []
    while not ends.is_set():
        asked = body or _body(number, prompt_bytes=KIB, max_tokens=STREAM_EVENTS, pause_s=STREAM_PAUSE_S)
        whole.append((await sse_stream.read(front.address, asked)).is_whole)
    return whole


async def _each(count: int, at_once: int, ask: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await ask(number)

    await asyncio.gather(*(client() for _ in range(at_once)))


def _body(number: int, *, prompt_bytes: int, **fields: Any) -> dict[str, Any]:
    """A prompt whose first half is the same for ten of them."""
    half = prompt_bytes // 2
    prompt = (f"group {number // 10} " * half)[:half] + (f"question {number} " * half)[:half]
    return {"model": MODEL, "prompt": prompt, "max_tokens": 1, **fields}


def _percentile(values: Sequence[float], at: int) -> float:
    return quantiles(values, n=100, method="inclusive")[at - 1]
