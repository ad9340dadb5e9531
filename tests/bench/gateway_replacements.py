"""What clients notice of replicas that are replaced and leave, under streams of the official client at even moments.

Called by `bench.gateway` at full length and by a test for a moment. A replica leaves as the operator lets it: it
drains, which the gateway reads, and it is gone when its last answer has ended.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import aiohttp
import httpx
import openai

from bench.gateway_rig import MODEL, GatewayProcesses, Replica
from bench.neighbour_scenarios import Figure
from fakes.gateway import until
from kvasir_api import names

EVENTS: Final = 6
PAUSE_S: Final = 0.2
"""Between the events of a stream, so that it lasts a second."""
WHOLE: Final = "whole"
BROKEN: Final = "broken"


class Fleet:
    """The replicas that serve, and those that are spare. handed_over: streams that those which left have not ended."""

    def __init__(self, front: GatewayProcesses, pods: Sequence[Replica], spare: int) -> None:
        self._front = front
        self.serving, self.spare = list(pods[spare:]), list(pods[:spare])
        self.handed_over = 0

    async def add(self) -> None:
        """A spare replica serves."""
        self.serving.append(self.spare.pop(0))
        await self._front.serve(self.serving)

    async def remove(self) -> None:
        """The oldest one drains and leaves."""
        leaving = self.serving[0]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{leaving.ops_port}") as session:
            await (await session.post(names.PATH_DRAIN)).read()

            async def is_idle() -> bool:
                async with session.get(names.PATH_STATE) as response:
                    return bool(json.loads(await response.read())["running"] == 0)

            await asyncio.sleep(2 * PAUSE_S)
            await until(is_idle, f"the last stream of {leaving.name} has ended")
            await self._front.serve(self.serving[1:])
            self.handed_over += await (await session.delete(names.PATH_DRAIN)).json()
        self.spare.append(self.serving.pop(0))

    async def roll(self) -> None:
        """Each replica that serves is replaced, one after the other, by one more."""
        for _ in list(self.serving):
            await self.add()
            await self.remove()


async def replacements(
    front: GatewayProcesses,
    pods: Sequence[Replica],
    *,
    rollouts: int,
    scale_downs: int,
    per_s: float = 50.0,
    resumes: bool = False,
) -> list[Figure]:
    """Rolling updates of all replicas but one, and then times that one of them leaves, with one that comes between.
    resumes: streams may be, so that a replica that drains hands them over; else it ends what it answers."""
    fleet, seen, ends = Fleet(front, pods, spare=1), Counter[str](), asyncio.Event()
    await front.serve(fleet.serving)
    url = f"http://127.0.0.1:{front.address[1]}/v1"
    headers = {names.HEADER_RESUME: "1"} if resumes else {}
    async with openai.AsyncOpenAI(
        base_url=url, api_key="k", max_retries=0, timeout=600.0, default_headers=headers
    ) as client:
        load = asyncio.create_task(_streams(client, per_s, ends, seen))
        for _ in range(rollouts):
            await fleet.roll()
        for _ in range(scale_downs):
            await fleet.remove()
            await fleet.add()
        ends.set()
        await load
    of = f"{rollouts} rolling updates, {scale_downs} scale-downs, {per_s:.0f} streams/s"
    broken = seen.pop(BROKEN, 0)
    failed = {name: number for name, number in seen.items() if name != WHOLE}
    return [
        Figure(scenario=of, name="streams", value=seen.total() + broken),
        Figure(scenario=of, name="streams handed over to another replica", value=fleet.handed_over),
        Figure(
            scenario=of,
            name="errors that the openai client saw",
            value=sum(failed.values()),
            goal="0",
            is_met=not failed,
        ),
        Figure(scenario=of, name="streams that broke", value=broken, goal="0", is_met=not broken),
        *(Figure(scenario=of, name=f"of the errors: {name}", value=number) for name, number in failed.items()),
    ]


async def _streams(client: openai.AsyncOpenAI, per_s: float, ends: asyncio.Event, seen: Counter[str]) -> None:
    """Begin one at each moment, whatever became of those before."""
    began, number = time.monotonic(), 0
    async with asyncio.TaskGroup() as group:
        while not ends.is_set():
            await asyncio.sleep(max(0.0, number / per_s - (time.monotonic() - began)))
            group.create_task(_stream(client, number, seen))
            number += 1


async def _stream(client: openai.AsyncOpenAI, number: int, seen: Counter[str]) -> None:
    events = 0
    try:
        more = {"pause_s": PAUSE_S}
        asked = client.completions.create(
            model=MODEL, prompt=f"question {number}", max_tokens=EVENTS, stream=True, extra_body=more
        )
        async for chunk in await asked:
            events += bool(chunk.choices)
        seen[WHOLE if events == EVENTS + 1 else BROKEN] += 1
    except (openai.APIError, httpx.HTTPError) as error:  # httpx: of the transport, in mid-stream
        seen[BROKEN if events else f"{type(error).__name__} {error}"] += 1
