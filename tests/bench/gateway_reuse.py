"""What choosing by cost brings where customers share long prompts: real engines with a small model behind the gateway.

The shape is that of llm-d's b2b-saas benchmark, scaled down: customers with a system prompt and five users each, whose
questions come in any order; one replica's cache holds most of the system prompts, and all replicas together hold all.
"""

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench import gateway_rig
from bench.gateway_rig import GatewayProcesses, Replica
from bench.neighbour_scenarios import Figure
from fakes import checkpoints
from fakes.api_process import api_process

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime", "serve")
SHAPE: Final = checkpoints.Shape(
    hidden_size=192, num_layers=4, num_heads=6, num_kv_heads=2, head_dim=32, intermediate_size=512
)
STRATEGIES: Final = ("round-robin", "cost")
USERS: Final = 5
SYSTEM_TOKENS: Final = 2048
QUESTION_TOKENS: Final = 64
ANSWER_TOKENS: Final = 8
HELD_FRACTION: Final = 0.6
"""Of the system prompts of all customers, that the cache of one replica holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one strategy reached. available_tokens: of prompts, that some replica has computed before."""

    wall_s: float
    requests: int
    cached_tokens: int
    available_tokens: int


async def reuse(*, customers: int, turns: int, at_once: int, rounds: int) -> list[Figure]:
    """The strategies in turns, each with prompts that none before had."""
    found: dict[str, list[Run]] = {strategy: [] for strategy in STRATEGIES}
    with _engines(2, customers) as pods:
        for seed in range(rounds):
            for strategy in STRATEGIES:
                async with gateway_rig.gateway(strategy=strategy) as front:
                    await front.serve(pods)
                    prompts = _prompts(customers, turns, f"{seed} {strategy}")
                    found[strategy].append(await _run(front, prompts, customers, at_once))
    of = f"{customers} customers, {rounds} rounds"
    rates, shares = dict[str, float](), dict[str, float]()
    for strategy, runs in found.items():
        rates[strategy] = sum(run.requests for run in runs) / sum(run.wall_s for run in runs)
        shares[strategy] = sum(run.cached_tokens for run in runs) / sum(run.available_tokens for run in runs)
    by = rates["cost"] / rates["round-robin"]
    figures = [
        Figure(scenario=of, name=f"of the available reuse, {name}", value=100 * share, unit="%")
        for name, share in shares.items()
    ]
    return [
        *figures,
        Figure(scenario=of, name="requests a second by round robin's", value=by, goal="> 1", is_met=by > 1),
    ]


async def _run(front: GatewayProcesses, prompts: Sequence[list[int]], customers: int, at_once: int) -> Run:
    url, cached = f"http://127.0.0.1:{front.address[1]}/v1/completions", 0
    left = iter(prompts)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def client() -> None:
            nonlocal cached
            for prompt in left:
                body: dict[str, Any] = {"model": gateway_rig.MODEL, "prompt": prompt, "max_tokens": ANSWER_TOKENS}
                async with session.post(url, json=body | {"temperature": 0, "ignore_eos": True}) as response:
                    assert response.status == 200, await response.text()
                    usage = (await response.json())["usage"]
                    cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(at_once)))
        wall_s = time.monotonic() - began
    available = (len(prompts) - customers) * SYSTEM_TOKENS
    return Run(wall_s=wall_s, requests=len(prompts), cached_tokens=cached, available_tokens=available)


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
def _engines(count: int, customers: int) -> Iterator[list[Replica]]:
    tokens = round(customers * SYSTEM_TOKENS * HELD_FRACTION)
    options = ("--device", "cpu", "--kv-cache-tokens", str(tokens), "--max-model-len", str(2 * SYSTEM_TOKENS))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = checkpoints.write(Path(folder) / gateway_rig.MODEL, SHAPE)
        started = [stack.enter_context(api_process(model, *options, command=COMMAND)) for _ in range(count)]
        yield [
            Replica(name=f"engine-{number}", http_port=server.http[1], ops_port=server.ops[1])
            for number, server in enumerate(started)
        ]
