"""Writes what a run measured into docs/benchmarks: cpu.json, the tables between two marks of cpu.md, a plot as SVG."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import marked_page, results
from bench.engines import ENGINES

MEASURED: Final = ("<!-- measured: written by make bench-peers -->", "<!-- end of measured -->")
SCALING: Final = ("<!-- scaling: written by make bench-scaling -->", "<!-- end of scaling -->")
OURS: Final = {"bf16": "Kvasir", "int8": "Kvasir int8"}


def write(folder: Path, run: Mapping[str, Any]) -> None:
    """Put the figures of a run before those of other processors. Raises ValueError when cpu.md lacks the marks."""
    runs = kept(committed(folder), run)
    (folder / "cpu.json").write_text(json.dumps(runs, indent=1) + "\n")
    _between(folder / "cpu.md", MEASURED, "\n\n".join(section(one) for one in runs))
    for one in runs[:1]:
        _plot(folder / "cpu.svg", one)


def committed(folder: Path) -> list[dict[str, Any]]:
    """The runs in cpu.json, one for each processor, the newest first."""
    file = folder / "cpu.json"
    runs: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return runs


def kept(runs: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Runs with this one first; what it did not measure of its own processor stays."""
    same = [one for one in runs if one["processor"] == run["processor"]]
    shapes = {shape: found for one in same for shape, found in one["shapes"].items()} | run["shapes"]
    return [{**run, "shapes": shapes}, *(one for one in runs if one not in same)]


def write_scaling(folder: Path, run: Mapping[str, Any], tables: Sequence[str]) -> None:
    """The same for the figures by number of streams."""
    (folder / "scaling.json").write_text(json.dumps(run, indent=1) + "\n")
    said = f"Measured {run['date']} on {run['processor']}, {run['engine']}, by `make bench-scaling`."
    _between(folder / "cpu.md", SCALING, "\n\n".join([said, "![tokens a second by streams](scaling.svg)", *tables]))
    _plot_scaling(folder / "scaling.svg", run)


def _between(page: Path, marks: tuple[str, str], text: str) -> None:
    page.write_text(marked_page.replaced(page.read_text(), marks, text))


def section(run: Mapping[str, Any]) -> str:
    """Markdown: where and how, then a table and our ratios for each shape."""
    bare = results.bare(run["import_s"], run["import_rss"])
    lines = [
        f"### {run['processor']}",
        "",
        "Medians of all rounds; in parentheses the fraction of what that run's memory and processors allow; the best",
        f"of a row is bold. Here {bare}, which our start and memory contain.",
    ]
    for shape, found in run["shapes"].items():
        rounds = max(len(own) for own in found["rounds"].values())
        lines += [
            "",
            f"#### {shape}, {rounds} round{'s' if rounds > 1 else ''}, memory {found['read'] / 1e9:.0f} GB/s",
            "",
            f"Measured {found['date']} by `{found['command']}`.",
            "",
        ]
        lines += [results.side_by_side(found["rounds"], found["limits"]), ""]
        if sampled := results.of_greedy(found["rounds"]):
            lines += [sampled, ""]
        for precision, ours in OURS.items():
            ratios = _ratios(found, ours)
            said = [f"{figure.key} {ratios[figure.key]:.2f}" for figure in results.FIGURES if figure.key in ratios]
            if said:
                lines.append(f"{ours} against the best peer at {precision}, above 1 is better: {', '.join(said)}.")
    return "\n".join(lines)


def _ratios(found: Mapping[str, Any], ours: str) -> dict[str, float]:
    precision = ENGINES[ours].precision
    peers = [name for name in found["rounds"] if ENGINES[name].precision == precision and not name.startswith("Kvasir")]
    return results.ratios(found["rounds"], ours, peers)


def _plot(file: Path, run: Mapping[str, Any]) -> None:
    """Bars of our ratio to the best peer, per figure and shape; the line at 1 is the best peer."""
    bars = [
        (f"{figure.key.replace('_', ' ')}\n{shape}" + (" int8" if ours != "Kvasir" else ""), ratio, ours)
        for shape, found in run["shapes"].items()
        for ours in OURS.values()
        for figure in results.FIGURES
        if (ratio := _ratios(found, ours).get(figure.key)) is not None
    ]
    if not bars:
        return
    canvas, axes = _canvas(max(6.0, 0.62 * len(bars)))
    colours = ["#3b6ea5" if ours == "Kvasir" else "#8a9a5b" for _, _, ours in bars]
    drawn = axes.bar([name for name, _, _ in bars], [ratio for _, ratio, _ in bars], color=colours)
    axes.bar_label(drawn, fmt="%.2f", fontsize=7)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("times as good as the best peer")
    axes.tick_params(axis="x", labelsize=6)
    _saved(canvas, file)


def _plot_scaling(file: Path, run: Mapping[str, Any]) -> None:
    """Rates and ceilings over streams, both axes logarithmic."""
    canvas, axes = _canvas(6.0)
    for colour, (shape, points) in zip(("#3b6ea5", "#8a9a5b", "#a5643b"), run["shapes"].items(), strict=False):
        streams = [point["streams"] for point in points]
        axes.plot(streams, [point["rate"] for point in points], "o-", color=colour, label=shape)
        axes.plot(streams, [point["ceiling"] for point in points], "--", color=colour, label=f"{shape}, ceiling")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("streams at once")
    axes.set_ylabel("tokens a second")
    axes.legend(fontsize=7)
    _saved(canvas, file)


def _canvas(width: float) -> tuple[Any, Any]:
    """An empty figure of that many inches and its axes. Imported here: only --write needs the library."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kvasir"
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(width, 3.6))


def _saved(canvas: Any, file: Path) -> None:
    """Without a date, so that the same figures give the same file."""
    canvas.tight_layout()
    canvas.savefig(file, metadata={"Date": None})
