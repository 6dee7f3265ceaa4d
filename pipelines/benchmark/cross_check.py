"""Holds the engine's account of its device's time against CUPTI's record of the same steps.

Recording slows the host and the device down, so nothing of such a run is a measurement of speed; but both accounts are of the
same steps, and must agree.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from pipelines.benchmark.device_trace import SMALL_GAP_US, DeviceTrace, read_trace
from pipelines.benchmark.measure import ListSource, Subject
from pipelines.benchmark.report import aligned, percent
from pipelines.config import Schedule
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import TokenRequest
from pipelines.core.runner import StepTime
from pipelines.core.scheduler import Scheduler
from pipelines.engine import Engine
from pipelines.errors import EngineError
from pipelines.heap import all_set_aside

NUM_STEPS = 50  # of a window
_NUM_KERNELS = 12  # that the table names
_EDGE_STEPS = 24  # left out at the start, where prompts are computed, and at the end
_NUM_BEHIND = 2  # steps in flight when the recording ends, which its end waits for


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps by both accounts."""

    place: str  # start, middle or end
    first_step: int
    trace: DeviceTrace
    busy_share: float  # by the engine's events, of the time from the end of the first step to that of the last
    unproven_share: float

    @property
    def problems(self) -> list[str]:
        """In what a steady step does otherwise than it should."""
        trace = self.trace
        found = [
            f"{name}: found {count} in {trace.num_steps} steps, expected none"
            for name, count in trace.other_waits.items()
        ]
        if trace.num_waits != trace.num_steps:
            found.append(f"waits for an event: found {trace.num_waits} in {trace.num_steps} steps, expected one a step")
        return [f"{self.place}: {text}" for text in found]

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "cupti_busy_share": self.trace.busy_share}


class _TimesKept:
    """A runner whose steps are counted and whose step times are kept."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.slots = runner.slots
        self.launch_forward = runner.launch_forward
        self.num_launched = 0
        self.times: list[StepTime] = []

    def launch_sample(self, slot: Any, masks: dict[int, bytes]) -> None:
        """See `Runner`."""
        self._runner.launch_sample(slot, masks)
        self.num_launched += 1

    def take_step_times(self) -> list[StepTime]:
        """See `Runner`."""
        times: list[StepTime] = self._runner.take_step_times()
        self.times += times
        return times


def cross_check(subject: Subject, requests: Sequence[TokenRequest], tell: Callable[[str], None]) -> list[Window]:
    """Run the requests asynchronously, and record a window at their start, middle and end.

    Raises:
        EngineError: there are too few steps, a step failed, or nothing could be recorded.
    """
    last = max(request.max_tokens for request in requests) - NUM_STEPS - _EDGE_STEPS
    if last < 3 * NUM_STEPS:
        raise EngineError(
            f"a cross-check needs {4 * NUM_STEPS + _EDGE_STEPS} steps, found {last + NUM_STEPS + _EDGE_STEPS}"
        )
    runner = _TimesKept(subject.runner)
    scheduler = Scheduler(subject.config.batch, BlockManager(subject.num_blocks, subject.block_size))
    engine: Engine[Any] = Engine(cast("Any", runner), scheduler, ListSource(requests), Schedule.ASYNC)
    traces = []
    with all_set_aside():  # as the engine's process does
        with _recording():  # the first one in a process sets CUPTI up
            engine.turn()  # takes the requests
        for place, first in (("start", _EDGE_STEPS), ("middle", (_EDGE_STEPS + last) // 2), ("end", last)):
            _run_until(engine, scheduler, runner, first)
            traces.append((place, *_record(engine, scheduler, runner)))
            tell(f"{place}: busy by CUPTI {percent(traces[-1][-1].busy_share)}")
        _run_until(engine, scheduler, runner, sys.maxsize)
    return [_window(place, first, trace, runner.times) for place, first, trace in traces]


def cross_check_table(windows: Sequence[Window]) -> list[str]:
    """Return a line a figure, a column a window."""
    rows = [
        ["", *(f"{window.place}, step {window.first_step:,}" for window in windows)],
        ["steps", *(str(window.trace.num_steps) for window in windows)],
        ["stream-busy by the engine's events", *(percent(window.busy_share) for window in windows)],
        ["unproven", *(percent(window.unproven_share) for window in windows)],
        ["busy by CUPTI, small gaps merged", *(percent(window.trace.busy_share) for window in windows)],
        ["small gaps alone", *(percent(window.trace.small_gaps_us / window.trace.length_us) for window in windows)],
        ["longest gap, us", *(f"{window.trace.longest_gap_us:.1f}" for window in windows)],
        ["small gaps a step", *(_each(window, window.trace.num_small_gaps) for window in windows)],
        ["waits of the host a step", *(_each(window, window.trace.num_waits) for window in windows)],
        ["copies to the device a step", *(_each(window, window.trace.num_to_device) for window in windows)],
        ["other calls that may wait", *(str(sum(window.trace.other_waits.values())) for window in windows)],
    ]
    calls = windows[-1].trace.calls
    listed = ", ".join(f"{name} {count / windows[-1].trace.num_steps:.2f}" for name, count in sorted(calls.items()))
    return [
        *aligned([*rows, *_kernel_rows(windows)]),
        f"small gaps: under {SMALL_GAP_US:g} us, as between the kernels of a graph; recording lengthens gaps and steps",
        f"calls of the host a step, at the end: {listed}",
    ]


def _kernel_rows(windows: Sequence[Window]) -> list[list[str]]:
    """Return the kernels that take longest, a row each: microseconds a step, with the gap in front of each."""
    names = {name for window in windows for name in window.trace.kernel_us}
    times = {
        name: [window.trace.kernel_us.get(name, 0.0) / window.trace.num_steps for window in windows] for name in names
    }
    longest = sorted(names, key=lambda name: (-sum(times[name]), name))[:_NUM_KERNELS]
    return [[f"us a step, {name}", *(f"{value:,.1f}" for value in times[name])] for name in longest]


def _each(window: Window, count: int) -> str:
    return f"{count / window.trace.num_steps:.2f}"


def _run_until(engine: Engine[Any], scheduler: Scheduler, runner: _TimesKept, num_launched: int) -> None:
    while runner.num_launched < num_launched and not scheduler.is_empty:
        engine.turn()


def _record(engine: Engine[Any], scheduler: Scheduler, runner: _TimesKept) -> tuple[int, DeviceTrace]:
    """Return the number of the step before a window, and what was recorded of it."""
    with _recording() as profiler:
        _run_until(engine, scheduler, runner, runner.num_launched + NUM_STEPS + 2 * _NUM_BEHIND)
    with TemporaryDirectory(prefix="gapless-trace-") as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    trace = read_trace(events, NUM_STEPS, _NUM_BEHIND)
    return runner.num_launched - 1 - _NUM_BEHIND - NUM_STEPS, trace


def _recording() -> Any:
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415  the fake engine does without torch

    return profile(activities=[ProfilerActivity.CUDA], acc_events=True)


def _window(place: str, before: int, trace: DeviceTrace, times: Sequence[StepTime]) -> Window:
    steps = times[before + 1 : before + 1 + trace.num_steps]
    span_s = steps[-1].end_s - times[before].end_s
    unproven_s = sum(step.unproven_s for step in steps)
    busy_s = sum(step.end_s - step.start_s for step in steps) - unproven_s
    return Window(place, before + 1, trace, busy_s / span_s, unproven_s / span_s)
