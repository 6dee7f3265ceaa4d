"""A request on its way to an engine, and what can come back."""

from collections.abc import Callable
from dataclasses import dataclass

from daemon.result_line import LineError
from pipelines.core.request import RequestOutput, RequestRefused, TextRequest


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A valid request ends without an answer; becomes a line-level error."""

    code: LineError
    message: str  # for the line: nothing in it depends on chance
    detail: str = ""  # for the log alone


Answer = RequestOutput | RequestRefused | Unanswered


def _nobody(num_deaths: int) -> None:
    del num_deaths


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
