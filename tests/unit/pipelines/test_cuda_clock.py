"""The device's clock, held to the host's by what the host knows of each event."""

import pytest

from pipelines.runtime.cuda_stream import CudaClock


class FakeEvent:
    """An event on a clock that drifts against the host's."""

    def __init__(self, true_s, drift=0.0):
        self.device_s = true_s * (1 + drift)

    def elapsed_time(self, other):
        return 1e3 * (other.device_s - self.device_s)


def test_an_event_within_its_bounds_is_placed_by_its_distance():
    clock = CudaClock(FakeEvent(0.0), 100.0)
    assert clock.time_s(FakeEvent(1.5), 101.0, 102.0) == pytest.approx(101.5)


@pytest.mark.parametrize("drift", [-2e-5, 2e-5])
def test_a_drifting_clock_stays_between_what_the_host_knows(drift):
    """Events every 5 ms over 100 s, recorded 5 us before and seen 8 us after: never further off than that."""
    clock = CudaClock(FakeEvent(0.0, drift), 0.0)
    for number in range(20_000):
        true_s = 5e-3 * number
        placed_s = clock.time_s(FakeEvent(true_s, drift), true_s - 5e-6, true_s + 8e-6)
        assert -5.1e-6 <= placed_s - true_s <= 8.1e-6


def test_a_loose_bound_changes_nothing():
    """What was recorded long before it was reached and seen long after it says nothing about the clock."""
    clock = CudaClock(FakeEvent(0.0), 0.0)
    clock.time_s(FakeEvent(1.0), 0.0, 9.0)
    assert clock.time_s(FakeEvent(2.0), 0.0, 9.0) == pytest.approx(2.0)
