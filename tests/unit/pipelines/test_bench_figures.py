"""The arithmetic of the tables, on runs whose figures are known."""

from dataclasses import replace

import pytest

from pipelines.benchmark.measure import CheckError, Run, Subject, _checked_tokens, _size_of
from pipelines.benchmark.report import aligned, mode_table, saving_lines, unexplained_lines
from pipelines.benchmark.results import ModeResult, Saving
from pipelines.benchmark.sweep import sweep_row
from pipelines.benchmark.traffic import Roofline, StepSize, Traffic
from pipelines.benchmark.workload import requests_of
from pipelines.config import EngineConfig, ModelConfig, Schedule
from pipelines.core.batch import Batch, Row
from pipelines.core.request import DeviceTime, FinishReason, TokenOutput

TRAFFIC = Traffic(weight_bytes=1000, kv_bytes=10, windowed_kv_bytes=1, window=4)
# A prefill of two prompts of 5 tokens, then two decode steps of both.
STEPS = (StepSize(2, 10, 10, 8), StepSize(2, 2, 12, 8), StepSize(2, 2, 14, 8))


def run_of(schedule, seconds, busy_s, host_s, tokens=((1, 2), (3, 4))):
    device = DeviceTime(0.0, seconds, busy_s, 0.1, 0.05, host_s, 0.05)
    return Run(
        schedule, seconds, device, STEPS, (0.5, 0.2, 0.3), (0.0, 0.0, 0.0), dict(enumerate(tokens)), num_preemptions=0
    )


SYNC = run_of(Schedule.SYNC, 2.0, 1.2, 0.6)
ASYNC = run_of(Schedule.ASYNC, 1.6, 1.3, 0.1)


def test_a_mode_is_the_run_of_median_length():
    runs = [replace(SYNC, seconds=seconds) for seconds in (3.0, 1.0, 2.0)]
    result = ModeResult.of(runs, None, None)
    assert (result.run.seconds, result.all_seconds, result.roofline) == (2.0, (3.0, 1.0, 2.0), None)


def test_shares_and_rates_are_of_the_whole_time():
    result = ModeResult.of([SYNC], TRAFFIC, 1e4)
    assert result.busy_share == pytest.approx(0.6)
    assert result.tokens_per_s == pytest.approx(2.0)
    assert result.ms_per_step == pytest.approx(2000 / 3)
    record = result.to_record()
    assert sum(record["device_s"].values()) == pytest.approx(record["seconds"])
    assert record["device_s"]["residue"] == pytest.approx(0.0)


def test_the_roofline_is_of_decode_steps_alone():
    """2,000 bytes of weights, 260 of KV, 16 within windows, in 0.5 s, at 10,000 bytes/s: 0.2276 s would do."""
    roofline = Roofline.of(STEPS, (0.5, 0.2, 0.3), TRAFFIC, 1e4)
    assert roofline == Roofline(2, pytest.approx(0.5), pytest.approx(0.2276))
    assert roofline.ratio == pytest.approx(0.4552)
    assert Roofline.of(STEPS[:1], (0.5,), TRAFFIC, 1e4) is None


def test_a_step_is_as_large_as_its_rows():
    """Context is what the last token of each row attends to; within a window at most that."""
    rows = [Row(None, 0, start, (5,) * tokens, carries=False, samples=True, opens_seat=False, first_new_block=0, new_blocks=())
            for start, tokens in ((0, 3), (9, 1))]  # fmt: skip
    assert _size_of(Batch(0, tuple(rows), ()), window=None) == StepSize(2, 4, 13, 0)
    assert _size_of(Batch(0, tuple(rows), ()), window=4) == StepSize(2, 4, 13, 7)
    assert not StepSize(2, 4, 13, 7).is_decode


def test_the_saving_is_asynchronous_over_synchronous():
    saving = Saving.of(
        {Schedule.ASYNC: ModeResult.of([ASYNC], None, None), Schedule.SYNC: ModeResult.of([SYNC], None, None)}
    )
    assert (saving.speedup, saving.saved_s, saving.saved_share) == pytest.approx((1.25, 0.4, 0.2))
    assert saving.saved_host_share == pytest.approx(0.5 / 0.6)
    assert saving_lines(saving) == [
        "async over sync: 1.250x, saves 0.40 s (20.00 %); 83.33 % of the time that sync's device waited for the host",
        "same tokens: yes",
    ]
    assert Saving.of({Schedule.SYNC: ModeResult.of([SYNC], None, None)}) is None


def test_other_tokens_are_told():
    other = run_of(Schedule.ASYNC, 1.6, 1.3, 0.1, tokens=((1, 2), (3, 5)))
    saving = Saving(ModeResult.of([SYNC], None, None), ModeResult.of([other], None, None))
    assert saving_lines(saving)[-1] == "same tokens: no"


def test_an_account_that_does_not_add_up_is_told():
    """0.1 s of 2 s are in no part."""
    result = ModeResult.of([replace(SYNC, device=replace(SYNC.device, busy_s=1.1))], None, None)
    assert unexplained_lines({"sync": result, "async": ModeResult.of([ASYNC], None, None)}) == [
        "sync: busy, unproven and idle miss the time by 5.000 %, expected at most 0.1 %"
    ]


def test_the_table_has_a_line_a_figure_and_a_column_a_mode():
    results = {Schedule.SYNC: ModeResult.of([SYNC], TRAFFIC, 1e4), Schedule.ASYNC: ModeResult.of([ASYNC], None, None)}
    table = mode_table(results)
    assert len({len(line) for line in table}) == 1
    words = {" ".join(line.split()) for line in table}
    assert {
        "sync async", "seconds 2.00 1.60", "generated tokens/s 2.0 2.5", "steps 3 3", "ms a step 666.667 533.333",
        "stream-busy 60.00 % 81.25 %", "unproven 5.00 % 6.25 %", "idle: host 30.00 % 6.25 %", "idle: h2d 2.50 % 3.12 %",
        "idle: empty 2.50 % 3.12 %", "residue 0.0000 % 0.0000 %", "decode steps 2 -", "device ms a decode step 250.000 -",
        "its bytes alone, ms 113.800 -", "roofline ratio 0.455 -",
    } == words  # fmt: skip


def test_all_runs_are_told_where_there_are_several():
    """The median alone would hide how far they lie apart."""
    runs = [replace(SYNC, seconds=seconds) for seconds in (3.0, 1.0, 2.0)]
    assert mode_table({Schedule.SYNC: ModeResult.of(runs, None, None)})[-1] == (
        "seconds of all runs, sync: 3.00, 1.00, 2.00"
    )


def test_columns_are_aligned():
    assert aligned([["", "one"], ["long name", "2"]]) == ["            one", "long name     2"]


def test_a_sweep_counts_the_steps_in_which_all_decode():
    """Not the one with a chunk, and none of fewer sequences; the time that the device waits for a step belongs to it."""
    steps = (StepSize(8, 71, 8_000, 0), StepSize(8, 8, 8_008, 0), StepSize(8, 8, 8_016, 0), StepSize(7, 7, 7_000, 0))
    run = replace(ASYNC, steps=steps, durations_s=(9.0, 0.003, 0.005, 9.0), gaps_s=(9.0, 0.001, 0.003, 9.0))
    traffic = Traffic(weight_bytes=1_988, kv_bytes=1, windowed_kv_bytes=0, window=None)
    subject = Subject(None, EngineConfig("e", ModelConfig("fake:")), 1, 1, 1, 1, "", traffic)
    row = sweep_row(subject, 8, run, bytes_per_s=5e6)
    assert (row.num_steps, row.context, row.floor_ms) == (2, 1_001.5, pytest.approx(2.0))
    assert (row.ms_per_step, row.busy_share, row.ratio) == pytest.approx((6.0, 2 / 3, 1 / 3))
    with pytest.raises(CheckError, match="found no step in which all 9 sequences decoded"):
        sweep_row(subject, 9, run, None)


def output(key, num_tokens):
    return TokenOutput(key, 0, tuple(range(num_tokens)), FinishReason.LENGTH, ended_by_token=False)


def test_a_request_with_too_few_tokens_stops_the_benchmark():
    """What is measured has to be what was asked for."""
    requests = requests_of([[1], [2]], [3, 4], 10)
    assert _checked_tokens(requests, [output(1, 4), output(0, 3)]) == {0: (0, 1, 2), 1: (0, 1, 2, 3)}
    with pytest.raises(CheckError, match="request 1: found 3 tokens, expected 4"):
        _checked_tokens(requests, [output(0, 3), output(1, 3)])
    with pytest.raises(CheckError, match="request 1: found 0 tokens, expected 4"):
        _checked_tokens(requests, [output(0, 3)])
    with pytest.raises(CheckError, match="found 3 answers to 2 requests"):
        _checked_tokens(requests, [output(0, 3), output(1, 4), output(0, 3)])
