"""The CPU twin of a CUDA stream: a thread, and futures for its events."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec

import torch

from pipelines.errors import EngineError, InvariantError
from pipelines.runtime.streams import Event, as_engine_error

P = ParamSpec("P")


class CpuEvent:
    """A future that holds the time at which a `CpuStream` came past it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._time_s: Future[float] = Future()

    @property
    def name(self) -> str:
        """See `Event`."""
        return self._name

    @property
    def is_done(self) -> bool:
        """See `Event`."""
        return self._time_s.done()

    @property
    def time_s(self) -> float:
        """See `Event`."""
        if not self._time_s.done():
            raise InvariantError(f"event {self._name} was asked for its time before it was done")
        return self._time_s.result()

    def wait(self) -> None:
        """See `Event`."""
        self._time_s.result()

    def reach(self) -> None:
        """Mark it done now; called by its stream."""
        self._time_s.set_result(time.monotonic())

    def fail(self, error: EngineError) -> None:
        """Mark it done by a failure before it; called by its stream."""
        self._time_s.set_exception(error)


class CpuStream:
    """One daemon thread that runs what it is given in order, in inference mode.

    `before_each` is called in the thread before each launched function: tests delay streams with it, to shake out races.
    """

    def __init__(self, name: str, num_threads: int = 1, before_each: Callable[[], None] | None = None) -> None:
        self._name = name
        self._num_threads = num_threads
        self._before_each = before_each
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: EngineError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_all, name=f"stream-{name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """See `Stream`."""
        return self._name

    def launch(self, fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """See `Stream`."""
        self._work.put(partial(self._run, partial(fn, *args, **kwargs)))

    def record(self, name: str) -> Event:
        """See `Stream`."""
        event = CpuEvent(name)
        if self._is_closed:
            event.fail(self._closed_error())
        else:
            self._work.put(partial(self._pass, event))
        return event

    def wait(self, event: Event) -> None:
        """See `Stream`."""
        self._work.put(partial(self._run, event.wait, is_delayed=False))

    def close(self) -> None:
        """See `Stream`."""
        if not self._is_closed:
            self._is_closed = True
            self._work.put(None)

    def join(self) -> None:
        """See `Stream`."""
        self._thread.join()

    def _closed_error(self) -> EngineError:
        return EngineError(f"the {self._name} stream was closed before this work ran")

    def _run_all(self) -> None:
        # Threads of OpenMP and inference mode belong to the thread that asks for them. The getter makes torch take over
        # the process-wide number first, which a later first use would otherwise put in place of ours.
        torch.get_num_threads()
        torch.set_num_threads(self._num_threads)
        with torch.inference_mode():
            while (work := self._work.get()) is not None:
                if self._is_closed and self._failure is None:
                    self._failure = self._closed_error()
                work()

    def _run(self, fn: Callable[[], object], *, is_delayed: bool = True) -> None:
        if self._failure is not None:
            return
        try:
            if is_delayed and self._before_each is not None:
                self._before_each()
            fn()
        except Exception as error:  # noqa: BLE001  whatever it is, it reaches the host through the events behind it
            self._failure = as_engine_error(error, self._name)

    def _pass(self, event: CpuEvent) -> None:
        if self._failure is None:
            event.reach()
        else:
            event.fail(self._failure)
