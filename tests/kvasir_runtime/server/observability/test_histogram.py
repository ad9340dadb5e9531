"""A tally is exposed exactly as prometheus_client's own histogram would be."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from kvasir_api.metric import Metric
from kvasir_runtime.server.observability.histogram import FastHistogram

BUCKETS = (0.005, 0.1, 1.0, 2500.0)
METRIC = Metric(
    name="gap_seconds", kind="histogram", help="Between tokens.", labels=("model", "engine"), buckets=BUCKETS
)


@pytest.mark.parametrize("seen", [[], [(0.005, 1)], [(0.0051, 3), (0.1, 1), (7.0, 2), (1e9, 1), (0.0, 1)]])
def test_it_looks_like_a_histogram(seen):
    disable_created_metrics()
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = FastHistogram(METRIC, ("m", "0"), BUCKETS, ours)
    family = Histogram(METRIC.name, METRIC.help, METRIC.labels, registry=theirs, buckets=BUCKETS).labels("m", "0")
    for value, count in seen:
        tally.observe(value, count)
        for _ in range(count):
            family.observe(value)
    assert sorted(generate_latest(ours).splitlines()) == sorted(generate_latest(theirs).splitlines())
