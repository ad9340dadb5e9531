"""What choosing by cost brings where customers share long prompts: real engines with a small model behind the gateway.

The shape is that of llm-d's b2b-saas benchmark, scaled down: customers with a system prompt and five users each, whose
questions come in any order; all that they send takes 73 % of the caches of all replicas together, so that each prompt
has room in one of them, and round robin, which needs all of them in each, has not.
"""

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench import gateway_rig
from bench.gateway_rig import GatewayProcesses, Replica
from bench.neighbour_scenarios import Figure
from fakes import checkpoints
from fakes.api_process import api_process
from kvasir_gateway.choose import Strategy

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime", "serve")
SHAPE: Final = checkpoints.Shape(
    hidden_size=192, num_layers=4, num_heads=6, num_kv_heads=2, head_dim=32, intermediate_size=512
)
KILLED: Final = "cost, picker killed"
RUNS: Final[dict[str, tuple[Strategy, int]]] = {
    "round-robin": ("round-robin", 1),
    "cost": ("cost", 1),
    "cost, 2 gateways": ("cost", 2),
    "cost, 4 gateways": ("cost", 4),
    KILLED: ("cost", 1),
}
"""What is compared: how replicas are chosen, and by how many gateways, which get requests in turns. The picker of the
last one is killed half way, and another one begins without any knowledge."""
GOALS: Final = {"cost": 97.0, "cost, 4 gateways": 95.0}
"""Percent of the available reuse."""
GOAL_RATE: Final = 2.1
"""Requests a second by round robin's, as llm-d publishes it for eight replicas."""
MOST_LOST: Final = 2.0
"""Percent of the available reuse by a picker that is killed."""
MOST_BLIND_S: Final = 2.0
AGAIN_S: Final = 0.1
"""Between two tries of a request, while there is no picker."""
USERS: Final = 5
SYSTEM_TOKENS: Final = 2048
QUESTION_TOKENS: Final = 64
ANSWER_TOKENS: Final = 8
RESIDENT_FRACTION: Final = 0.73
"""What all prompts and answers take of the caches of all replicas, as llm-d publishes it for b2b-saas."""
FOLLOWED_S: Final = 3.0
"""Until gateways that start together follow one another: three looks of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one strategy reached. available_tokens: of prompts, that some replica has computed before. blind_s: for
    which a new picker answered and had not read the replicas."""

    wall_s: float
    requests: int
    cached_tokens: int
    available_tokens: int
    blind_s: float


async def reuse(
    *,
    replicas: int,
    customers: int,
    turns: int,
    at_once: int,
    rounds: int,
    resident_fraction: float = RESIDENT_FRACTION,
) -> list[Figure]:
    """RUNS in turns, each with prompts that none before had. resident_fraction: see RESIDENT_FRACTION; a larger one
    leaves caches less room."""
    found: dict[str, list[Run]] = {name: [] for name in RUNS}
    needed = customers * (SYSTEM_TOKENS + USERS * turns * (QUESTION_TOKENS + ANSWER_TOKENS))
    with _engines(replicas, round(needed / resident_fraction / replicas)) as pods:
        for seed in range(rounds):
            for name, (strategy, count) in RUNS.items():
                async with _gateways(strategy, count, pods) as fronts:
                    prompts = _prompts(customers, turns, f"{seed} {name}")
                    killed = pods if name == KILLED else ()
                    found[name].append(await _run(fronts, prompts, customers, at_once, killed))
    of = f"{replicas} engines, {customers} customers, {rounds} rounds, {100 * resident_fraction:.0f} % of the caches"
    return _figures(of, found)


def _figures(of: str, found: Mapping[str, Sequence[Run]]) -> list[Figure]:
    """of: what was done. found: by the names of RUNS."""
    rates, shares = dict[str, float](), dict[str, float]()
    for name, runs in found.items():
        rates[name] = sum(run.requests for run in runs) / sum(run.wall_s for run in runs)
        shares[name] = 100 * sum(run.cached_tokens for run in runs) / sum(run.available_tokens for run in runs)

    def at_least(name: str, value: float, unit: str, least: float | None) -> Figure:
        goal, is_met = ("", True) if least is None else (f">= {least:g} {unit}".strip(), value >= least)
        return Figure(scenario=of, name=name, value=value, unit=unit, goal=goal, is_met=is_met)

    def at_most(name: str, value: float, unit: str, most: float) -> Figure:
        return Figure(scenario=of, name=name, value=value, unit=unit, goal=f"<= {most:g} {unit}", is_met=value <= most)

    return [
        *(at_least(f"of the available reuse, {name}", share, "%", GOALS.get(name)) for name, share in shares.items()),
        at_most("lost by a picker that is killed", shares["cost"] - shares[KILLED], "%", MOST_LOST),
        at_most("the next one is blind for, most", max(run.blind_s for run in found[KILLED]), "s", MOST_BLIND_S),
        at_least("requests a second by round robin's", rates["cost"] / rates["round-robin"], "", GOAL_RATE),
    ]


@contextlib.asynccontextmanager
async def _gateways(strategy: Strategy, count: int, pods: Sequence[Replica]) -> AsyncIterator[list[GatewayProcesses]]:
    """So many that choose as one."""
    async with contextlib.AsyncExitStack() as stack:
        running = [await stack.enter_async_context(gateway_rig.gateway(strategy=strategy)) for _ in range(count)]
        for front in running:
            front.follow(running)
            await front.serve(pods)
        await asyncio.sleep(FOLLOWED_S if count > 1 else 0.0)
        yield running


async def _run(
    fronts: Sequence[GatewayProcesses],
    prompts: Sequence[list[int]],
    customers: int,
    at_once: int,
    killed: Sequence[Replica],
) -> Run:
    """killed: replicas that a second picker gets half way, none where the first one lives."""
    urls = [f"http://127.0.0.1:{front.address[1]}/v1/completions" for front in fronts]
    cached, blind_s, left, half = 0, 0.0, enumerate(prompts), asyncio.Event()

    async def kill() -> None:
        nonlocal blind_s
        await half.wait()
        blind_s = await fronts[0].replace_picker(killed)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def client() -> None:
            nonlocal cached
            for number, prompt in left:
                if number == len(prompts) // 2:
                    half.set()
                usage = await _usage(session, urls[number % len(urls)], prompt, again=bool(killed))
                cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(at_once)), *([kill()] if killed else []))
        wall_s = time.monotonic() - began
    available = (len(prompts) - customers) * SYSTEM_TOKENS
    return Run(wall_s=wall_s, requests=len(prompts), cached_tokens=cached, available_tokens=available, blind_s=blind_s)


async def _usage(session: aiohttp.ClientSession, url: str, prompt: list[int], *, again: bool) -> dict[str, Any]:
    """What an answer counts. again: while there is no picker."""
    body = {"model": gateway_rig.MODEL, "prompt": prompt, "max_tokens": ANSWER_TOKENS}
    while True:
        async with session.post(url, json=body | {"temperature": 0, "ignore_eos": True}) as response:
            if response.status == 200:
                found: dict[str, Any] = (await response.json())["usage"]
                return found
            assert response.status == 503 * again, await response.text()
        await asyncio.sleep(AGAIN_S)


def _prompts(customers: int, turns: int, seed: str) -> list[list[int]]:
    """Of all questions, in any order."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(5, SHAPE.vocab_size) for _ in range(count)]

    systems = [tokens(SYSTEM_TOKENS) for _ in range(customers)]
    found = [system + tokens(QUESTION_TOKENS) for system in systems for _ in range(USERS * turns)]
    rng.shuffle(found)
    return found


@contextlib.contextmanager
def _engines(count: int, tokens: int) -> Iterator[list[Replica]]:
    """tokens: that the cache of each holds."""
    options = ("--device", "cpu", "--kv-cache-tokens", str(tokens), "--max-model-len", str(2 * SYSTEM_TOKENS))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = checkpoints.write(Path(folder) / gateway_rig.MODEL, SHAPE)
        started = [stack.enter_context(api_process(model, *options, command=COMMAND)) for _ in range(count)]
        yield [
            Replica(name=f"engine-{number}", http_port=server.http[1], ops_port=server.ops[1])
            for number, server in enumerate(started)
        ]
