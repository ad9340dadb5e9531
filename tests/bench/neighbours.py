"""How a server treats those it serves when others misbehave, on the tiny model over loopback: `make bench-neighbours`.

One server for each scenario. Prints each figure beside its goal; --write keeps them in docs/benchmarks/neighbours.md.
The exit code is 1 where a goal was missed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import marked_page, overload
from bench import neighbour_scenarios as scenarios
from bench.cpu import processor
from bench.neighbour_scenarios import Figure, Target
from fakes import checkpoints
from fakes.api_process import ApiProcess, api_process

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime", "serve")
PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "neighbours.md"
MARKS: Final = ("<!-- measured: written by make bench-neighbours -->", "<!-- end of measured -->")
HEADER: Final = "| scenario | load | figure | measured | goal | met |\n|---|---|---|---|---|---|\n"
CONTEXT: Final = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """run: takes the server. args: of the server, beside those of all."""

    run: Callable[[Target], Coroutine[Any, Any, list[Figure]]]
    args: tuple[str, ...] = ()


def catalogue(length: float) -> dict[str, Scenario]:
    """By name. length: of each run, 1 for the figures that are kept."""
    many = ("--max-sequences", "1024", "--kv-cache-tokens", "1048576")
    filled = (*many, "--kv-cache-tokens", "524288", "--max-batch-tokens", str(scenarios.MOST_STEP_TOKENS))
    long = ("--max-model-len", str(CONTEXT), "--kv-cache-tokens", str(3 * CONTEXT))
    load = overload.Load()
    found: dict[str, tuple[Callable[..., Coroutine[Any, Any, list[Figure]]], dict[str, Any], tuple[str, ...]]] = {
        "streams": (scenarios.streams, {"count": 1000, "seconds": 600 * length, "max_tokens": 200}, filled),
        "aborts": (scenarios.aborts, {"count": round(10_000 * length), "at_once": 64, "longest_s": 0.3}, many),
        "slow-readers": (
            scenarios.slow_readers,
            {
                "count": 100,
                "bytes_per_s": 10,
                "others": 8,
                "max_tokens": max(2, round(2000 * length)),
                "slow_tokens": 4000,
            },
            many,
        ),
        "long-prompts": (
            scenarios.long_prompts,
            {"tokens": 100_000, "requests": max(1, round(200 * length)), "pause_s": 0.1},
            long,
        ),
        "storm": (overload.storm, {"load": load, "seconds": 60 * length, "settle_s": 30 * length, "factor": 5}, ()),
        "goodput": (overload.goodput, {"load": load, "seconds": 300 * length, "factor": 3}, ()),
    }
    return {name: Scenario(run=partial(run, **asked), args=args) for name, (run, asked, args) in found.items()}


def main() -> int:
    """Runs what was asked for, one scenario after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(catalogue(1))}; by default all")
    parser.add_argument("--length", type=float, default=1.0, help="of each run, as a share of the full one")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/neighbours.md")
    asked = parser.parse_args()
    known = catalogue(asked.length)
    for name in asked.scenarios:
        if name not in known:
            parser.error(f"there is no scenario {name}: {', '.join(known)}")
    found: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shape = checkpoints.Shape(max_position_embeddings=CONTEXT)
        model = checkpoints.write(Path(folder) / "tiny", shape)
        for name in asked.scenarios or known:
            with api_process(model, "--device", "cpu", *known[name].args, command=COMMAND) as server:
                found[name] = asyncio.run(known[name].run(target_of(server, "tiny")))
            print(*(line(name, figure) for figure in found[name]), sep="\n", flush=True)
    if asked.write:
        PAGE.write_text(rewritten(PAGE.read_text(), found, asked.length))
    return 0 if all(figure.is_met for figures in found.values() for figure in figures) else 1


def target_of(server: ApiProcess, model: str) -> Target:
    """What scenarios need of a server."""
    return Target(model=model, http=server.http, ops=server.ops, pids=(server.process.pid, server.engine_pid))


def line(name: str, figure: Figure) -> str:
    """A row of the page's table. name: of the scenario."""
    value = f"{figure.value:,.0f}" if float(figure.value).is_integer() else f"{figure.value:,.2f}"
    verdict = "" if not figure.goal else "yes" if figure.is_met else "no"
    measured = f"{value} {figure.unit}".rstrip()
    return f"| {name} | {figure.scenario} | {figure.name} | {measured} | {figure.goal} | {verdict} |"


def rewritten(page: str, found: Mapping[str, Sequence[Figure]], length: float, marks: marked_page.Marks = MARKS) -> str:
    """The page with these figures, and where and when each scenario ran; those that did not run stay. found: by the
    scenario's name."""
    said, _, rows = marked_page.split(page, marks)[1].partition(HEADER)
    kept = [row for row in rows.splitlines() if row and row.split(" | ")[0].removeprefix("| ") not in found]
    kept += [line(name, figure) for name, figures in found.items() for figure in figures]
    where: dict[str, list[str]] = {}
    for machine, _, measured in (one.removeprefix("- ").rpartition(": ") for one in said.splitlines() if one):
        where[machine] = [name for name in measured.split(", ") if name not in found]
    part = "" if length == 1 else f", at {length:g} of the full length"
    where.setdefault(f"{processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}{part}", []).extend(found)
    machines = [f"- {machine}: {', '.join(measured)}" for machine, measured in where.items() if measured]
    return marked_page.replaced(page, marks, "\n".join([*machines, "", *HEADER.splitlines(), *kept]))


if __name__ == "__main__":
    sys.exit(main())
