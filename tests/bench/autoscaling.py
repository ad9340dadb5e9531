"""The autoscaler's figures from simulated services: `make bench-autoscaling`.

Runs `kvasir simulate --all` and writes docs/benchmarks/autoscaling.{jsonl,md} and the plots. Nothing is timed: the same
tree gives the same bytes on any machine.
"""

import json
from pathlib import Path
from typing import Any, Final

from kvasir_operator.simulation.plots import draw
from kvasir_operator.simulation.scenarios import FIGURES, scenarios
from kvasir_operator.simulation.simulate import SimulationRow, pairs, rows

FOLDER: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
PLOTTED: Final = ("step", "diurnal", "llm-d-symmetric", "slots")
HEAD: Final = """# Autoscaling: figures of simulated services

Written by `make bench-autoscaling`, which runs `kvasir simulate --all --json`: equal bytes each time, nothing is timed.
What the figures mean is in [autoscaling](../autoscaling.md), the lines are in [autoscaling.jsonl](autoscaling.jsonl).
Pods are a queueing model. `kvasir` is the operator's own code; the peers are re-implemented from their documentation,
with the concurrency of the pods given to those that need one, and without the delays of their metrics pipelines.
The autoscaler was tuned with each scenario's own seed; rows with a seed are runs with other arrivals and
lengths, which nothing was tuned on.

"""
HELD_OUT: Final = (101, 102, 103)


def main() -> None:
    """Everything, in the order of the catalogue."""
    done = list(rows(pairs(), processes=2))
    unseen = {seed: list(rows(pairs(by=["kvasir"]), processes=2, seed=seed)) for seed in HELD_OUT}
    lines = [json.dumps(row.line, separators=(",", ":")) for row in done]
    (FOLDER / "autoscaling.jsonl").write_text("\n".join(lines) + "\n")
    parts = [HEAD]
    for scenario in scenarios():
        mine = [row for row in done if row.scenario == scenario.name]
        others = {seed: row for seed, found in unseen.items() for row in found if row.scenario == scenario.name}
        parts.append(f"## {scenario.name}\n\n{scenario.about}\n\n{table(mine, others)}\n")
        if scenario.name in PLOTTED:
            (FOLDER / f"autoscaling-{scenario.name}.svg").write_bytes(draw(scenario, mine))
            parts.append(f"![{scenario.name}](autoscaling-{scenario.name}.svg)\n")
    (FOLDER / "autoscaling.md").write_text("\n".join(parts))


def table(mine: list[SimulationRow], others: dict[int, SimulationRow]) -> str:
    """A row for each rule, and for each held-out seed."""
    runs = [(row.by, row) for row in mine] + [(f"kvasir, seed {seed}", row) for seed, row in others.items()]
    names = [name for name in FIGURES if any(name in row.figures for _, row in runs)]
    body: list[list[Any]] = [["by", *names], ["---"] * (len(names) + 1)]
    body += [[by, *(row.figures.get(name, "–") for name in names)] for by, row in runs]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in body)


if __name__ == "__main__":
    main()
