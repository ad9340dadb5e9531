"""The gateway's choice of replicas before simulated pods: `make bench-routing`.

Runs `kvasir gateway simulate --all` and writes docs/benchmarks/gateway.{jsonl,md}. Nothing is timed: the same tree
gives the same bytes on any machine.
"""

import json
from pathlib import Path
from typing import Any, Final

from bench import held_eta
from kvasir_gateway.choose import STRATEGIES, Strategy
from kvasir_gateway.simulation.simulate import rows
from kvasir_gateway.simulation.workloads import WORKLOADS

FOLDER: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
HELD_OUT: Final = (101, 7)
PICKERS: Final = (2, 4)
GOAL: Final = 1.05
HEAD: Final = """# Routing: figures of simulated replicas

Written by `make bench-routing`, which runs `kvasir gateway simulate --all --json`: equal bytes each time, nothing is
timed. How a replica is chosen is in [the gateway](../gateway.md), the lines are in [gateway.jsonl](gateway.jsonl).
`cost` is the picker's own code with its own index of prefixes, fed by readings every half second; replicas are a model
of the engine's steps with a KV cache, prompts in chunks and the rates that an engine measures. There are eight of them,
each as fast as Qwen3-32B on two H100 (ten in `code`; half of those in `uneven` are three times slower).

TTFT is in seconds. Reuse is the share of the prompt tokens that were computed before, by any replica, and were found in
the cache of the one that was chosen; eviction alone keeps it below 1. Tokens per second are those of the second half of
the arrivals. No number in the choice was tuned on these workloads; the last columns of the first table have other
arrivals and lengths. Reuse by real engines is [measured](gateway-load.md) too.

"""
TOGETHER: Final = """Each knows what the replicas report, and 2 ms later what the others have sent. One run differs
from another by chance: of three (seeds 1, 101 and 7) the mean p99 of four is 1.16 times that of one in `b2b`, 1.11 in
`long-short` and at most 1.08 elsewhere, and reuse is at most 0.4 points apart; of 28 (1 to 7, 11 to 30 and 101) it is
1.03 times in `b2b`, and of 8 others (23 to 30) 0.99 times in `long-short`. The goal of at most 1.1 times, and of at
most 2 points of reuse, counts as met by these: three runs do not tell it from chance.
"""


def main() -> None:
    """Everything, in the order of the catalogue."""
    names = [workload.name for workload in WORKLOADS]
    asked: list[tuple[str, Strategy, int]] = [(name, by, 1) for name in names for by in STRATEGIES]
    asked += [(name, "cost", pickers) for name in names for pickers in PICKERS]
    done = list(rows(asked, processes=2))
    pair: tuple[Strategy, ...] = ("cost", "round-robin")
    unseen = {
        seed: list(rows([(name, by, 1) for name in names for by in pair], processes=2, seed=seed)) for seed in HELD_OUT
    }
    lines = [json.dumps(row, separators=(",", ":")) for row in done]
    lines += [
        json.dumps({**row, "seed": seed}, separators=(",", ":")) for seed, found in unseen.items() for row in found
    ]
    (FOLDER / "gateway.jsonl").write_text("\n".join(lines) + "\n")
    found = {(row["workload"], row["by"], row["pickers"]): row for row in done}
    held_out = [{(row["workload"], row["by"]): row for row in found} for found in unseen.values()]
    (FOLDER / "gateway.md").write_text(f"{HEAD}{page(names, found, held_out)}\n{held_eta.page()}")


def page(
    names: list[str],
    found: dict[tuple[str, str, int], dict[str, Any]],
    held_out: list[dict[tuple[str, str], dict[str, Any]]],
) -> str:
    """Mean TTFT by that of round robin, the figures of each workload, and several pickers."""
    ratios: list[list[Any]] = [
        ["workload", "tokens/s by round robin's", "TTFT by round robin's", *["other arrivals: TTFT"] * len(held_out)]
    ]
    for name in names:
        mine, turns = found[name, "cost", 1], found[name, "round-robin", 1]
        ttfts = [(mine, turns), *((other[name, "cost"], other[name, "round-robin"]) for other in held_out)]
        tokens = mine["output_tokens_per_s"] / turns["output_tokens_per_s"]
        ratios.append(
            [name, f"{tokens:.2f}", *(f"{one['ttft_mean_s'] / two['ttft_mean_s']:.3f}" for one, two in ttfts)]
        )
    several: list[list[Any]] = [["workload", "pickers", "reuse_fraction", "ttft_mean_s", "ttft_p99_s"]]
    several += [
        [name, pickers, *(found[name, "cost", pickers][figure] for figure in several[0][2:])]
        for name in names
        for pickers in (1, *PICKERS)
    ]
    above = [f"{name} ({value})" for name, _, *values in ratios[1:] for value in values if float(value) > GOAL]
    parts = ["## Beside round robin\n", table(ratios)]
    parts += [f"\nThe goal is a TTFT of at most {GOAL} times round robin's. Above it: {', '.join(above) or 'none'}."]
    parts += ["\n## Several gateways\n"]
    parts += [TOGETHER, table(several)]
    for workload in WORKLOADS:
        lines = [found[workload.name, by, 1] for by in STRATEGIES]
        figures = [figure for figure in lines[0] if figure not in {"workload", "pickers"}]
        rows_of = [figures, *([row[figure] for figure in figures] for row in lines)]
        parts.append(f"\n## {workload.name}\n\n{workload.about}\n\n{table(rows_of)}")
    return "\n".join(parts) + "\n"


def table(cells: list[list[Any]]) -> str:
    """A table in Markdown; the first line is its head."""
    lines = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    main()
