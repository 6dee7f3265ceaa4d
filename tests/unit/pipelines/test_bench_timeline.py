"""The timeline: what is recorded of a run, the window cut out of it, the picture."""

import itertools

import pytest

from pipelines.benchmark.subject import open_subject
from pipelines.benchmark.timeline import Lane, Recorder, Recording, Span, Timeline, Work, record, windows
from pipelines.benchmark.workload import equal_prompts, requests_of
from pipelines.config import BatchConfig, EngineConfig, ModelConfig, Schedule
from pipelines.core.runner import StepTime
from pipelines.errors import EngineError


def recording_of(schedule, step_s, gap_s, num_steps=20):
    """Steps of one length with one gap between them; before each, the host works through half the gap."""
    spans = []
    for step in range(num_steps):
        start_s = step * (step_s + gap_s)
        spans.append(Span(Lane.CPU, Work.LAUNCH, step, start_s - gap_s / 2, start_s))
        spans.append(Span(Lane.COMPUTE, Work.COMPUTE, step, start_s, start_s + step_s))
    return Recording(schedule, tuple(spans), tuple(range(1, num_steps)))


def test_windows_are_of_one_length_and_begin_with_a_step():
    """Four steps of the slower mode, whatever the other does in that time."""
    slow, fast = windows([recording_of(Schedule.SYNC, 2.0, 1.0), recording_of(Schedule.ASYNC, 2.0, 0.0)])
    assert slow.length_s == fast.length_s == pytest.approx(12.0)
    computes = [span for span in slow.spans if span.lane is Lane.COMPUTE]
    assert [(span.start_s, span.end_s) for span in computes] == [(0.0, 2.0), (3.0, 5.0), (6.0, 8.0), (9.0, 11.0)]
    assert [span.step for span in computes] == [10, 11, 12, 13]
    assert sum(span.lane is Lane.COMPUTE for span in fast.spans) == 6
    assert all(0.0 <= span.start_s <= span.end_s <= slow.length_s for span in slow.spans)


def test_gaps_are_where_the_device_has_nothing_to_do():
    slow, fast = windows([recording_of(Schedule.SYNC, 2.0, 1.0), recording_of(Schedule.ASYNC, 2.0, 0.0)])
    assert slow.gaps == [(2.0, 3.0), (5.0, 6.0), (8.0, 9.0), (11.0, 12.0)]
    assert fast.gaps == []


def test_the_close_up_is_of_the_median_gap():
    """One step that was held up shows nothing typical; the extent is the gap, or the host's work where that is longer."""
    gaps = ((0.0, 2.0), (5.0, 7.0), (7.1, 9.0), (9.2, 11.0))
    computes = tuple(Span(Lane.COMPUTE, Work.COMPUTE, step, *span) for step, span in enumerate(gaps))
    close_up = Timeline(Schedule.SYNC, computes, 11.0).close_up()
    assert (close_up.steps, close_up.end_s, close_up.start_s) == ((2, 3), 9.0, 9.2)
    assert close_up.extent_s == pytest.approx(0.2)
    launch = Span(Lane.CPU, Work.LAUNCH, 3, 5.0, 9.0)
    wait = Span(Lane.CPU, Work.WAIT, 3, 0.0, 5.0)
    assert Timeline(Schedule.SYNC, (*computes, launch, wait), 11.0).close_up().extent_s == pytest.approx(1.0)


def test_too_few_steady_steps_are_refused():
    with pytest.raises(EngineError, match="a timeline needs 10 decode steps of a full batch, found 6"):
        windows([recording_of(Schedule.SYNC, 2.0, 1.0, num_steps=7)])


def test_device_spans_come_from_step_times_and_the_host_calls_around_them():
    """A copy begins when `stage` returns, or at its arrival where that was earlier."""
    recorder = Recorder(clock=itertools.count(start=1.0).__next__)
    recorder.host(Work.STAGE, 0, lambda: None)  # 1 to 2
    recorder.host(Work.STAGE, 1, lambda: None)  # 3 to 4
    recorder.host(Work.STAGE, 2, lambda: None)  # 5 to 6
    for step in (0, 1):  # 7 to 8, 9 to 10
        assert recorder.host(Work.WAIT, step, lambda: [7]) == [7]
    recorder.device(
        [
            StepTime(0, 0.0, 2.5, 2.6, 7.5, 7.75),
            StepTime(1, 0.0, 3.9, 7.5, 9.5, 9.75),
            StepTime(2, 0.0, 9.0, 9.6, 12.0, 12.5),
        ]
    )
    device = [
        (span.step, span.lane, span.start_s, span.end_s) for span in recorder.spans() if span.lane is not Lane.CPU
    ]
    assert device == [
        (0, Lane.H2D, 2.0, 2.5),
        (0, Lane.COMPUTE, 2.6, 7.5),
        (0, Lane.D2H, 7.5, 7.75),
        (1, Lane.H2D, 3.9, 3.9),
        (1, Lane.COMPUTE, 7.5, 9.5),
        (1, Lane.D2H, 9.5, 9.75),
    ]


@pytest.fixture(scope="module")
def recordings():
    config = EngineConfig("bench", ModelConfig("fake:step_ms=3"), batch=BatchConfig(4, 64))
    with open_subject(config, None, None) as subject:
        requests = requests_of(equal_prompts(6, 8), [2] * 6, subject.vocab_size)
        return {schedule: record(subject, requests, schedule) for schedule in Schedule}


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_step_is_recorded_in_every_row(recordings, schedule):
    """The requests of one full batch, answered long enough to find steady steps."""
    recording = recordings[schedule]
    for work in set(Work) - {Work.SCHEDULE, Work.LAUNCH}:
        assert [span.step for span in recording.spans if span.work is work] == list(range(48)), work
    launches = [span.step for span in recording.spans if span.work is Work.LAUNCH]
    assert launches == [step for step in range(48) for _ in range(2)]
    assert recording.steady_steps == tuple(range(1, 48))


def test_only_the_asynchronous_mode_prepares_a_step_before_the_last_has_ended(recordings):
    def early(schedule):
        spans = recordings[schedule].spans
        ends = {span.step: span.end_s for span in spans if span.lane is Lane.COMPUTE}
        return sum(span.end_s < ends[span.step - 1] for span in spans if span.work is Work.STAGE and span.step)

    assert early(Schedule.SYNC) == 0
    assert early(Schedule.ASYNC) > 24


def test_the_picture_is_drawn(recordings, tmp_path):
    """A PNG of both modes; that it is easy to read, only eyes can tell."""
    pytest.importorskip(
        "matplotlib", reason="matplotlib is missing, so THE PICTURE IS NOT TESTED here: pip install '.[bench]'"
    )
    from pipelines.benchmark.drawing import Panel, draw

    panels = [Panel(timeline, 0.9, 0.01, 3.3) for timeline in windows(list(recordings.values()))]
    draw(panels, "a fake model", tmp_path / "t.png")
    content = (tmp_path / "t.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000
