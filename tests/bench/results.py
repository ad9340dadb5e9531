"""From what a run measured to tables: medians over rounds, ratios to the best peer, fractions of the machine's limit.

Pure. A result file is one JSON document: ceilings of the run, and per engine a list of rounds, each a figure by name.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity. scale: from seconds (or bytes) to the unit; more: a larger one is better."""

    key: str
    title: str
    unit: str
    scale: float = 1.0
    more: bool = False


FIGURES: Final = (
    Figure(key="w1_sampled_tpot", title="W1 sampled, time per output token, one stream", unit="ms", scale=1e3),
    Figure(key="w2_sampled_rate", title="W2 sampled, 32 mixed", unit="tokens/s", more=True),
    Figure(key="w1_tpot", title="W1 time per output token, one stream", unit="ms", scale=1e3),
    Figure(key="w1_ttft", title="W1 first token, prompt of 128", unit="ms", scale=1e3),
    Figure(key="w2_rate", title="W2 32 mixed", unit="tokens/s", more=True),
    Figure(key="w2_pause", title="W2 longest pause in a stream", unit="s"),
    Figure(key="w3_wall", title="W3 32 requests, shared prefix of 1,024", unit="s"),
    Figure(key="w4_cold", title="W4 first token, prompt of 4,096, cold", unit="s"),
    Figure(key="w4_warm", title="W4 the same and 64 more, warm", unit="s"),
    Figure(key="start", title="start to ready", unit="s"),
    Figure(key="ready_rss", title="memory until ready (peak RSS)", unit="MiB", scale=1 / 2**20),
    Figure(key="rss", title="memory in the workloads (peak RSS)", unit="MiB", scale=1 / 2**20),
    Figure(key="logits", title="error of logprobs in the same run", unit="of torch's in bfloat16"),
)
"""What the tables show, in order."""


def of_round(
    workloads: Mapping[str, Mapping[str, Any]], start_s: float, ready_rss: int, peak_rss: int
) -> dict[str, float]:
    """The figures of one round of one engine, from the documents of `kvasir bench` by workload."""
    found = {"start": start_s, "ready_rss": float(ready_rss), "rss": float(peak_rss)}
    if "w1_sampled" in workloads:
        found["w1_sampled_tpot"] = workloads["w1_sampled"]["tpot_s"]["median"]
    if "w2_sampled" in workloads:
        found["w2_sampled_rate"] = workloads["w2_sampled"]["output_tokens_per_s"]
    if "w1" in workloads:
        found["w1_tpot"] = workloads["w1"]["tpot_s"]["median"]
        found["w1_ttft"] = workloads["w1"]["ttft_s"]["median"]
    if "w2" in workloads:
        found["w2_rate"] = workloads["w2"]["output_tokens_per_s"]
        found["w2_pause"] = workloads["w2"]["itl_s"]["maximum"]
    if "w3" in workloads:
        found["w3_wall"] = workloads["w3"]["wall_s"]
    if "w4" in workloads:
        found["w4_cold"], found["w4_warm"] = workloads["w4"]["ttft_values_s"]
    return found


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure that every round has."""
    keys = set(rounds[0]).intersection(*rounds[1:]) if rounds else set()
    return {key: statistics.median(one[key] for one in rounds) for key in keys}


def goodness(figure: Figure, value: float, other: float) -> float:
    """How many times as good a value is as the other: above 1 is better."""
    return value / other if figure.more else other / value


def side_by_side(
    engines: Mapping[str, Sequence[Mapping[str, float]]], limits: Mapping[str, Mapping[str, float]]
) -> str:
    """A Markdown table: a column an engine, values with the fraction of the limit; our column ends with the ratio.

    limits: by engine, then by figure, in the figure's own unit of seconds or rate. Of each figure the best is bold.
    """
    found = {name: medians(rounds) for name, rounds in engines.items()}
    lines = ["| | " + " | ".join(found) + " |", "|---|" + "---|" * len(found)]
    for figure in FIGURES:
        values = {name: own[figure.key] for name, own in found.items() if figure.key in own}
        if not values:
            continue
        best = (max if figure.more else min)(values.values())
        cells = [_cell(figure, values.get(name), best, limits.get(name, {}).get(figure.key)) for name in found]
        lines.append(f"| {figure.title}, {figure.unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(figure: Figure, value: float | None, best: float, limit: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value * figure.scale:.3g}" if value * figure.scale < 1000 else f"{value * figure.scale:,.0f}"
    text = f"**{text}**" if value == best else text
    return text if limit is None else f"{text} ({goodness(figure, value, limit):.2f})"


def bare(seconds: float, peak: int) -> str:
    """What a bare import of torch costs, which start and memory of our server contain."""
    return f"a bare `import torch` took {seconds:.2f} s and {peak / 2**20:.0f} MiB"


def ratios(engines: Mapping[str, Sequence[Mapping[str, float]]], ours: str, peers: Sequence[str]) -> dict[str, float]:
    """By figure, how many times as good we are as the best of the peers, medians against medians."""
    found = {name: medians(rounds) for name, rounds in engines.items()}
    out = {}
    for figure in FIGURES:
        theirs = [found[name][figure.key] for name in peers if figure.key in found.get(name, {})]
        if theirs and figure.key in found.get(ours, {}):
            best = (max if figure.more else min)(theirs)
            out[figure.key] = goodness(figure, found[ours][figure.key], best)
    return out


def of_greedy(engines: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """A line for each sampled figure: how many times as good as the greedy one it is, by engine; 1 is no cost."""
    found = {name: medians(rounds) for name, rounds in engines.items()}
    lines = []
    for figure in FIGURES:
        greedy = figure.key.replace("_sampled", "")
        both = {name: own for name, own in found.items() if {figure.key, greedy} <= own.keys()}
        if greedy != figure.key and both:
            ratios = [f"{name} {goodness(figure, own[figure.key], own[greedy]):.2f}" for name, own in both.items()]
            lines.append(f"{figure.title}, of greedy: {', '.join(ratios)}.")
    return "\n".join(lines)


def compared(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Fractions of the limit of this run and of the committed one, and their ratio; below 0.9 stands out."""
    lines = [f"{'of the limit':<44}{'now':>8}{'before':>8}{'ratio':>8}"]
    for figure in FIGURES:
        if figure.key in now and figure.key in before:
            ratio = now[figure.key] / before[figure.key]
            note = "  slower" if ratio < 0.9 else ""
            lines.append(f"{figure.title:<44}{now[figure.key]:>8.2f}{before[figure.key]:>8.2f}{ratio:>8.2f}{note}")
    return "\n".join(lines)
