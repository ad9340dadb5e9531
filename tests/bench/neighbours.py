"""How a server treats those it serves when others misbehave, on the tiny model over loopback: `make bench-neighbours`.

One server for each scenario. Prints each figure beside its goal; --write keeps them in docs/benchmarks/neighbours.md.
The exit code is 1 where a goal was missed.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
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
CONTEXT: Final = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """run: takes the server. args: of the server, beside those of all."""

    run: Callable[[Target], Coroutine[Any, Any, list[Figure]]]
    args: tuple[str, ...] = ()


def _all(length: float) -> dict[str, Scenario]:
    """By name. length: of each run, 1 for the figures that are kept."""
    many = ("--max-sequences", "1024", "--kv-cache-tokens", "1048576")
    long = ("--max-model-len", str(CONTEXT), "--kv-cache-tokens", str(3 * CONTEXT))
    load = overload.Load()
    found: dict[str, tuple[Callable[..., Coroutine[Any, Any, list[Figure]]], dict[str, Any], tuple[str, ...]]] = {
        "streams": (scenarios.streams, {"count": 1000, "seconds": 600 * length, "max_tokens": 200}, many),
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
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(_all(1))}; by default all")
    parser.add_argument("--length", type=float, default=1.0, help="of each run, as a share of the full one")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/neighbours.md")
    asked = parser.parse_args()
    known = _all(asked.length)
    for name in asked.scenarios:
        if name not in known:
            parser.error(f"there is no scenario {name}: {', '.join(known)}")
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        shape = checkpoints.Shape(max_position_embeddings=CONTEXT)
        model = checkpoints.write(Path(folder) / "tiny", shape)
        for name in asked.scenarios or known:
            with api_process(model, "--device", "cpu", *known[name].args, command=COMMAND) as server:
                figures = asyncio.run(known[name].run(target_of(server, "tiny")))
            found += figures
            print(*(line(figure) for figure in figures), sep="\n", flush=True)
    if asked.write:
        PAGE.write_text(rewritten(PAGE.read_text(), found, asked.length))
    return 0 if all(figure.is_met for figure in found) else 1


def target_of(server: ApiProcess, model: str) -> Target:
    """What scenarios need of a server."""
    return Target(model=model, http=server.http, ops=server.ops, pids=(server.process.pid, server.engine_pid))


def line(figure: Figure) -> str:
    """A row of the page's table."""
    value = f"{figure.value:,.0f}" if float(figure.value).is_integer() else f"{figure.value:,.2f}"
    verdict = "" if not figure.goal else "yes" if figure.is_met else "no"
    return f"| {figure.scenario} | {figure.name} | {value} {figure.unit}".rstrip() + f" | {figure.goal} | {verdict} |"


def rewritten(page: str, found: Sequence[Figure], length: float) -> str:
    """The page with these figures; those of scenarios that did not run stay."""
    kept = marked_page.split(page, MARKS)[1]
    ran = {figure.scenario for figure in found}
    rows = [row for row in kept.splitlines() if re.match(r"\| (?!load)", row) and row.split(" | ")[0][2:] not in ran]
    rows += [line(figure) for figure in found]
    part = "" if length == 1 else f", at {length:g} of the full length"
    said = f"{processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}{part}"
    table = "\n".join(["| load | figure | measured | goal | met |", "|---|---|---|---|---|", *rows])
    return marked_page.replaced(page, MARKS, f"{said}\n\n{table}")


if __name__ == "__main__":
    sys.exit(main())
