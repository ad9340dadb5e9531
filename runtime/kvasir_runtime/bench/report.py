"""Metrics for a person: the table in the usual order, and a plot of a distribution in characters. Pure."""

from collections.abc import Sequence
from typing import Final

from kvasir_runtime.bench.metrics import BenchmarkMetrics, Distribution

BAR: Final = 50
NUM_BINS: Final = 12


def table(metrics: BenchmarkMetrics) -> str:
    """Counts, throughput, then times in milliseconds."""
    counts = [
        ("requests", f"{metrics.requests - metrics.failed} answered, {metrics.failed} failed"),
        ("duration", f"{metrics.wall_s:.2f} s"),
        ("prompt tokens", f"{metrics.prompt_tokens:,} ({metrics.cached_tokens:,} from the prefix cache)"),
        ("output tokens", f"{metrics.output_tokens:,}"),
        ("throughput", f"{metrics.requests_per_s:.2f} requests/s"),
        ("", f"{metrics.output_tokens_per_s:.1f} output tokens/s"),
        ("", f"{metrics.total_tokens_per_s:.1f} tokens/s with prompts"),
    ]
    lines = [f"{name:<16}{value}" for name, value in counts]
    lines.append(f"\n{'milliseconds':<34}{'mean':>10}{'median':>10}{'p99':>10}{'max':>10}")
    lines += [
        _row("time to first token (TTFT)", metrics.ttft_s),
        _row("time per output token (TPOT)", metrics.tpot_s),
        _row("between pieces (ITL)", metrics.itl_s),
        _row("end to end", metrics.e2e_s),
    ]
    if metrics.short:
        lines.append(f"\n{metrics.short} answers ended early: the server stopped before the wanted length")
    if metrics.failed:
        lines.append(f"\nfirst failure: {metrics.first_error}")
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


def _row(name: str, of: Distribution) -> str:
    cells = (of.mean, of.median, of.p99, of.maximum)
    return f"{name:<34}" + "".join(f"{1000 * value:>10.2f}" for value in cells)
