"""The histogram of many values is what prometheus_client's own would be."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, exposition

from daemon.value_histogram import ValueHistogram

BOUNDS = (0.5, 1.0, 4.0)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 5.0, 100.0]))))
def test_it_exports_what_the_librarys_histogram_exports(reports: list[list[float]]) -> None:
    """Same text, whatever comes in whichever portions; sums are exact for these values."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = ValueHistogram("h_seconds", "Text.", "engine", BOUNDS, ours)
    slow = Histogram("h_seconds", "Text.", ("engine",), buckets=BOUNDS, registry=theirs)
    for name in ("a", "b"):
        fast.begin(name)
        slow.labels(name)
    for values in reports:
        fast.add("a", values)
        for value in values:
            slow.labels("a").observe(value)
    expected = [line for line in exposition.generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert exposition.generate_latest(ours).decode().splitlines() == expected


def test_beginning_again_forgets_nothing() -> None:
    """A second `begin` of a label is none."""
    registry = CollectorRegistry()
    histogram = ValueHistogram("h_seconds", "Text.", "engine", BOUNDS, registry)
    histogram.begin("a")
    histogram.add("a", [1.0])
    histogram.begin("a")
    assert registry.get_sample_value("h_seconds_count", {"engine": "a"}) == 1
