"""CUDA streams and events behind the protocols of `streams`."""

import time
from collections.abc import Callable
from typing import Any, ParamSpec

import torch

from pipelines.errors import EngineError, InvariantError
from pipelines.runtime.streams import Event, as_engine_error

P = ParamSpec("P")

_REANCHOR_S = 10.0  # float32 milliseconds, which CUDA measures in, keep 1 us up to here


class CudaClock:
    """Turns CUDA events into times of the host's CLOCK_MONOTONIC, by their distance from one whose time is known."""

    def __init__(self, stream: Any) -> None:
        self._anchor = _new_event()
        self._anchor.record(stream)
        self._anchor.synchronize()
        self._anchor_s = time.monotonic()

    def time_s(self, event: Any) -> float:
        """Return when `event`, which is done, was reached."""
        distance_s: float = self._anchor.elapsed_time(event) / 1e3
        time_s = self._anchor_s + distance_s
        if distance_s > _REANCHOR_S:
            self._anchor, self._anchor_s = event, time_s
        return time_s


class CudaEvent:
    """A CUDA event that knows its name and when it was reached, or the failure that its stream had before it."""

    def __init__(self, name: str, cuda: Any, clock: CudaClock, failure: EngineError | None) -> None:
        self._name = name
        self._clock = clock
        self.cuda = cuda
        self.failure = failure

    @property
    def name(self) -> str:
        """See `Event`."""
        return self._name

    @property
    def is_done(self) -> bool:
        """See `Event`."""
        try:
            return self.failure is not None or bool(self.cuda.query())
        except RuntimeError:  # the device failed; `wait` says how
            return True

    @property
    def time_s(self) -> float:
        """See `Event`."""
        self.wait()
        return self._clock.time_s(self.cuda)

    def wait(self) -> None:
        """See `Event`."""
        if self.failure is not None:
            raise self.failure
        try:
            self.cuda.synchronize()
        except RuntimeError as error:
            raise as_engine_error(error, f"device before {self._name}") from error


class CudaStream:
    """A CUDA stream; functions run at once in the calling thread and enqueue their kernels and copies on it."""

    def __init__(self, name: str, device: torch.device, priority: int = 0) -> None:
        self._name = name
        self._stream: Any = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]  # torch's stub
        self._clock = CudaClock(self._stream)
        self._failure: EngineError | None = None

    @property
    def name(self) -> str:
        """See `Stream`."""
        return self._name

    def launch(self, fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """See `Stream`."""
        if self._failure is not None:
            return
        try:
            with torch.cuda.stream(self._stream), torch.inference_mode():
                fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is, it reaches the host through the events behind it
            self._failure = as_engine_error(error, self._name)

    def record(self, name: str) -> Event:
        """See `Stream`."""
        event = _new_event()
        if self._failure is None:
            try:
                event.record(self._stream)
            except RuntimeError as error:
                self._failure = as_engine_error(error, self._name)
        return CudaEvent(name, event, self._clock, self._failure)

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
