"""What happens to one request, told to the log under the id that its result line bears, and to the traces.

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
from daemon.tracing import FileTrace, RequestStory
from pipelines.core.request import RequestOutput, RequestRefused, SamplingParams
from pipelines.counted import counted

log = logging.getLogger(__name__)

_GRAVITY = {
    LineError.EXPIRED: logging.DEBUG,  # the file's own line says it of all of them
    LineError.CANCELLED: logging.DEBUG,
    LineError.TIMED_OUT: logging.WARNING,
    LineError.ENGINE: logging.ERROR,
}


@dataclass(frozen=True, slots=True)
class FileTrail:
    """The file of a request, for the log and the traces."""

    pipeline: str
    name: str  # as it was dropped, printable
    model: str  # that runs its requests
    request_id: Callable[[int], str]  # of the request of this index
    trace: FileTrace

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
        message = refusal.message.removeprefix(f"{self.name} line {place.line}: ")  # which the line has already
        self.say(logging.INFO, place, f"is refused ({refusal.code}): {message}")


class RequestTrail:
    """One request on its way through an engine. Used from the event loop's thread."""

    __slots__ = ("_died_s", "_file", "_num_deaths", "_parsed", "_sampling", "_sent_s", "_taken_s")

    def __init__(self, file: FileTrail, parsed: ParsedRequest, sampling: SamplingParams, num_deaths: int) -> None:
        """Begin when it is read; `num_deaths` attempts ended with the engine before."""
        self._file = file
        self._parsed = parsed
        self._sampling = sampling
        self._num_deaths = num_deaths
        self._taken_s = time.monotonic()
        self._sent_s: tuple[float, ...] = ()  # of each attempt, in this run of the daemon
        self._died_s: tuple[float, ...] = ()  # likewise

    def sent(self, engine: str) -> None:
        """It goes to an engine."""
        if self._num_deaths:
            why = f" again, apart from others (deaths so far: {self._num_deaths})"
        else:
            why = " again" if self._sent_s else ""
        self._sent_s += (time.monotonic(),)
        self._file.say(logging.DEBUG, self._parsed, f"is sent to engine {engine}{why}")

    def died(self, num_deaths: int) -> None:
        """The engine died while it had it."""
        self._num_deaths = num_deaths
        self._died_s += (time.monotonic(),)
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
        if self._file.trace.wants(answer):
            self._file.trace.request(self._story(answer))

    def _story(self, answer: Answer) -> RequestStory:
        return RequestStory(
            request_id=self._file.request_id(self._parsed.index),
            parsed=self._parsed,
            sampling=self._sampling,
            model=self._file.model,
            taken_s=self._taken_s,
            sent_s=self._sent_s,
            died_s=self._died_s,
            ended_s=time.monotonic(),
            answer=answer,
        )

    def _age(self) -> str:
        return f"{time.monotonic() - self._taken_s:.3f} s"


def _outcome_of(output: RequestOutput) -> str:
    reasons = ", ".join(choice.finish_reason for choice in output.choices)
    return f"{reasons}, {counted(sum(choice.num_tokens for choice in output.choices), 'token')}"
