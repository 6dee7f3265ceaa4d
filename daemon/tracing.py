"""What traces are told of files and requests; without a collector nothing is kept and nothing costs.

A file is a trace: its span has one for each stage, and below the stage in which it runs one for each request that is chosen. What
goes into them is known when a request ends, so a request that is not chosen costs one comparison, and none is open meanwhile.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from daemon.errors import TracingError
from daemon.request_record import ParsedRequest
from daemon.submission import Answer
from pipelines.core.request import SamplingParams

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class RequestStory:
    """One request from being read to its end. Times are CLOCK_MONOTONIC seconds."""

    request_id: str
    parsed: ParsedRequest
    sampling: SamplingParams  # as it was run, None where the model's own holds
    model: str  # that ran it
    taken_s: float
    sent_s: tuple[float, ...]  # of each attempt
    died_s: tuple[float, ...]  # of each death of the engine while it had it
    ended_s: float
    answer: Answer


class FileTrace(Protocol):
    """The trace of one file. Used from the event loop's thread."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context for one stage; stages do not overlap."""
        ...

    def wants(self, answer: Answer) -> bool:
        """Whether a request that ends so is to be told; it counts against what may be told a second."""
        ...

    def request(self, story: RequestStory) -> None:
        """Tell a request."""
        ...

    def end(self, attributes: Attributes, error: str | None) -> None:
        """End it; what comes later is not told. `error` is a word for why it did not end well, None if it did."""
        ...


class Tracing(Protocol):
    """Where traces go."""

    def file(self, pipeline: str, name: str) -> FileTrace:
        """Begin the trace of a file."""
        ...

    def close(self) -> None:
        """Send what is left, within a few seconds."""
        ...


class NoTracing:
    """Tells nobody."""

    def file(self, pipeline: str, name: str) -> FileTrace:
        """See `Tracing`."""
        del pipeline, name
        return _NoFileTrace()

    def close(self) -> None:
        """See `Tracing`."""


class _NoFileTrace:
    def stage(self, name: str) -> AbstractContextManager[None]:
        del name
        return nullcontext()

    def wants(self, answer: Answer) -> bool:
        del answer
        return False

    def request(self, story: RequestStory) -> None:
        del story

    def end(self, attributes: Attributes, error: str | None) -> None:
        del attributes, error


class SpanAllowance:
    """How many spans may be made: so many a second, and after a while with fewer up to a burst of ten seconds' worth."""

    _BURST_S = 10.0

    def __init__(self, per_s: float, now: Callable[[], float]) -> None:
        self._per_s = per_s
        self._now = now
        self._left = per_s * self._BURST_S
        self._at_s = now()

    def take(self) -> bool:
        """Take one, if there is one left."""
        now_s = self._now()
        self._left = min(self._per_s * self._BURST_S, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def open_tracing(endpoint: str | None, requests_per_s: float) -> Tracing:
    """Return where traces go; `endpoint` None makes none.

    Raises:
        TracingError: the packages for it are not installed.
    """
    if endpoint is None:
        return NoTracing()
    try:
        from daemon.otel import open_otlp  # noqa: PLC0415  the optional extra
    except ModuleNotFoundError as error:
        raise TracingError(
            f"daemon.tracing.endpoint: found no package {error.name}, expected the extra otel: pip install 'gapless[otel]'"
        ) from error
    return open_otlp(endpoint, requests_per_s)
