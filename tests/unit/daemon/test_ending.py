"""Why a file ends: the first cause stays, and a deadline is told by the wall clock."""

import asyncio

import pytest

from daemon import ending
from daemon.ending import EndCause, Ending, answer_of
from daemon.result_line import LineError


@pytest.mark.parametrize("first", EndCause)
def test_the_first_cause_stays_with_its_time(first):
    times = iter([100.9, 200.0])
    found = Ending(lambda: next(times))
    found.begin(first)
    for cause in EndCause:
        found.begin(cause)
    assert (found.cause, found.at, found.is_due.is_set()) == (first, 100, True)


def test_the_time_of_an_earlier_run_is_kept():
    found = Ending(lambda: 500.0)
    found.begin(EndCause.CANCELLED, at=7)
    assert found.at == 7


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ([10.0, 11.0, 12.5], 12),  # it goes on
        ([99.0], 99),  # it was past already, for instance after a restart
        ([10.0, 5.0, 11.0, 13.0], 13),  # it was set back: the deadline is a time of day
    ],
)
def test_a_deadline_is_due_once_the_wall_clock_shows_it(clock, expected, monkeypatch):
    monkeypatch.setattr(ending, "_LOOK_S", 0.0)  # look again at once
    readings = [*clock, clock[-1]]
    found = Ending(lambda: readings.pop(0))
    asyncio.run(found.watch_deadline(12.0))
    assert (found.cause, found.at) == (EndCause.EXPIRED, expected)
    assert readings == []


def test_each_cause_has_openais_code():
    assert {cause: answer_of(cause).code for cause in EndCause} == {
        EndCause.CANCELLED: LineError.CANCELLED,
        EndCause.EXPIRED: LineError.EXPIRED,
    }
