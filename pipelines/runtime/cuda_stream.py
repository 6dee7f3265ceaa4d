"""CUDA streams and events behind the protocols of `streams`."""

import time
from collections.abc import Callable
from typing import Any, ParamSpec

import torch

from pipelines.errors import EngineError, InvariantError
from pipelines.runtime.streams import Event, as_engine_error, is_out_of_memory

P = ParamSpec("P")

_REANCHOR_S = 10.0  # float32 milliseconds, which CUDA measures in, keep 1 us up to here


class CudaClock:
    """Places CUDA events on the host's CLOCK_MONOTONIC by their distance from one whose time is known. One for a device.

    The device's clock drifts against the host's (10 us in a second were seen on an H200), so a distance alone would be wrong by
    a millisecond within two minutes. But the host recorded an event before the device reached it, and saw it done only after
    that. Where a distance contradicts this, the clock is set by as much: with events recorded on idle streams and waited for
    at the end of each step, it stays within some microseconds.
    """

    def __init__(self, anchor: Any, anchor_s: float) -> None:
        self._anchor = anchor  # an event that is done
        self._anchor_s = anchor_s  # when it was reached

    @classmethod
    def start(cls, device: torch.device) -> "CudaClock":
        """Return a clock of a device that has nothing to do yet."""
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's stub
        anchor = _new_event()
        anchor.record(stream)
        anchor.synchronize()
        return cls(anchor, time.monotonic())

    def time_s(self, event: Any, recorded_s: float, seen_s: float) -> float:
        """Return when `event` was reached, which the host began to record at `recorded_s` and saw done at `seen_s`."""
        distance_s: float = self._anchor.elapsed_time(event) / 1e3
        measured_s = self._anchor_s + distance_s
        time_s = min(max(measured_s, recorded_s), seen_s)
        self._anchor_s += time_s - measured_s
        if distance_s > _REANCHOR_S:
            self._anchor, self._anchor_s = event, time_s
        return time_s


class CudaEvent:
    """A CUDA event that knows its name and when it was reached, or the failure that its stream had before it."""

    def __init__(self, name: str, clock: CudaClock) -> None:
        self._name = name
        self._clock = clock
        self._recorded_s = time.monotonic()
        self._seen_s: float | None = None  # when the host first saw it done
        self.cuda = _new_event()
        self.failure: EngineError | None = None

    @property
    def name(self) -> str:
        """See `Event`."""
        return self._name

    @property
    def is_done(self) -> bool:
        """See `Event`."""
        if self.failure is not None or self._seen_s is not None:
            return True
        try:
            if not self.cuda.query():
                return False
        except RuntimeError:  # the device failed; `wait` says how
            return True
        self._seen_s = time.monotonic()
        return True

    @property
    def time_s(self) -> float:
        """See `Event`."""
        if not self.is_done or self._seen_s is None:
            self.wait()
        return self._clock.time_s(self.cuda, self._recorded_s, self._seen_s or time.monotonic())

    def wait(self) -> None:
        """See `Event`."""
        if self.failure is not None:
            raise self.failure
        try:
            self.cuda.synchronize()
        except RuntimeError as error:
            raise as_engine_error(error, f"device before {self._name}") from error
        self._seen_s = self._seen_s or time.monotonic()


class CudaStream:
    """A CUDA stream; functions run at once in the calling thread and enqueue their kernels and copies on it.

    They are not in inference mode unless they see to it: entering it takes longer than a copy, of which a step has several.
    """

    def __init__(self, name: str, device: torch.device, clock: CudaClock, priority: int = 0) -> None:
        self._name = name
        self._device = device
        self._stream: Any = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]  # torch's stub
        self._clock = clock
        self._failure: EngineError | None = None

    @property
    def name(self) -> str:
        """See `Stream`."""
        return self._name

    def launch(self, fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """See `Stream`."""
        if self._failure is not None:
            return
        before = torch.cuda.current_stream(self._device)
        try:
            torch.cuda.set_stream(self._stream)  # not `with torch.cuda.stream`, which takes 18 us, four times a step
            fn(*args, **kwargs)
        except Exception as error:  # whatever else it is, it reaches the host through the events behind it
            failure = as_engine_error(error, self._name)
            if is_out_of_memory(error):
                raise failure from error  # what was enqueued so far runs
            self._failure = failure
        finally:
            torch.cuda.set_stream(before)

    def record(self, name: str) -> Event:
        """See `Stream`."""
        event = CudaEvent(name, self._clock)
        if self._failure is None:
            try:
                event.cuda.record(self._stream)
            except RuntimeError as error:
                self._failure = as_engine_error(error, self._name)
        event.failure = self._failure
        return event

    def wait(self, event: Event) -> None:
        """See `Stream`.

        Raises:
            InvariantError: the event is of no CUDA stream.
        """
        if not isinstance(event, CudaEvent):
            raise InvariantError(f"the CUDA stream {self._name} cannot wait for {event.name}, which is no CUDA event")
        if event.failure is not None:
            self._failure = self._failure or event.failure
        else:
            self._stream.wait_event(event.cuda)

    def close(self) -> None:
        """See `Stream`."""
        self._failure = self._failure or EngineError(f"the {self._name} stream was closed before this work ran")

    def join(self) -> None:
        """See `Stream`."""
        self._stream.synchronize()


def _new_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's stub
