"""Where the device's time went: busy, unproven or idle with its cause, without a gap and without an overlap.

Time is accounted from one mark to the next. A step moves the mark to its end:

    mark            work_since        launched          inputs         start               end
     |----- empty ------|----- host ------|----- h2d ------|--- host ----|---- busy --------|
                                                                           (in part unproven)

`work_since` is when the engine last got its first request after having had none; before it there was nothing to launch.
"""

from pipelines.core.request import DeviceTime
from pipelines.core.runner import StepTime


class DeviceClock:
    """Adds up device time between two reports. All times are CLOCK_MONOTONIC seconds."""

    def __init__(self, now_s: float) -> None:
        self._mark_s = now_s
        self._work_since_s: float | None = None  # None: the engine holds no request
        self._start_report(now_s)

    def note_work(self, now_s: float) -> None:
        """The engine holds requests from now on."""
        if self._work_since_s is None:
            self._work_since_s = now_s

    def note_empty(self) -> None:
        """The engine holds no request; every step has been added."""
        self._work_since_s = None

    def add_step(self, step: StepTime) -> float:
        """Account for the time from the mark to the end of a step; return the seconds that the device waited for it."""
        start_s = max(step.start_s, self._mark_s)
        end_s = max(step.end_s, start_s)
        work_since_s = start_s if self._work_since_s is None else self._work_since_s
        empty_end_s = _clamp(work_since_s, self._mark_s, start_s)
        launched_s = _clamp(step.launched_s, empty_end_s, start_s)
        inputs_s = _clamp(step.inputs_s, launched_s, start_s)
        self._empty_s += empty_end_s - self._mark_s
        self._host_s += (launched_s - empty_end_s) + (start_s - inputs_s)
        self._h2d_s += inputs_s - launched_s
        unproven_s = min(step.unproven_s, end_s - start_s)
        self._busy_s += end_s - start_s - unproven_s
        self._unproven_s += unproven_s
        self._mark_s = end_s
        return start_s - empty_end_s

    def report(self, now_s: float) -> DeviceTime:
        """Return what has been accounted for since the last report; an engine without requests accounts up to now."""
        if self._work_since_s is None and now_s > self._mark_s:
            self._empty_s += now_s - self._mark_s
            self._mark_s = now_s
        time = DeviceTime(
            start_s=self._report_start_s,
            end_s=self._mark_s,
            busy_s=self._busy_s,
            unproven_s=self._unproven_s,
            empty_s=self._empty_s,
            host_s=self._host_s,
            h2d_s=self._h2d_s,
        )
        self._start_report(self._mark_s)
        return time

    def _start_report(self, start_s: float) -> None:
        self._report_start_s = start_s
        self._busy_s = self._unproven_s = self._empty_s = self._host_s = self._h2d_s = 0.0


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
