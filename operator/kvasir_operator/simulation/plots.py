"""Plots of simulated scenarios: what was needed, and how many pods each rule had. Needs matplotlib."""

from collections.abc import Sequence
from io import BytesIO
from typing import Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from kvasir_operator.simulation.fleet import SLICE_S
from kvasir_operator.simulation.scenarios import Scenario
from kvasir_operator.simulation.simulate import SimulationRow

EVERY: Final = 10
"""Slices between two points."""


def draw(scenario: Scenario, rows: Sequence[SimulationRow]) -> bytes:
    """One scenario as SVG; the same rows give the same bytes."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kvasir"
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for row in rows:
        points = row.created[::EVERY]
        minutes = [EVERY * SLICE_S * i / 60 for i in range(len(points))]
        axes.step(minutes, points, where="post", label=row.by, linewidth=2.2 if row.by == "kvasir" else 1.0)
    seconds = range(0, int(scenario.seconds), 5)
    axes.plot([s / 60 for s in seconds], [scenario.need(s) for s in seconds], "k:", label="needed", linewidth=1.0)
    axes.set(title=f"{scenario.name}: {scenario.about}", xlabel="minutes", ylabel="replicas")
    axes.title.set_fontsize(9)
    axes.legend(fontsize=7, ncols=2)
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(figure)
    return drawn.getvalue()
