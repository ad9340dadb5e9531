"""Overload by the real openai client with its default retries: what is served during a storm, and how soon after it.

Requests come at random moments of a rate, whether or not earlier ones were answered. Called by `bench.neighbours`.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import openai

from bench.neighbour_scenarios import Figure, Target, quantile

CLOSED: Final = 16
"""Clients that send one request after the other, by which the capacity is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request. sent_s: when it was sent. first_s: to its first token, with all retries; -1 where it failed."""

    sent_s: float
    first_s: float = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One kind of requests. timeout_s: of the client, for each try."""

    prompt_tokens: int = 64
    max_tokens: int = 16
    timeout_s: float = 60.0


async def storm(
    target: Target, load: Load, *, seconds: float, settle_s: float, factor: float, seed: int = 1
) -> list[Figure]:
    """factor times the capacity for some seconds, then half of it.

    What is sent settle_s after the drop must be served as before it.
    """
    async with _client(target, load) as client:
        rate = await _capacity(client, target, load, seconds / 4)
        normal = await _offered(client, target, load, rate / 2, seconds / 2, seed)
        during = asyncio.create_task(_offered(client, target, load, rate * factor, seconds, seed + 1))
        await asyncio.sleep(seconds)
        dropped = time.monotonic()
        after = await _offered(client, target, load, rate / 2, 2 * settle_s, seed + 2)
        stormed = await during
    late = [one for one in after if one.sent_s >= dropped + settle_s]
    success = sum(one.first_s >= 0 for one in late) / max(1, len(late))
    usual_s, late_s = _p99(normal), _p99(late)
    name = f"{factor:g} times the capacity for {seconds:.0f} s, then half of it"
    share = sum(one.first_s >= 0 for one in stormed) / max(1, len(stormed))
    return [
        Figure(scenario=name, name="capacity", value=rate, unit="requests/s"),
        Figure(scenario=name, name="answered during the storm", value=100 * share, unit="%"),
        Figure(
            scenario=name,
            name=f"answered {settle_s:.0f} s after it",
            value=100 * success,
            unit="%",
            goal="≥ 99",
            is_met=success >= 0.99,
        ),
        Figure(
            scenario=name,
            name="p99 of the first token then, by that before",
            value=late_s / usual_s,
            goal="≤ 2",
            is_met=late_s <= 2 * usual_s,
        ),
    ]


async def goodput(target: Target, load: Load, *, seconds: float, factor: float, seed: int = 1) -> list[Figure]:
    """Requests a second whose first token comes in time, at a load beyond the capacity against the best at any load."""
    async with _client(target, load) as client:
        rate = await _capacity(client, target, load, seconds / 8)
        usual = await _offered(client, target, load, rate / 2, seconds / 8, seed)
        in_time_s = max(1.0, 4 * _p99(usual))
        found = {}
        for number, share in enumerate((0.6, 0.8, 1.0, 1.2, factor), 1):
            lasts_s = seconds if share == factor else seconds / 4
            ran = await _offered(client, target, load, share * rate, lasts_s, seed + number)
            found[share] = sum(0 <= one.first_s <= in_time_s for one in ran) / lasts_s
    best, under = max(found.values()), found[factor]
    name = f"{factor:g} times the capacity for {seconds:.0f} s"
    ratio = under / best if best else 0.0
    return [
        Figure(scenario=name, name="a first token is in time within", value=in_time_s, unit="s"),
        Figure(scenario=name, name="best goodput at any load", value=best, unit="requests/s"),
        Figure(scenario=name, name="goodput", value=under, unit="requests/s"),
        Figure(scenario=name, name="ratio", value=ratio, goal="≥ 0.9", is_met=ratio >= 0.9),
    ]


def _client(target: Target, load: Load) -> openai.AsyncOpenAI:
    host, port = target.http
    return openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", timeout=load.timeout_s)


async def _capacity(client: openai.AsyncOpenAI, target: Target, load: Load, seconds: float) -> float:
    """Requests a second that clients get who wait for each answer."""
    ends, count = time.monotonic() + seconds, 0

    async def one_after_the_other(number: int) -> None:
        nonlocal count
        while time.monotonic() < ends:
            count += (await _ask(client, target, load, number + count)).first_s >= 0

    began = time.monotonic()
    await asyncio.gather(*(one_after_the_other(number) for number in range(CLOSED)))
    return max(1, count) / (time.monotonic() - began)


async def _offered(
    client: openai.AsyncOpenAI, target: Target, load: Load, rate: float, seconds: float, seed: int
) -> list[Served]:
    """Requests at a rate for so long, answered or not. Returns when the last of them has ended."""
    rng, ends, asked = random.Random(seed), time.monotonic() + seconds, list[asyncio.Task[Served]]()
    due = time.monotonic()
    while due < ends:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.append(asyncio.create_task(_ask(client, target, load, len(asked))))
        due += rng.expovariate(rate)
    return await asyncio.gather(*asked)


async def _ask(client: openai.AsyncOpenAI, target: Target, load: Load, number: int) -> Served:
    sent, first_s, body = time.monotonic(), -1.0, target.body(load.prompt_tokens, load.max_tokens, number)
    try:
        stream = await client.completions.create(
            model=target.model,
            prompt=body["prompt"],
            max_tokens=load.max_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            if first_s < 0:
                first_s = time.monotonic() - sent
            done = any(choice.finish_reason for choice in chunk.choices)
        return Served(sent_s=sent, first_s=first_s if done else -1.0)
    except openai.OpenAIError:
        return Served(sent_s=sent)


def _p99(ran: Sequence[Served]) -> float:
    """Of those that were answered; infinite where none was."""
    answered = [one.first_s for one in ran if one.first_s >= 0]
    return quantile(0.99, answered) if answered else float("inf")
