"""What happens to one request, told to the log under the id that its result line bears.

A request that goes well is said at debug, what a person may have to look into above it. The id (`req_...`) is made of the file's
content and the request's place, so it is the same after a restart, and the same in the log, the result files and the traces.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from daemon.request_record import BadLine, ParsedRequest
from daemon.result_line import LineError, Refusal
from daemon.submission import Answer, Unanswered
from pipelines.core.request import RequestOutput, RequestRefused

log = logging.getLogger(__name__)

_GRAVITY = {
    LineError.EXPIRED: logging.DEBUG,  # the file's own line says it of all of them
    LineError.CANCELLED: logging.DEBUG,
    LineError.TIMED_OUT: logging.WARNING,
    LineError.ENGINE: logging.ERROR,
}


@dataclass(frozen=True, slots=True)
class FileInLog:
    """The file of a request, for the log."""

    pipeline: str
    name: str  # as it was dropped, printable
    request_id: Callable[[int], str]  # of the request of this index

    def say(self, level: int, place: ParsedRequest | BadLine, text: str, stacklevel: int = 2) -> None:
        """Log what happens to a request; `stacklevel` counts from the code whose lines are of one kind."""
        if not log.isEnabledFor(level):
            return
        request_id = self.request_id(place.index)
        names: dict[str, Any] = {"pipeline": self.pipeline, "file": self.name, "line": place.line}
        names |= {"custom_id": place.custom_id, "request_id": request_id}
        log.log(
            level, "pipeline %s: %s line %d (%s) %s", self.pipeline, self.name, place.line, request_id, text,
            extra=names, stacklevel=stacklevel,
        )  # fmt: skip

    def refused(self, place: ParsedRequest | BadLine, refusal: Refusal | BadLine) -> None:
        """A request is no good and goes to no engine."""
        self.say(logging.INFO, place, f"is refused ({refusal.code}): {refusal.message}")


class RequestTrail:
    """One request on its way through an engine. Used from the event loop's thread."""

    __slots__ = ("_file", "_num_attempts", "_num_deaths", "_parsed", "sent_s", "taken_s")

    def __init__(self, file: FileInLog, parsed: ParsedRequest, num_deaths: int) -> None:
        """Begin when it is read; `num_deaths` attempts ended with the engine before."""
        self.taken_s = time.monotonic()
        self.sent_s = 0.0  # CLOCK_MONOTONIC, of the last attempt; 0: none yet
        self._file = file
        self._parsed = parsed
        self._num_attempts = 0
        self._num_deaths = num_deaths

    @property
    def num_attempts(self) -> int:
        """How often it was sent to an engine in this run of the daemon."""
        return self._num_attempts

    def sent(self, engine: str) -> None:
        """It goes to an engine."""
        self.sent_s = time.monotonic()
        self._num_attempts += 1
        if self._num_deaths:
            why = f" again, apart from others (deaths so far: {self._num_deaths})"
        else:
            why = " again" if self._num_attempts > 1 else ""
        self._file.say(logging.DEBUG, self._parsed, f"is sent to engine {engine}{why}")

    def died(self, num_deaths: int) -> None:
        """The engine died while it had it."""
        self._num_deaths = num_deaths
        self._file.say(logging.DEBUG, self._parsed, f"was with the engine when that died (deaths so far: {num_deaths})")

    def ended(self, answer: Answer) -> None:
        """It has its answer, or will have none."""
        match answer:
            case RequestOutput():
                self._file.say(logging.DEBUG, self._parsed, f"is answered after {self._age()}: {_outcome_of(answer)}")
            case RequestRefused():
                self._file.say(logging.INFO, self._parsed, f"is refused ({answer.code}): {answer.message}")
            case Unanswered():
                detail = f"; {answer.detail}" if answer.detail else ""
                text = f"gets no answer after {self._age()} ({answer.code}): {answer.message}{detail}"
                self._file.say(_GRAVITY[answer.code], self._parsed, text)
            case _:
                assert_never(answer)

    def _age(self) -> str:
        return f"{time.monotonic() - self.taken_s:.3f} s"


def _outcome_of(output: RequestOutput) -> str:
    reasons = ", ".join(choice.finish_reason for choice in output.choices)
    return f"{reasons}, {sum(choice.num_tokens for choice in output.choices)} tokens"
