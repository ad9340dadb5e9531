"""What the real gateway takes and adds, over loopback: `make bench-gateway`.

A gateway of its own for each scenario. Prints each figure beside its goal; --write keeps those of each scenario in
docs/benchmarks/gateway-load.md as it ends. The exit code is 1 where a goal was missed.
"""

import argparse
import asyncio
import resource
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import gateway_costs as costs
from bench import gateway_rig, neighbours
from bench import gateway_scenarios as scenarios
from bench.gateway_changes import changes
from bench.gateway_replacements import replacements
from bench.gateway_reuse import reuse
from bench.neighbour_scenarios import Figure

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "gateway-load.md"
MARKS: Final = ("<!-- measured: written by make bench-gateway -->", "<!-- end of measured -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """run: takes the gateway and so many replicas; without any it starts its own. by_name: only when it is named."""

    run: Callable[..., Coroutine[Any, Any, list[Figure]]]
    replicas: int = 0
    by_name: bool = False


def catalogue(length: float) -> dict[str, Scenario]:
    """By name. length: of each run, 1 for the figures that are kept."""

    def part(full: int, least: int) -> int:
        return max(least, round(full * length))

    return {
        "rate": Scenario(run=partial(scenarios.rate, count=part(20_000, 500), at_once=32), replicas=2),
        "added": Scenario(run=partial(scenarios.added, streams=200, pairs=part(2000, 100)), replicas=2),
        "streams": Scenario(
            run=partial(scenarios.many_streams, streams=part(2000, 50), seconds=180 * length), replicas=2
        ),
        "memory": Scenario(run=partial(scenarios.memory, seconds=3600 * length), replicas=4, by_name=True),
        "hashing": Scenario(run=partial(costs.hashing, tokens=100_000, count=part(200, 5))),
        "relayed": Scenario(
            run=partial(costs.relayed, rounds=part(10, 1), at_once=100, pairs=part(1000, 50)), replicas=2
        ),
        "moved": Scenario(run=partial(scenarios.moved, keys=part(2000, 100)), replicas=8),
        "changes": Scenario(run=partial(changes, services=part(1000, 20), pods=4, count=part(40, 4))),
        "replacements": Scenario(
            run=partial(replacements, rollouts=part(20, 1), scale_downs=part(100, 2)), replicas=4, by_name=True
        ),
        "resumed": Scenario(
            run=partial(replacements, rollouts=part(20, 1), scale_downs=part(100, 2), resumes=True),
            replicas=4,
            by_name=True,
        ),
        "reuse": Scenario(
            run=partial(
                reuse,
                replicas=part(8, 2),
                customers=part(48, 12),
                turns=part(2, 1),
                at_once=part(16, 4),
                rounds=part(3, 1),
            ),
        ),
    }


async def measured(scenario: Scenario, *, profile: str = "") -> list[Figure]:
    """The figures of one scenario."""
    if not scenario.replicas:
        return await scenario.run()
    with gateway_rig.replicas(scenario.replicas) as pods:
        async with gateway_rig.gateway(profile=profile) as front:
            await front.serve(pods)
            return await scenario.run(front, pods)


def main() -> int:
    """Runs what was asked for, one scenario after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = ", ".join(catalogue(1))
    parser.add_argument("scenarios", nargs="*", help=f"of {named}; by default all but memory, replacements and resumed")
    parser.add_argument("--length", type=float, default=1.0, help="of each run, as a share of the full one")
    parser.add_argument("--profile", default="", help="a file for what Python's profiler counts in the picker")
    parser.add_argument("--write", action="store_true", help=f"keep the figures in docs/benchmarks/{PAGE.name}")
    asked = parser.parse_args()
    known = catalogue(asked.length)
    for name in asked.scenarios:
        if name not in known:
            parser.error(f"there is no scenario {name}: {', '.join(known)}")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[str, list[Figure]] = {}
    for name in asked.scenarios or (name for name, scenario in known.items() if not scenario.by_name):
        found[name] = asyncio.run(measured(known[name], profile=asked.profile))
        print(*(neighbours.line(name, figure) for figure in found[name]), sep="\n", flush=True)
        if asked.write:
            PAGE.write_text(neighbours.rewritten(PAGE.read_text(), {name: found[name]}, asked.length, MARKS))
    return 0 if all(figure.is_met for figures in found.values() for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
