"""A histogram that takes many values at once, as reports of the engine bring them.

prometheus_client's own takes one value a call under a lock: at thousands of steps a second that would be a share of the main
loop. What is exported is the same.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


class ValueHistogram(Collector):
    """Counts by buckets for each value of one label. Filled and read from any thread."""

    def __init__(
        self, name: str, documentation: str, label: str, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = tuple(bounds)  # ascending; a value counts under the first that is not below it
        self._names = (*(str(float(bound)) for bound in bounds), "+Inf")
        self._counts: dict[str, list[int]] = {}  # not cumulative; the last one is what is above all bounds
        self._sums: dict[str, float] = {}
        self._series: dict[str, tuple[dict[str, str], ...]] = {}  # the labels of each bucket, the same at each scrape
        self._lock = threading.Lock()
        registry.register(self)

    def begin(self, label: str) -> None:
        """Let it exist with no value yet."""
        with self._lock:
            self._counts.setdefault(label, [0] * len(self._names))
            self._sums.setdefault(label, 0.0)
            self._series.setdefault(label, tuple({self._label: label, "le": name} for name in self._names))

    def add(self, label: str, values: Iterable[float]) -> None:
        """Count values; the label has begun."""
        counts, bounds, total = self._counts[label], self._bounds, 0.0
        with self._lock:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
                total += value
            self._sums[label] += total

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """See `Collector`: what there will be, asked for at registration."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=[self._label])

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """See `Collector`."""
        with self._lock:
            found = [(label, tuple(accumulate(counts)), self._sums[label]) for label, counts in self._counts.items()]
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        bucket, count, total = f"{self._name}_bucket", f"{self._name}_count", f"{self._name}_sum"
        for label, counts, value in found:
            own = {self._label: label}
            family.samples += map(Sample, repeat(bucket), self._series[label], counts)
            family.samples += (Sample(count, own, counts[-1]), Sample(total, own, value))
        yield family
