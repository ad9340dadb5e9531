"""A histogram of one series that costs next to nothing to observe: what is counted per token.

Used by RuntimeMetrics and VllmMetrics. It is exposed like the Histogram of prometheus_client, whose observe() takes two
locks and walks over the buckets; everything here happens on the event loop.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kvasir_api.metric import Metric as DeclaredMetric


class FastHistogram(Collector):
    """metric: what it is called. labels: values of its labels. buckets: upper bounds, ascending, without infinity."""

    def __init__(
        self,
        metric: DeclaredMetric,
        labels: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._metric, self._labels = metric, tuple(labels)
        self._bounds = tuple(float(bound) for bound in buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        bounds = [
            floatToGoString(bound)  # type: ignore[no-untyped-call]
            for bound in (*self._bounds, float("inf"))
        ]
        counts = [float(count) for count in accumulate(self._counts)]
        family = HistogramMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)
        family.add_metric(self._labels, list(zip(bounds, counts, strict=True)), self._sum)
        yield family
