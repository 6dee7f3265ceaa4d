"""The text of the metrics is the library's own, whatever they hold."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics, exposition
from prometheus_client.openmetrics import exposition as openmetrics

from daemon.exposition import Exposition
from daemon.value_histogram import ValueHistogram

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = (
    st.floats() | st.integers(-(10**20), 10**20) | st.sampled_from([0.0, -0.0, 999999.0, 1e6, 1e16, 1e21, math.nan])
)
POSITIVE = st.floats(0, 1e12)


class Everything:
    """One metric of each kind there is in the daemon."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self.gauge = Gauge("a_gauge", 'A "gauge" \\ with\nlines.', ("z", "a"), registry=registry)
        self.lone = Gauge("a_lone_gauge", "No label.", registry=registry)
        self.counter = Counter("a_counter", "A counter.", ("engine",), registry=registry)
        self.fast = ValueHistogram("a_fast_seconds", "Ours.", "engine", (0.5, 1.0, 2e6), registry)
        self.slow = Histogram("a_slow_seconds", "Theirs.", buckets=(0.5, 1.0), registry=registry)
        Info("a_build", "What runs.", registry=registry).info({"version": '1"2\\3'})

    def add(self, name: str, other: str, value: float, positive: float) -> None:
        self.gauge.labels(name, other).set(value)
        self.lone.set(value)
        self.counter.labels(name).inc(positive)
        self.fast.begin(name)
        self.fast.add(name, [positive])
        self.slow.observe(positive)


def theirs(registry: CollectorRegistry) -> tuple[bytes, bytes]:
    modern: Any = openmetrics.generate_latest
    return exposition.generate_latest(registry), modern(registry)


@given(st.lists(st.tuples(NAMES, NAMES, VALUES, POSITIVE), max_size=6))
def test_both_formats_are_the_librarys_byte_for_byte(events: list[tuple[str, str, float, float]]) -> None:
    """At each scrape, also when the same series were written before with other values."""
    metrics = Everything()
    ours = Exposition(metrics.registry)
    for event in events:
        metrics.add(*event)
        assert (ours.text(), ours.openmetrics()) == theirs(metrics.registry)


def test_a_label_in_another_series_of_the_same_name_is_not_taken_for_it() -> None:
    """Values that change places are other series."""
    metrics = Everything()
    ours = Exposition(metrics.registry)
    metrics.add("x", "y", 1.0, 1.0)
    metrics.add("y", "x", 2.0, 1.0)
    assert b'a_gauge{a="y",z="x"} 1.0\n' in ours.text()
    assert b'a_gauge{a="x",z="y"} 2.0\n' in ours.text()
