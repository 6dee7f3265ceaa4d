"""What CUPTI recorded, read from a trace of known times."""

import json

import pytest

from pipelines.benchmark.cross_check import Window, cross_check_table
from pipelines.benchmark.device_trace import read_trace
from pipelines.errors import EngineError

STEP_US = 1_000.0


def event(category, name, start, duration, stream=7):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "args": {"stream": stream}}


def steps(count, gap_us=0.0, extra=(), late=()):
    """Steps of two kernels 2 us apart, `gap_us` after each step; one copy and one wait each, copies on streams of their own.

    A wait begins before the tokens arrive, in the steps `late` after that, and ends behind it.
    """
    events = [{"ph": "M", "name": "process_name"}, *extra]
    for number in range(count):
        start = number * STEP_US
        half = (STEP_US - gap_us - 2.0) / 2
        arrival = start + STEP_US - gap_us + 5
        waits_from = arrival + 1 if number in late else start + 500
        events += [
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start + 1, 3, stream=8),
            event("kernel", "first", start, half),
            event("kernel", "second", start + half + 2.0, half),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + STEP_US - gap_us, 5, stream=9),
            event("cuda_runtime", "cudaEventSynchronize", waits_from, arrival + 4 - waits_from),
            event("cuda_runtime", "cudaGraphLaunch", start + 20, 50),
        ]
    return events


def test_steps_are_counted_by_their_copies_and_small_gaps_are_told_apart():
    trace = read_trace(steps(13, gap_us=100.0), num_steps=10, num_behind=2)
    assert trace.length_us == pytest.approx(10 * STEP_US)
    assert trace.busy_us == pytest.approx(10 * 898.0)
    assert (trace.num_small_gaps, trace.small_gaps_us) == (10, pytest.approx(20.0))
    assert trace.busy_share == pytest.approx(0.9)
    assert (trace.num_waits, trace.num_to_device, trace.other_waits) == (10, 10, {})
    assert trace.calls["cudaGraphLaunch"] == 10


def test_kernels_add_up_to_the_window():
    """Each with the gap in front of it, one that another covers not at all; C++ names without what they are made for."""
    covered = event("kernel", "void at::(anonymous namespace)::copy<float, 4>(int)", 5_100.0, 10.0)
    tail = event("kernel", "void at::(anonymous namespace)::copy<float, 4>(int)", 6_900.0, 50.0)
    trace = read_trace(steps(13, gap_us=100.0, extra=[covered, tail]), 10, 2)
    assert sum(trace.kernel_us.values()) == pytest.approx(trace.length_us - 0.0)
    assert trace.kernel_us == pytest.approx({"first": 10 * 549.0 - 50.0, "second": 10 * 451.0, "at::copy": 50.0})


def test_overlapping_kernels_count_once():
    long = event("kernel", "other", 0.0, 13 * STEP_US)
    trace = read_trace(steps(13, gap_us=100.0, extra=[long]), 10, 2)
    assert trace.busy_us == pytest.approx(trace.length_us)


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMemcpy"]
)
def test_a_call_that_may_wait_is_a_problem_by_name(name):
    trace = read_trace(steps(13, extra=[event("cuda_runtime", name, 5_000.0, 1.0)]), 10, 2)
    window = Window("middle", 4_000, trace, 0.998, 0.001)
    assert window.problems == [f"middle: {name}: found 1 in 10 steps, expected none"]


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaMallocAsync", "cudaEventQuery", "cudaStreamWaitEvent"])
def test_a_call_that_does_not_wait_is_none(name):
    trace = read_trace(steps(13, extra=[event("cuda_runtime", name, 5_000.0, 1.0)]), 10, 2)
    assert Window("end", 8_000, trace, 0.998, 0.0).problems == []


@pytest.mark.parametrize("late", [[0], [10], [0, 10], range(13)])
def test_a_host_that_comes_late_to_a_step_waits_once_all_the_same(late):
    """Steps 1 to 10 are counted, from the arrival of step 0's tokens to that of step 10's."""
    assert read_trace(steps(13, late=late), 10, 2).num_waits == 10


def test_a_second_wait_in_a_step_is_a_problem():
    trace = read_trace(steps(13, extra=[event("cuda_runtime", "cudaEventSynchronize", 5_000.0, 1.0)]), 10, 2)
    expected = "start: waits for an event: found 11 in 10 steps, expected one a step"
    assert Window("start", 30, trace, 0.998, 0.0).problems == [expected]


def test_a_trace_of_too_few_steps_is_refused():
    with pytest.raises(
        EngineError, match="the trace has 12 copies from the device to the host, expected one a step: 13"
    ):
        read_trace(steps(12), num_steps=10, num_behind=2)


def test_the_table_has_a_column_a_window():
    trace = read_trace(steps(13), 10, 2)
    table = cross_check_table([Window(place, 1, trace, 0.998, 0.001) for place in ("start", "middle")])
    assert table[0].split() == ["start,", "step", "1", "middle,", "step", "1"]
    assert any(line.split() == ["waits", "of", "the", "host", "a", "step", "1.00", "1.00"] for line in table)
    assert any(line.split() == ["us", "a", "step,", "second", "501.0", "501.0"] for line in table)


def test_a_window_can_be_written_as_json():
    window = Window("start", 1, read_trace(steps(13), 10, 2), 0.998, 0.001)
    record = json.loads(json.dumps(window.to_record()))
    assert record["trace"]["calls"] == {"cudaEventSynchronize": 10, "cudaGraphLaunch": 10}
