"""Device time adds up to the wall clock, each part under its cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.device_clock import DeviceClock
from pipelines.core.runner import Mark, StepTime, unproven_time


def test_each_part_of_a_gap_has_its_cause():
    clock = DeviceClock(0.0)
    clock.note_work(2.0)
    clock.add_step(StepTime(0, launched_s=3.0, inputs_s=4.0, start_s=4.5, end_s=6.0, read_s=6.5))
    clock.add_step(StepTime(1, launched_s=5.0, inputs_s=5.5, start_s=6.0, end_s=7.0, read_s=7.5, unproven_s=0.75))
    time = clock.report(100.0)
    assert (time.start_s, time.end_s) == (0.0, 7.0), "an engine with requests accounts to the end of its last step"
    assert time.empty_s == pytest.approx(2.0)
    assert time.host_s == pytest.approx(1.5)
    assert time.h2d_s == pytest.approx(1.0)
    assert (time.busy_s, time.unproven_s) == (pytest.approx(1.75), pytest.approx(0.75))


def test_an_empty_engine_accounts_up_to_now():
    clock = DeviceClock(0.0)
    assert clock.report(5.0).empty_s == 5.0
    clock.note_work(6.0)
    clock.add_step(StepTime(0, 6.0, 6.0, 6.0, 8.0, 8.0))
    clock.note_empty()
    time = clock.report(10.0)
    assert (time.empty_s, time.busy_s, time.end_s) == (3.0, 2.0, 10.0)


@given(st.lists(st.tuples(*[st.floats(-1, 3)] * 4, st.floats(0, 3)), max_size=20), st.floats(0, 5))
def test_the_parts_add_up_whatever_the_times_are(steps, work_since):
    """Even times that run backwards or overlap are counted once."""
    clock = DeviceClock(0.0)
    clock.note_work(work_since)
    now = 0.0
    for number, (launched, inputs, start, end, unproven) in enumerate(steps):
        clock.add_step(StepTime(number, now + launched, now + inputs, now + start, now + end, now + end, unproven))
        now += 1.0
    time = clock.report(now)
    parts = time.busy_s + time.unproven_s + time.empty_s + time.host_s + time.h2d_s
    assert parts == pytest.approx(time.end_s - time.start_s)
    assert min(time.busy_s, time.unproven_s, time.empty_s, time.host_s, time.h2d_s) >= 0


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], 0.0),
        ([(9.0, 20.0)], 0.0),  # all launched before the device began
        ([(13.0, 20.0)], 3.0),  # from then on the device had all it needed
        ([(25.0, 20.0)], 10.0),  # the host knew of the last launch only after the device had done it
        ([(11.0, 14.0), (13.0, 18.0), (19.5, 20.0)], 1.0 + 0.0 + 1.5),  # ahead in the second stretch alone
    ],
)
def test_time_is_proven_from_when_all_up_to_the_next_mark_was_launched(marks, expected):
    assert unproven_time(10.0, [Mark(*mark) for mark in marks]) == pytest.approx(expected)
