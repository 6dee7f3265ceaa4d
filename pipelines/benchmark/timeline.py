"""What the host and the device did when, in a few steps: the data of a picture that shows whether there are gaps.

Host times are taken around the loop's own calls by wrappers that stand in for scheduler, runner and slots; device times are the
runner's step times. The start of an input copy is not marked on the device: it is at the latest when `stage` returns.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

from pipelines.benchmark.measure import Subject, drive
from pipelines.config import BatchConfig, Schedule
from pipelines.core.batch import Batch
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import TokenRequest
from pipelines.core.runner import StepTime
from pipelines.core.scheduler import Committed, Scheduler
from pipelines.errors import EngineError

P = ParamSpec("P")
R = TypeVar("R")

NUM_TOKENS = 48  # of each sequence in a recorded run
_NUM_STEPS = 4  # shown, of the slower mode; the other shows more in the same time


class Lane(StrEnum):
    """A row of the picture."""

    CPU = "CPU"
    H2D = "H2D"
    COMPUTE = "Compute"
    D2H = "D2H"


class Work(StrEnum):
    """What fills a stretch of a row."""

    SCHEDULE = "schedule"
    STAGE = "stage"
    LAUNCH = "launch"
    WAIT = "wait for tokens"
    COMMIT = "commit"
    H2D = "copy to the device"
    COMPUTE = "compute"
    D2H = "copy back"


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a row, on CLOCK_MONOTONIC."""

    lane: Lane
    work: Work
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Recording:
    """All of a short run."""

    schedule: Schedule
    spans: tuple[Span, ...]
    steady_steps: tuple[int, ...]  # decode steps of all sequences, in order


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steady steps of one mode; times count from the start of the window, which is that of a step on the device."""

    schedule: Schedule
    spans: tuple[Span, ...]  # cut to the window, in the order of their starts
    length_s: float  # of the window

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """When the compute row is empty: (start, end) in seconds."""
        computes = [span for span in self.spans if span.lane is Lane.COMPUTE]
        edges = [0.0, *(edge for span in computes for edge in (span.start_s, span.end_s)), self.length_s]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]

    def close_up(self) -> "CloseUp":
        """Return a typical change from one step to the next: the one of median gap."""
        computes = [span for span in self.spans if span.lane is Lane.COMPUTE]
        changes = sorted(pairwise(computes), key=lambda change: change[1].start_s - change[0].end_s)
        before, after = changes[(len(changes) - 1) // 2]
        host_s = sum(span.end_s - span.start_s for span in self.spans if _is_host_work(span)) / len(computes)
        return CloseUp((before.step, after.step), before.end_s, after.start_s, host_s)


@dataclass(frozen=True, slots=True)
class CloseUp:
    """The change from one step on the device to the next."""

    steps: tuple[int, int]
    end_s: float  # of the first
    start_s: float  # of the second
    host_s: float  # that the host works a step, on average

    @property
    def extent_s(self) -> float:
        """How long what there is to see takes: the host's work, and the gap where that is longer."""
        return max(self.host_s, self.start_s - self.end_s)


def _is_host_work(span: Span) -> bool:
    return span.lane is Lane.CPU and span.work is not Work.WAIT


class Recorder:
    """Collects spans, in the order in which they end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._staged_s: dict[int, float] = {}  # step -> when `stage` had returned
        self._read: set[int] = set()  # steps whose tokens were read
        self._times: list[StepTime] = []
        self._spans: list[Span] = []

    def host(self, work: Work, step: int, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` and take its time."""
        start_s = self._clock()
        result = fn(*args, **kwargs)
        end_s = self._clock()
        self._spans.append(Span(Lane.CPU, work, step, start_s, end_s))
        if work is Work.STAGE:
            self._staged_s[step] = end_s
        elif work is Work.WAIT:
            self._read.add(step)
        return result

    def device(self, times: Iterable[StepTime]) -> None:
        """Take the times of steps that are over."""
        self._times += times

    def spans(self) -> list[Span]:
        """Return everything there is, of the device only the steps whose tokens were read."""
        spans = list(self._spans)
        for step in self._times:
            number = step.step
            if number not in self._read:
                continue
            h2d_start_s = min(self._staged_s[number], step.inputs_s)
            spans += [
                Span(Lane.H2D, Work.H2D, number, h2d_start_s, step.inputs_s),
                Span(Lane.COMPUTE, Work.COMPUTE, number, step.start_s, step.end_s),
                Span(Lane.D2H, Work.D2H, number, step.end_s, step.read_s),
            ]
        return spans


class RecordedSlot:
    """A slot whose calls are timed."""

    def __init__(self, slot: Any, recorder: Recorder) -> None:
        self.inner = slot
        self._recorder = recorder
        self.step = -1

    def stage(self, batch: Batch) -> None:
        """See `Slot`."""
        self.step = batch.step
        self._recorder.host(Work.STAGE, self.step, self.inner.stage, batch)

    def read_tokens(self) -> list[int]:
        """See `Slot`."""
        tokens: list[int] = self._recorder.host(Work.WAIT, self.step, self.inner.read_tokens)
        return tokens


class RecordedRunner:
    """A runner whose calls are timed, and whose step times are taken down on their way."""

    def __init__(self, runner: Any, recorder: Recorder) -> None:
        self._runner = runner
        self._recorder = recorder
        self.slots = [RecordedSlot(slot, recorder) for slot in runner.slots]

    def launch_forward(self, slot: RecordedSlot) -> None:
        """See `Runner`."""
        self._recorder.host(Work.LAUNCH, slot.step, self._runner.launch_forward, slot.inner)

    def launch_sample(self, slot: RecordedSlot, masks: dict[int, bytes]) -> None:
        """See `Runner`."""
        self._recorder.host(Work.LAUNCH, slot.step, self._runner.launch_sample, slot.inner, masks)

    def take_step_times(self) -> list[StepTime]:
        """See `Runner`."""
        times: list[StepTime] = self._runner.take_step_times()
        self._recorder.device(times)
        return times

    def close(self) -> None:
        """See `Runner`."""
        self._runner.close()


class RecordedScheduler(Scheduler):
    """A scheduler whose calls are timed."""

    def __init__(self, config: BatchConfig, blocks: BlockManager, recorder: Recorder) -> None:
        super().__init__(config, blocks)
        self._recorder = recorder
        self._decodes: list[int] = []  # rows of each step; 0 where it has a chunk of a prompt

    def schedule(self) -> Batch | None:
        """See `Scheduler`."""
        batch = self._recorder.host(Work.SCHEDULE, len(self._decodes), super().schedule)
        if batch is not None:
            self._decodes.append(batch.num_rows if batch.num_tokens == batch.num_rows else 0)
        return batch

    def steady_steps(self, num_rows: int) -> tuple[int, ...]:
        """Return the decode steps of so many sequences."""
        return tuple(step for step, rows in enumerate(self._decodes) if rows == num_rows)

    def commit(self, batch: Batch, tokens: Iterable[int]) -> Committed:
        """See `Scheduler`."""
        return self._recorder.host(Work.COMMIT, batch.step, super().commit, batch, tokens)


def record(subject: Subject, requests: Sequence[TokenRequest], schedule: Schedule) -> Recording:
    """Run the requests of one full batch for a few tokens each.

    Raises:
        EngineError: a step failed.
    """
    batch = subject.config.batch
    short = [replace(request, max_tokens=NUM_TOKENS) for request in requests[: batch.max_num_seqs]]
    recorder = Recorder()
    scheduler = RecordedScheduler(batch, BlockManager(subject.num_blocks, subject.block_size), recorder)
    drive(RecordedRunner(subject.runner, recorder), scheduler, short, schedule)
    return Recording(schedule, tuple(recorder.spans()), scheduler.steady_steps(len(short)))


def windows(recordings: Sequence[Recording], num_steps: int = _NUM_STEPS) -> list[Timeline]:
    """Cut a window of one length out of the middle of each recording: so many steps of the slowest.

    Raises:
        EngineError: a recording has too few steady steps.
    """
    starts = [_middle_starts(recording, num_steps) for recording in recordings]
    length_s = max(found[num_steps] - found[0] for found in starts)
    length_s = min(length_s, *(found[-1] - found[0] for found in starts))
    return [_cut(recording, found[0], length_s) for recording, found in zip(recordings, starts, strict=True)]


def _middle_starts(recording: Recording, num_steps: int) -> list[float]:
    """Return the starts of the steady steps on the device, from the middle one on."""
    steady = set(recording.steady_steps)
    starts = sorted(span.start_s for span in recording.spans if span.lane is Lane.COMPUTE and span.step in steady)
    found = starts[len(starts) // 2 :]
    if len(found) <= num_steps:
        raise EngineError(f"a timeline needs {2 * num_steps + 2} decode steps of a full batch, found {len(starts)}")
    return found


def _cut(recording: Recording, start_s: float, length_s: float) -> Timeline:
    spans = sorted(
        (
            replace(span, start_s=max(span.start_s - start_s, 0.0), end_s=min(span.end_s - start_s, length_s))
            for span in recording.spans
            if span.end_s > start_s and span.start_s < start_s + length_s
        ),
        key=lambda span: span.start_s,
    )
    return Timeline(recording.schedule, tuple(spans), length_s)
