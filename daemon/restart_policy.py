"""Whether, and after how long, an engine whose process died is started again.

A death with requests in flight narrows the search for the one that caused it, and the next start comes at once. A death without
any, and with no answer since the last death, is fruitless: each further start waits longer, and after `max_restarts` of them the
engine is paused, with the reason. An engine that never came up is paused with what its process said of that; if it is vital, it
ends the daemon.
"""

import asyncio

from daemon.errors import EngineConfigError, EngineEnvironmentError, EngineStartError
from daemon.waiting import wait_for_event
from pipelines.core.request import Failed
from pipelines.counted import counted

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 60.0


class RestartPolicy:
    """Knows the deaths of one engine. Used from the event loop's thread.

    If the engine cannot be brought up for the first time, this raises; one that is not `is_vital` is paused instead.
    """

    def __init__(self, engine: str, max_restarts: int, *, is_vital: bool) -> None:
        self.max_restarts = max_restarts
        self.num_restarts = 0  # deaths that were not ordered by us
        self.last_death = ""  # which process it was and how it ended, for people
        self._engine = engine
        self._is_vital = is_vital
        self._was_ready = False
        self._num_fruitless = 0
        self._failure: EngineStartError | None = None  # what a process says of why it cannot start
        self._resume = asyncio.Event()

    def take_failure(self) -> EngineStartError | None:
        """Return, and forget, what a process of the present start said of why it fails; None if it said nothing."""
        failure, self._failure = self._failure, None
        return failure

    def note_start(self) -> None:
        """A process is started."""
        self._failure = None

    def note_failure(self, failed: Failed) -> None:
        """A process says why it cannot start."""
        kind = EngineConfigError if failed.is_config else EngineEnvironmentError
        self._failure = kind(f"engine {self._engine}: {failed.message}")

    def note_ready(self) -> None:
        """Both processes are up."""
        self._was_ready = True

    def note_answer(self) -> None:
        """It answered a request."""
        self._num_fruitless = 0

    def note_death(self, process: str, pid: int, ended: str) -> None:
        """A process died, and not by our doing.

        Raises:
            EngineStartError: it is vital, was never up, and said why.
        """
        if not self._was_ready and self._failure is not None and self._is_vital:
            raise self._failure
        self.last_death = f"the {process} process (pid {pid}) {f'failed: {self._failure}' if self._failure else ended}"
        self.num_restarts += 1

    def note_in_flight(self, num_requests: int) -> None:
        """So many requests were in flight when it died."""
        self._num_fruitless += not num_requests

    def start_over(self) -> None:
        """It is to be started at once, whatever was before."""
        self._num_fruitless = 0
        self._resume.set()

    def begin_anew(self) -> None:
        """Forget that the engine was up: other settings are started, with no way back. Their failure does not end the daemon."""
        self._was_ready = self._is_vital = False

    def why_paused(self, num_doomed: int) -> str:
        """Say why no further start is tried; empty if one is.

        `num_doomed` requests ended the engine while they ran alone, and it has not proven since that it works.

        Raises:
            EngineEnvironmentError: it is vital and was never up.
        """
        reason = self._why_paused(num_doomed)
        if reason and not self._was_ready and self._is_vital:
            raise EngineEnvironmentError(f"engine {self._engine}: {reason}")
        return reason

    async def wait_for_resume(self) -> None:
        """Wait until it is to be tried again."""
        self._resume.clear()
        await self._resume.wait()

    async def wait_for_turn(self) -> None:
        """Wait before the next start: not at all after one fruitless death, and longer after each further one."""
        if self._num_fruitless > 1:
            delay_s = _FIRST_DELAY_S * 2 ** min(self._num_fruitless - 2, 16)
            self._resume.clear()
            await wait_for_event(self._resume, min(delay_s, _MAX_DELAY_S))

    def _why_paused(self, num_doomed: int) -> str:
        if not self._was_ready and self._failure is not None:
            return str(self._failure)
        if self._num_fruitless > self.max_restarts:
            return (
                f"it died {counted(self._num_fruitless, 'time')} without an answer in between; last {self.last_death}"
            )
        if num_doomed > max(self.max_restarts, 1):
            return f"it died of {counted(num_doomed, 'request')}, each alone, with no answer in between; last {self.last_death}"
        return ""
