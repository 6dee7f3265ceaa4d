"""A request on its way to an engine, and what can come back."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from daemon.result_line import LineError
from pipelines.core.request import RequestOutput, RequestRefused, TextRequest


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A valid request ends without an answer; becomes a line-level error."""

    code: LineError
    message: str  # for the line: nothing in it depends on chance
    detail: str = ""  # for the log alone


def took_too_long(timeout_s: float) -> Unanswered:
    """Return what a request gets that is not finished in time."""
    message = f"not finished within limits.request_timeout_s ({timeout_s:g} s) of reaching the engine"
    return Unanswered(LineError.TIMED_OUT, message)


def ended_the_engine(how: str) -> Unanswered:
    """Return what a request gets of which the engine died; `how` is for the log."""
    message = "the engine died of this request each time it was tried, at last while it ran it alone"
    return Unanswered(LineError.ENGINE, message, how)


Answer = RequestOutput | RequestRefused | Unanswered


def _nobody(_: object) -> None:
    return


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A request ready to go, and what to do with its answer."""

    request: TextRequest  # its key is given when it is sent
    num_bytes: int  # its size, for the credits
    on_done: Callable[[Answer], None]  # called once
    num_tokens: int = 1  # about how many it takes, for the turns between files
    timeout_s: float | None = None  # from the moment it is sent
    num_deaths: int = 0  # attempts at it that the engine's death ended before it came here
    on_death: Callable[[int], None] = _nobody  # told their number whenever it grows
    on_sent: Callable[[str], None] = _nobody  # told the engine's name at each attempt
    submitted_s: float = field(default_factory=time.monotonic)  # CLOCK_MONOTONIC, when it was ready to go
