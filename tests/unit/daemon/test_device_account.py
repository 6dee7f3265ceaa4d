"""Every second of the wall clock is under busy, unproven or one cause of idleness, whatever dies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.device_account import DeviceAccount, DeviceTotals
from pipelines.core.request import DeviceTime, IdleCause


def report(start_s, end_s, busy_s):
    return DeviceTime(start_s, end_s, busy_s, unproven_s=0.0, empty_s=end_s - start_s - busy_s, host_s=0.0, h2d_s=0.0)


class Told:
    """What the metrics are told, added up."""

    def __init__(self):
        self.total = DeviceTotals()

    def __call__(self, added):
        self.total.busy_s += added.busy_s
        self.total.unproven_s += added.unproven_s
        for cause, seconds in added.idle_s.items():
            assert seconds >= 0, "a counter never goes back"
            self.total.idle_s[cause] += seconds


def test_time_before_during_and_after_an_engine_is_told_apart():
    told = Told()
    account = DeviceAccount(0.0, told)
    account.advance(2.0)
    account.note_outage(2.5, IdleCause.CAPTURE)
    account.advance(3.0)
    account.note_up()
    account.add_report(report(4.0, 10.0, 5.0), IdleCause.FEED)
    account.advance(50.0)  # an engine is up: its reports account
    account.note_down(12.0)
    account.advance(15.0)
    account.note_outage(16.0, IdleCause.DRAIN)
    account.advance(20.0)
    totals = account.totals
    assert (totals.busy_s, totals.idle_s[IdleCause.FEED]) == (5.0, 1.0)
    assert (totals.idle_s[IdleCause.STARTUP], totals.idle_s[IdleCause.CAPTURE]) == (2.5, 1.5)
    assert (totals.idle_s[IdleCause.DOWN], totals.idle_s[IdleCause.DRAIN]) == (6.0, 4.0)
    assert totals.wall_s == 20.0
    assert told.total == totals, "the metrics are told of everything"


def test_what_the_daemon_had_counted_before_it_heard_of_the_engine_is_not_counted_twice():
    account = DeviceAccount(0.0, Told())
    account.advance(5.0)
    account.note_up()
    account.add_report(report(4.75, 6.0, 0.5), IdleCause.NO_WORK)
    assert account.totals.wall_s == 6.0
    assert account.totals.idle_s[IdleCause.NO_WORK] == 0.5


@given(st.lists(st.tuples(st.sampled_from(["up", "down", "report", "tick"]), st.floats(0.01, 5)), max_size=40))
def test_the_sum_is_the_wall_time_of_the_last_mark(events):
    account = DeviceAccount(0.0, told := Told())
    now = reported = 0.0
    is_up = False
    for event, seconds in events:
        now += seconds
        match event:
            case "up":
                account.note_up()
                is_up = True
            case "down":
                account.note_down(now)
                is_up, reported = False, now
            case "report" if is_up:
                account.add_report(report(max(reported, now - seconds), now, seconds / 4), IdleCause.NO_WORK)
                reported = now
            case "tick":
                account.advance(now)
                reported = reported if is_up else now
    assert account.totals.wall_s == pytest.approx(reported)
    assert told.total.wall_s == pytest.approx(reported)
