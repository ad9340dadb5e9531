"""The gateway's choice of replicas before simulated pods: `make bench-routing`.

Runs `kvasir gateway simulate --all` and writes docs/benchmarks/gateway.{jsonl,md}. Nothing is timed: the same tree
gives the same bytes on any machine.
"""

import json
from pathlib import Path
from typing import Any, Final

from kvasir_gateway.choose import STRATEGIES, Strategy
from kvasir_gateway.simulation.simulate import rows
from kvasir_gateway.simulation.workloads import WORKLOADS

FOLDER: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
HELD_OUT: Final = 101
PICKERS: Final = (4,)
GOAL: Final = 1.05
HEAD: Final = """# Routing: figures of simulated replicas

Written by `make bench-routing`, which runs `kvasir gateway simulate --all --json`: equal bytes each time, nothing is
timed. How a replica is chosen is in [the gateway](../gateway.md), the lines are in [gateway.jsonl](gateway.jsonl).
`cost` is the picker's own code with its own index of prefixes, fed by readings every half second; replicas are a model
of the engine's steps with a KV cache, prompts in chunks and the rates that an engine measures. There are eight of them,
each as fast as Qwen3-32B on two H100 (ten in `code`; half of those in `uneven` are three times slower).

TTFT is in seconds. Reuse is the share of the prompt tokens that were computed before, by any replica, and were found in
the cache of the one that was chosen; eviction alone keeps it below 1. Tokens per second are those of the second half of
the arrivals. No number in the choice was tuned on these workloads; the last column of the first table has other
arrivals and lengths.

"""


def main() -> None:
    """Everything, in the order of the catalogue."""
    names = [workload.name for workload in WORKLOADS]
    asked: list[tuple[str, Strategy, int]] = [(name, by, 1) for name in names for by in STRATEGIES]
    asked += [(name, "cost", pickers) for name in names for pickers in PICKERS]
    done = list(rows(asked, processes=2))
    pair: tuple[Strategy, ...] = ("cost", "round-robin")
    unseen = list(rows([(name, by, 1) for name in names for by in pair], processes=2, seed=HELD_OUT))
    lines = [json.dumps(row, separators=(",", ":")) for row in done]
    lines += [json.dumps({**row, "seed": HELD_OUT}, separators=(",", ":")) for row in unseen]
    (FOLDER / "gateway.jsonl").write_text("\n".join(lines) + "\n")
    found = {(row["workload"], row["by"], row["pickers"]): row for row in done}
    held_out = {(row["workload"], row["by"]): row for row in unseen}
    (FOLDER / "gateway.md").write_text(HEAD + page(names, found, held_out))


def page(
    names: list[str], found: dict[tuple[str, str, int], dict[str, Any]], held_out: dict[tuple[str, str], dict[str, Any]]
) -> str:
    """Mean TTFT by that of round robin, the figures of each workload, and several pickers."""
    ratios: list[list[Any]] = [
        ["workload", "TTFT by round robin's", "tokens/s by round robin's", "other arrivals: TTFT"]
    ]
    for name in names:
        mine, turns = found[name, "cost", 1], found[name, "round-robin", 1]
        other = held_out[name, "cost"]["ttft_mean_s"] / held_out[name, "round-robin"]["ttft_mean_s"]
        tokens = mine["output_tokens_per_s"] / turns["output_tokens_per_s"]
        ratios.append([name, f"{mine['ttft_mean_s'] / turns['ttft_mean_s']:.3f}", f"{tokens:.2f}", f"{other:.3f}"])
    several: list[list[Any]] = [["workload", "pickers", "reuse_fraction", "ttft_mean_s", "ttft_p99_s"]]
    several += [
        [name, pickers, *(found[name, "cost", pickers][figure] for figure in several[0][2:])]
        for name in names
        for pickers in (1, *PICKERS)
    ]
    above = [f"{name} ({value})" for name, *values in ratios[1:] for value in values[::2] if float(value) > GOAL]
    parts = ["## Beside round robin\n", table(ratios)]
    parts += [f"\nThe goal is a TTFT of at most {GOAL} times round robin's. Above it: {', '.join(above) or 'none'}."]
    parts += ["\n## Several gateways\n"]
    parts += ["Each knows what the replicas report, and not what the others have just sent.\n", table(several)]
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
