"""Metrics from hand-made answers, the table and the plot."""

import pytest

from kvasir_runtime.bench import report
from kvasir_runtime.bench.metrics import RequestResult, benchmark_metrics, distribution

ANSWERS = [
    RequestResult(ttft_s=0.1, duration_s=1.1, gaps_s=(0.5, 0.5), prompt_tokens=10, output_tokens=3, wanted_tokens=3),
    RequestResult(ttft_s=0.3, duration_s=0.3, prompt_tokens=20, cached_tokens=16, output_tokens=1, wanted_tokens=3),
    RequestResult(error="HTTP 500: no"),
]


def test_sums_rates_and_spreads():
    made = benchmark_metrics(ANSWERS, 2.0)
    assert (made.requests, made.failed, made.short, made.first_error) == (3, 1, 1, "HTTP 500: no")
    assert (made.prompt_tokens, made.cached_tokens, made.output_tokens) == (30, 16, 4)
    assert (made.requests_per_s, made.output_tokens_per_s, made.total_tokens_per_s) == (1.0, 2.0, 17.0)
    assert made.ttft_s.mean == pytest.approx(0.2)
    assert made.tpot_s.mean == made.tpot_s.p99 == pytest.approx(0.5), "an answer of one token has none"
    assert made.itl_s.median == 0.5
    assert made.document()["e2e_s"]["maximum"] == 1.1


@pytest.mark.parametrize(
    ("values", "median", "p99"),
    [([], 0, 0), ([5.0], 5, 5), ([1.0, 2.0, 3.0], 2, 3), ([float(n) for n in range(1, 201)], 100, 198)],
)
def test_percentiles_are_of_the_nearest_rank(values, median, p99):
    made = distribution(values)
    assert (made.median, made.p99) == (median, p99)


def test_the_table_has_every_figure():
    text = report.table(benchmark_metrics(ANSWERS, 2.0))
    for words in ("2 answered, 1 failed", "30 (16 from the prefix cache)", "2.0 output tokens/s", "(TTFT)", "(TPOT)",
                  "(ITL)", "end to end", "1 answers ended early", "first failure: HTTP 500: no", "200.00"):  # fmt: skip
        assert words in text, words
    assert "failure" not in report.table(benchmark_metrics([], 0.0))


def test_a_plot_counts_every_value():
    lines = report.plot("ttft", [0.1] * 6 + [0.2, 0.3]).splitlines()
    assert lines[0] == "ttft [ms]"
    assert sum(int(line.split()[-1]) for line in lines[1:]) == 8
    assert lines[1].count("#") == report.BAR
    assert report.plot("ttft", [0.1, 0.1]).count("\n") == report.NUM_BINS
    assert report.plot("ttft", []) == "ttft: nothing to plot"
