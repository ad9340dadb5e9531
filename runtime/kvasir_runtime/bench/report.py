"""Figures for a person: the table in the usual order, and a plot of a distribution in characters. Pure."""

from collections.abc import Sequence
from typing import Final

from kvasir_runtime.bench.figures import Figures, Spread

BAR: Final = 50
NUM_BINS: Final = 12


def table(figures: Figures) -> str:
    """Counts, throughput, then times in milliseconds."""
    counts = [
        ("requests", f"{figures.requests - figures.failed} answered, {figures.failed} failed"),
        ("duration", f"{figures.wall_s:.2f} s"),
        ("prompt tokens", f"{figures.prompt_tokens:,} ({figures.cached_tokens:,} from the prefix cache)"),
        ("output tokens", f"{figures.output_tokens:,}"),
        ("throughput", f"{figures.requests_per_s:.2f} requests/s"),
        ("", f"{figures.output_tokens_per_s:.1f} output tokens/s"),
        ("", f"{figures.total_tokens_per_s:.1f} tokens/s with prompts"),
    ]
    lines = [f"{name:<16}{value}" for name, value in counts]
    lines.append(f"\n{'milliseconds':<34}{'mean':>10}{'median':>10}{'p99':>10}{'max':>10}")
    lines += [
        _row("time to first token (TTFT)", figures.ttft_s),
        _row("time per output token (TPOT)", figures.tpot_s),
        _row("between pieces (ITL)", figures.itl_s),
        _row("end to end", figures.e2e_s),
    ]
    if figures.short:
        lines.append(f"\n{figures.short} answers ended early: the server stopped before the wanted length")
    if figures.failed:
        lines.append(f"\nfirst failure: {figures.first_error}")
    return "\n".join(lines)


def plot(title: str, values: Sequence[float]) -> str:
    """Counts of values in bins of equal width, as bars. values in seconds, shown in milliseconds."""
    if not values:
        return f"{title}: nothing to plot"
    least, most = min(values), max(values)
    width = (most - least) / NUM_BINS or 1e-9
    counts = [0] * NUM_BINS
    for value in values:
        counts[min(NUM_BINS - 1, int((value - least) / width))] += 1
    rows = [
        f"{1000 * (least + number * width):>10.1f}  {'#' * round(BAR * count / max(counts)):<{BAR}} {count}"
        for number, count in enumerate(counts)
    ]
    return "\n".join([f"{title} [ms]", *rows])


def _row(name: str, spread: Spread) -> str:
    cells = (spread.mean, spread.median, spread.p99, spread.maximum)
    return f"{name:<34}" + "".join(f"{1000 * value:>10.2f}" for value in cells)
