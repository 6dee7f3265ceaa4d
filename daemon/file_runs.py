"""The files that one pipeline runs at a time, each in a task of its own, and what became of those that ended."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from daemon.durable import printable
from daemon.engine_client import EngineClient
from daemon.errors import DaemonError
from daemon.file_board import FileBoard
from daemon.file_closing import RunOutcome
from daemon.file_run import FileRun
from daemon.metrics import Metrics
from daemon.status import EndedFile, FileStatus

log = logging.getLogger(__name__)

_DRAIN_LOOK_S = 0.05
_ORDERS_LOOK_S = 0.5  # a look lists an inbox, which may be long


class FileRuns:
    """The runs of one pipeline's files. Used from the event loop's thread. `on_end` is called whenever one has ended."""

    def __init__(self, pipeline: str, metrics: Metrics, on_end: Callable[[], None]) -> None:
        self.num_failed_files = 0
        self.num_failed_requests = 0
        self._pipeline = pipeline
        self._metrics = metrics
        self._on_end = on_end
        self._runs: dict[asyncio.Task[RunOutcome], FileRun] = {}
        self._board = FileBoard()

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[FileRun]:
        return iter(self._runs.values())

    @property
    def are_winding_up(self) -> bool:
        """Whether one of them gets on although it is not fed."""
        return any(run.is_winding_up for run in self)

    @property
    def ended(self) -> tuple[EndedFile, ...]:
        """The last files that ended, the newest first."""
        return self._board.ended

    def look(self, now_s: float) -> tuple[FileStatus, ...]:
        """Return what people see of each, with its speed and the time that it has left."""
        return self._board.look(now_s, [run.status() for run in self])

    def find(self, target: str) -> FileRun | None:
        """Return the run of a stem, or of a full name in work/."""
        return next((run for run in self if target in {run.stem, run.path.name}), None)

    def num_on(self, engine: EngineClient) -> int:
        """Files that an engine runs."""
        return sum(run.engine is engine for run in self)

    def start(self, run: FileRun) -> None:
        """Run a file to its end."""
        task = asyncio.create_task(run.run(), name=f"{self._pipeline}/{run.stem}")
        self._runs[task] = run
        task.add_done_callback(self._note_end)

    def abandon(self) -> None:
        """Leave every file to the next start, now."""
        for task in self._runs:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all that run now have ended, however they do."""
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def drain(self, grace_s: float, look: Callable[[], None]) -> None:
        """Give requests that are already fed `grace_s` to finish, then leave the rest to the next start.

        `look` is called every half second meanwhile.
        """
        tasks = list(self._runs)
        next_look_s = 0.0  # CLOCK_MONOTONIC
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.are_winding_up:
                    if (now_s := time.monotonic()) >= next_look_s:
                        next_look_s = now_s + _ORDERS_LOOK_S
                        look()
                    await asyncio.wait(self._runs, timeout=_DRAIN_LOOK_S)
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _note_end(self, task: asyncio.Task[RunOutcome]) -> None:
        run = self._runs.pop(task)
        self._on_end()
        if task.cancelled():
            return
        if error := task.exception():
            self.num_failed_files += 1
            self._metrics.count_left_file(self._pipeline)
            name = printable(run.name)
            log.error("pipeline %s: %s stays in work/: %s", self._pipeline, name, error, exc_info=_unexpected(error))
        else:
            self.num_failed_files += task.result().is_failed
            self.num_failed_requests += task.result().num_failed
            self._note_outcome(run, task.result())

    def _note_outcome(self, run: FileRun, outcome: RunOutcome) -> None:
        seconds = max(0.0, time.time() - run.claimed_s)
        self._metrics.count_file(self._pipeline, outcome.status, seconds)
        self._board.note_end(
            EndedFile(
                name=printable(run.name),
                stem=run.stem,
                status=outcome.status,
                num_done=outcome.num_completed,
                num_failed=outcome.num_failed,
                ended_s=int(time.time()),
                taken_s=round(seconds, 1),
            )
        )


def _unexpected(error: BaseException) -> BaseException | None:
    """Return an error whose traceback belongs into the log, because none of our classes stands for it."""
    return None if isinstance(error, DaemonError) else error
