"""Why a file ends before its time: somebody cancelled it, or its deadline passed."""

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum
from typing import assert_never

from daemon.result_line import LineError
from daemon.submission import Unanswered

_LOOK_S = 30.0  # between two looks at a clock that people may set


class EndCause(StrEnum):
    """What ends a file."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Ending:
    """Whether one file is to end, and why: the first cause stays. Used from the event loop's thread.

    `wall_clock` gives Unix seconds.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.cause: EndCause | None = None
        self.at = 0  # Unix seconds of the cause
        self.is_due = asyncio.Event()
        self._wall_clock = wall_clock

    def begin(self, cause: EndCause, at: int | None = None) -> None:
        """Have the file end; `at` is when that was decided, where an earlier run did."""
        if self.cause is None:
            self.cause = cause
            self.at = int(self._wall_clock()) if at is None else at
            self.is_due.set()

    async def watch_deadline(self, expires_at: float) -> None:
        """Have the file end once the wall clock shows `expires_at` (Unix seconds)."""
        while (left_s := expires_at - self._wall_clock()) > 0:  # noqa: ASYNC110  a clock sets no event
            await asyncio.sleep(min(left_s, _LOOK_S))
        self.begin(EndCause.EXPIRED)


def answer_of(cause: EndCause) -> Unanswered:
    """Return what the requests of a file that ends so get."""
    match cause:
        case EndCause.CANCELLED:
            return Unanswered(LineError.CANCELLED, "its file was cancelled before this request was finished")
        case EndCause.EXPIRED:
            return Unanswered(LineError.EXPIRED, "the deadline of its file passed before this request was finished")
        case _:
            assert_never(cause)
