"""What a replica that computes prompts for another one brings under mixed load: `make bench-roles`.

Two real engines with a small model behind the real gateway: in turns both serve all requests, and one of them has the
role of prompts, so that the other one draws all tokens. Requests come at random moments of a rate, whether or not
earlier ones were answered. Prints a table of both; --write keeps it in docs/benchmarks/roles.md.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from bench import gateway_rig, marked_page, shapes
from bench.cpu import processor
from bench.gateway_rig import GatewayProcesses, Replica
from bench.neighbour_scenarios import quantile
from fakes import checkpoints, sse_stream
from fakes.api_process import ApiProcess, api_process
from fakes.sse_stream import Address, StreamSeen
from kvasir_api import names

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime", "serve")
PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "roles.md"
MARKS: Final = ("<!-- measured: written by make bench-roles -->", "<!-- end of measured -->")
SHAPE: Final = checkpoints.Shape(
    hidden_size=384,
    intermediate_size=1536,
    num_layers=6,
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=8192,
    dtype=torch.bfloat16,
)
"""19 million weights: a prompt of 2,048 tokens takes one core a good second."""
SERVICES: Final = {"both serve all": ("", ""), "one has the role": ("", names.SERVING_ROLE_PREFILL)}
"""Roles of the two replicas in each service."""
CLIENTS: Final = 16
"""That wait for each answer, by which the capacity is measured."""
IN_TIME: Final = 5.0
"""Times an idle replica's: an answer counts for goodput whose first token, and whose mean time of a later token, take
no longer."""
IDLE_ANSWERS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKind:
    """Lengths in tokens."""

    prompt_tokens: int
    answer_tokens: int


CHAT: Final = RequestKind(prompt_tokens=64, answer_tokens=96)
DOCUMENT: Final = RequestKind(prompt_tokens=2048, answer_tokens=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLoad:
    """document_fraction: of requests, others are chats. load_fraction: of the capacity of two that serve all."""

    document_fraction: float
    load_fraction: float

    @property
    def said(self) -> str:
        """For a table."""
        return f"{100 * self.document_fraction:.0f} % documents, {100 * self.load_fraction:.0f} % of the capacity"


LOADS: Final = tuple(
    MixedLoad(document_fraction=document, load_fraction=load) for document in (0.1, 0.4) for load in (0.4, 0.8)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request and what its client saw."""

    kind: RequestKind
    seen: StreamSeen

    @property
    def token_s(self) -> float:
        """Mean seconds of a token after the first one."""
        return sum(self.seen.gaps_s) / (self.kind.answer_tokens - 1)


Limits = Mapping[RequestKind, tuple[float, float]]
"""Seconds to the first token, and of one after it, within which an answer of each kind is in time."""


def figures(ran: Sequence[Answered], seconds: float, limits: Limits, handed_over: int) -> dict[str, float]:
    """By name with unit. ran: all requests of a run, of each kind one at least. seconds: in which they were sent.
    handed_over: of their prompts. Raises ValueError for an answer that did not end as it should."""
    if broken := sum(not one.seen.is_whole for one in ran):
        raise ValueError(f"{broken} of {len(ran)} answers broke")
    first_s = {kind: [one.seen.first_s for one in ran if one.kind == kind] for kind in (CHAT, DOCUMENT)}
    gaps_s = [gap for one in ran for gap in one.seen.gaps_s]
    in_time = sum(one.seen.first_s <= limits[one.kind][0] and one.token_s <= limits[one.kind][1] for one in ran)
    return {
        "TTFT of chats, median [ms]": 1e3 * median(first_s[CHAT]),
        "TTFT of chats, p99 [ms]": 1e3 * quantile(0.99, first_s[CHAT]),
        "TTFT of documents, median [ms]": 1e3 * median(first_s[DOCUMENT]),
        "TTFT of documents, p99 [ms]": 1e3 * quantile(0.99, first_s[DOCUMENT]),
        "ITL, median [ms]": 1e3 * median(gaps_s),
        "ITL, p99 [ms]": 1e3 * quantile(0.99, gaps_s),
        "goodput [requests/s]": in_time / seconds,
        "prompts handed over [%]": 100 * handed_over / len(ran),
    }


def table(found: Mapping[MixedLoad, Mapping[str, Sequence[Mapping[str, float]]]]) -> str:
    """Of Markdown. found: of each load the runs of each of SERVICES."""
    lines = [f"| load | figure | {' | '.join(SERVICES)} | ratio |", "|---|---|---|---|---|"]
    for load, services in found.items():
        for name in next(iter(services.values()))[0]:
            columns = [sorted(run[name] for run in services[service]) for service in SERVICES]
            said = [f"{_digits(median(values))} ({_digits(values[0])}–{_digits(values[-1])})" for values in columns]
            alone, other = map(median, columns)
            ratio = f"{other / alone:.2f}" if alone else ""
            lines.append(f"| {load.said} | {name} | {' | '.join(said)} | {ratio} |")
    return "\n".join(lines)


def _digits(value: float) -> str:
    """Three of them."""
    return f"{float(f'{value:.3g}'):,g}"


async def measured(
    model: Path, loads: Iterable[MixedLoad], *, seconds: float, rounds: int
) -> dict[MixedLoad, dict[str, list[dict[str, float]]]]:
    """The figures of each load and service, a list of rounds. seconds: of each run; a part of it runs before."""
    found: dict[MixedLoad, dict[str, list[dict[str, float]]]] = {}
    with _engines(model) as servers:
        async with gateway_rig.gateway() as front:
            await _serve(front, servers, next(iter(SERVICES)))
            limits = {kind: await _limits(front.address, kind) for kind in (CHAT, DOCUMENT)}
            capacities = {
                fraction: await _capacity(front.address, fraction, seconds / 2)
                for fraction in sorted({load.document_fraction for load in loads})
            }
            for turn in range(rounds):
                for load in loads:
                    rate = load.load_fraction * capacities[load.document_fraction]
                    for service in SERVICES:
                        await _serve(front, servers, service)
                        seeds = f"{turn} {load}", f"{turn} {load} {service}"
                        await _offered(front.address, load, rate, seconds / 4, *(f"before {seed}" for seed in seeds))
                        before = _handed_over(servers)
                        ran = await _offered(front.address, load, rate, seconds, *seeds)
                        one = figures(ran, seconds, limits, _handed_over(servers) - before)
                        found.setdefault(load, {}).setdefault(service, []).append(one)
                        print(load.said, service, {name: round(value, 1) for name, value in one.items()}, flush=True)
    return found


async def _serve(front: GatewayProcesses, servers: Sequence[ApiProcess], service: str) -> None:
    await front.serve(
        Replica(name=f"engine-{number}", http_port=server.http[1], ops_port=server.ops[1], role=role)
        for number, (server, role) in enumerate(zip(servers, SERVICES[service], strict=True))
    )


async def _limits(address: Address, kind: RequestKind) -> tuple[float, float]:
    """IN_TIME of what one request after the other takes; the first one, which warms up, is not counted."""
    rng = random.Random(f"{kind}")
    ran = [Answered(kind=kind, seen=await sse_stream.read(address, _body(kind, rng))) for _ in range(IDLE_ANSWERS + 1)]
    return IN_TIME * median(one.seen.first_s for one in ran[1:]), IN_TIME * median(one.token_s for one in ran[1:])


async def _capacity(address: Address, document_fraction: float, seconds: float) -> float:
    """Requests a second that CLIENTS get who wait for each answer."""
    ends, count = time.monotonic() + seconds, 0

    async def client(number: int) -> None:
        nonlocal count
        rng = random.Random(f"client {number}")
        while time.monotonic() < ends:
            seen = await sse_stream.read(address, _body(_kind(document_fraction, rng), rng))
            count += seen.is_whole

    began = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return count / (time.monotonic() - began)


async def _offered(
    address: Address, load: MixedLoad, rate: float, seconds: float, arrival_seed: str, prompt_seed: str
) -> list[Answered]:
    """Requests at a rate for so long, first a document and a chat. Returns when the last one has ended.

    arrival_seed: the same one gives requests at the same moments; prompt_seed: another one gives other prompts.
    """
    arrivals, prompts = random.Random(arrival_seed), random.Random(prompt_seed)
    ends, asked = time.monotonic() + seconds, list[asyncio.Task[Answered]]()
    due = time.monotonic()

    async def ask(kind: RequestKind, body: Mapping[str, Any]) -> Answered:
        return Answered(kind=kind, seen=await sse_stream.read(address, body))

    while due < ends or len(asked) < 2:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        kind = (DOCUMENT, CHAT)[len(asked)] if len(asked) < 2 else _kind(load.document_fraction, arrivals)
        asked.append(asyncio.create_task(ask(kind, _body(kind, prompts))))
        due += arrivals.expovariate(rate)
    return await asyncio.gather(*asked)


def _kind(document_fraction: float, rng: random.Random) -> RequestKind:
    return DOCUMENT if rng.random() < document_fraction else CHAT


def _body(kind: RequestKind, rng: random.Random) -> dict[str, Any]:
    """A prompt that shares nothing with another one."""
    prompt = [rng.randrange(5, 250) for _ in range(kind.prompt_tokens)]
    asked = {"model": gateway_rig.MODEL, "prompt": prompt, "max_tokens": kind.answer_tokens}
    return asked | {"temperature": 0, "ignore_eos": True}


def _handed_over(servers: Iterable[ApiProcess]) -> int:
    return sum(server.state()["kv_host"]["handed_over_prompts"] for server in servers)


@contextlib.contextmanager
def _engines(model: Path) -> Iterator[list[ApiProcess]]:
    """Two, each with one thread and a tier of its own, as on two nodes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        key = Path(folder) / "key"
        key.write_text("a key that both replicas have....\n")
        started = []
        for name in ("one", "two"):
            options = ("--device", "cpu", "--kv-cache-tokens", "65536", "--max-model-len", "4096")
            tier = ("--kv-host-bytes", "500000000", "--kv-host-dir", str(Path(folder) / name))
            peers = ("--kv-transfer-port", "0", "--continuation-key-file", str(key))
            started.append(stack.enter_context(api_process(model, *options, *tier, *peers, command=COMMAND)))
        yield started


def main() -> None:
    """Prints a table, and keeps it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in docs/benchmarks/{PAGE.name}")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = shapes.written(Path(folder) / gateway_rig.MODEL, SHAPE)
        found = asyncio.run(measured(model, LOADS, seconds=asked.seconds, rounds=asked.rounds))
    said = (
        f"{processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}, `python -m bench.roles --rounds {asked.rounds}"
        f" --seconds {asked.seconds:g}`; median (least–most)\n\n{table(found)}"
    )
    print(said)
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))


if __name__ == "__main__":
    main()
