"""Every second of the wall clock is under busy, unproven or one cause of idleness, whatever dies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.device_account import DeviceAccount
from pipelines.core.request import DeviceTime, IdleCause


def report(start_s, end_s, busy_s):
    return DeviceTime(start_s, end_s, busy_s, unproven_s=0.0, empty_s=end_s - start_s - busy_s, host_s=0.0, h2d_s=0.0)


def test_time_before_during_and_after_an_engine_is_told_apart():
    told = []
    account = DeviceAccount(0.0, lambda cause, seconds: told.append((cause, seconds)))
    account.advance(3.0)
    account.note_up()
    account.add_report(report(4.0, 10.0, 5.0), IdleCause.FEED)
    account.advance(50.0)  # an engine is up: its reports account
    account.note_down(12.0)
    account.advance(15.0)
    totals = account.totals
    assert (totals.busy_s, totals.idle_s[IdleCause.FEED]) == (5.0, 1.0)
    assert (totals.idle_s[IdleCause.STARTUP], totals.idle_s[IdleCause.DOWN]) == (4.0, 5.0)
    assert totals.wall_s == 15.0
    assert sum(seconds for _, seconds in told) == 9.0, "the metrics are told of what no engine reports"


@given(st.lists(st.tuples(st.sampled_from(["up", "down", "report", "tick"]), st.floats(0.01, 5)), max_size=40))
def test_the_sum_is_the_wall_time_of_the_last_mark(events):
    account = DeviceAccount(0.0, lambda _cause, _seconds: None)
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
