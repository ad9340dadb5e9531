"""Metrics from what clients saw: times to the first token and between tokens, throughput, with mean, median and p99.

Pure. TTFT: from sending to the first text. TPOT: of one answer, the time after its first token over the tokens after
it. ITL: between two pieces of text of one answer. End to end: from sending to the last piece. All in seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One request. Times in seconds since it was sent; tokens as the server counts. error: "" if all went well."""

    ttft_s: float = 0.0
    duration_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    wanted_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of one quantity; all 0 where there is none."""

    mean: float
    median: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMetrics:
    """The result of a measurement. short: answers that ended before the requested number of tokens."""

    requests: int
    failed: int
    short: int
    wall_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    first_error: str

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def benchmark_metrics(answers: Sequence[RequestResult], wall_s: float) -> BenchmarkMetrics:
    """Sums and spreads; failed requests count only as such."""
    good = [answer for answer in answers if not answer.error]
    errors = [answer.error for answer in answers if answer.error]
    prompt, output = sum(a.prompt_tokens for a in good), sum(a.output_tokens for a in good)
    tpot = [(a.duration_s - a.ttft_s) / (a.output_tokens - 1) for a in good if a.output_tokens > 1]
    wall = max(wall_s, 1e-9)
    return BenchmarkMetrics(
        requests=len(answers),
        failed=len(errors),
        short=sum(answer.output_tokens < answer.wanted_tokens for answer in good),
        wall_s=wall_s,
        prompt_tokens=prompt,
        cached_tokens=sum(answer.cached_tokens for answer in good),
        output_tokens=output,
        requests_per_s=len(good) / wall,
        output_tokens_per_s=output / wall,
        total_tokens_per_s=(prompt + output) / wall,
        ttft_s=distribution([answer.ttft_s for answer in good]),
        tpot_s=distribution(tpot),
        itl_s=distribution([gap for answer in good for gap in answer.gaps_s]),
        e2e_s=distribution([answer.duration_s for answer in good]),
        first_error=errors[0] if errors else "",
    )


def distribution(values: Sequence[float]) -> Distribution:
    """Nearest-rank percentiles: the p99 of 32 values is the largest."""
    if not values:
        return Distribution(mean=0.0, median=0.0, p99=0.0, maximum=0.0)
    ordered = sorted(values)
    return Distribution(
        mean=math.fsum(ordered) / len(ordered),
        median=percentile(ordered, 0.5),
        p99=percentile(ordered, 0.99),
        maximum=ordered[-1],
    )


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that fraction of all values do not exceed. ordered: ascending, not empty."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]
