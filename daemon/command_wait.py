"""Waiting for files that were put into an inbox: progress while they run, where their results are at the end."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemon.durable import printable
from daemon.errors import ExitCode
from daemon.folders import Folders
from daemon.follow import Followed, Sight, Stage
from daemon.outbox import results_of
from daemon.progress import SpeedMeter, StatusLine
from daemon.report_table import duration
from daemon.spool_lock import holder_of
from pipelines.counted import counted

_LOOK_S = 0.25
_ASK_S = 2.0  # between two questions to the daemon
_SILENT_S = 5.0
_GONE_S = 5.0  # a file that is nowhere for so long is gone: between two folders it is nowhere for a moment
_INTERRUPTED = 128 + 2  # as a shell says it of SIGINT


@dataclass(slots=True)
class _Waiting:
    """One file that is waited for."""

    file: Followed
    sight: Sight = field(default_factory=lambda: Sight(Stage.INBOX))
    seen_s: float = 0.0  # when it was last somewhere

    @property
    def is_over(self) -> bool:
        return self.sight.stage in {Stage.DONE, Stage.GONE}


@dataclass(frozen=True, slots=True)
class Said:
    """What the daemon says, or does not say, when it is asked why nothing goes on; empty where it runs on."""

    paused: str | None = None  # why it has paused the pipeline
    silent: str | None = None  # how it hangs
    engine: str | None = None  # what its engine is doing before it can run anything


class Obstacle:
    """What keeps files from going on: a pause, as the folder says at once, or what the daemon says when it is asked.

    One that is silent is said to be so from `_SILENT_S` on: at its start it listens a moment after it has locked the spool.
    """

    def __init__(
        self,
        folders: Folders,
        paused_by_hand: Callable[[], str | None],
        ask: Callable[[], Said],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take two sources; `ask` may take seconds, and is asked seldom."""
        self._folders = folders
        self._paused_by_hand = paused_by_hand
        self._ask = ask
        self._clock = clock
        self._asked_s = clock()
        self._said = Said()
        self._silent_since_s: float | None = None

    def text(self, *, is_waiting: bool) -> str | None:
        """Return it as it is now, or as it was a few seconds ago; None where there is none. It changes with the cause alone."""
        spool = self._folders.root.parent
        if (pid := holder_of(spool)) is None:
            self._said, self._silent_since_s = Said(), None
            return f"no daemon runs on {printable(spool)}: `gapless run` starts one; waiting for it"
        self._ask_now_and_then()
        if self._said.silent is not None:
            who = f"the daemon on {printable(spool)}" + (f" (pid {pid})" if pid else "")
            return f"{who} hangs: {self._said.silent}; waiting for it, `gapless doctor` says what to do"
        reason = self._paused_by_hand()
        reason = self._said.paused if reason is None else reason
        if reason is None:
            return None if self._said.engine is None else f"waits: {self._said.engine}"
        what = "takes no files" if is_waiting else "feeds no requests"
        return f"pipeline {self._folders.root.name} is paused and {what}: {reason}"

    def _ask_now_and_then(self) -> None:
        asked_s = self._clock()
        if asked_s - self._asked_s < _ASK_S:
            return
        said = self._ask()
        self._asked_s = self._clock()
        if said.silent is None:
            self._said, self._silent_since_s = said, None
            return
        if self._silent_since_s is None:
            self._silent_since_s = asked_s
        if self._said.silent is None and self._asked_s - self._silent_since_s >= _SILENT_S:
            self._said = said  # and as it was first said: numbers in it would be news each time


class Waiter:
    """Waits for files of one pipeline."""

    def __init__(
        self,
        files: Sequence[Followed],
        folders: Folders,
        obstacle: Obstacle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = [_Waiting(file, seen_s=clock()) for file in files]
        self._folders = folders
        self._obstacle = obstacle
        self._clock = clock
        self._line = StatusLine(sys.stderr, clock)
        self._meter = SpeedMeter()

    def wait(self) -> int:
        """Wait until every file is done; return the exit code. An interruption leaves the files to the daemon."""
        sys.stdout.flush()  # what was said so far, to whoever reads along in a file or a pipe
        try:
            while not self._look():
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            self._line.end()
            left = [printable(waiting.file.name) for waiting in self._files if not waiting.is_over]
            print(f"stopped waiting; the daemon goes on with {', '.join(left)}", file=sys.stderr)
            print(f"results will be in {printable(self._folders.outbox)}", file=sys.stderr)
            return _INTERRUPTED
        self._line.end()
        return max(_tell(waiting.file.name, waiting.sight, self._folders) for waiting in self._files)

    def _look(self) -> bool:
        """Look at every file once and say how far they are; return whether all are over."""
        now_s = self._clock()
        for waiting in self._files:
            if waiting.is_over:
                continue
            sight = waiting.file.look()
            if sight.stage is not Stage.GONE:
                waiting.seen_s, waiting.sight = now_s, sight
            elif now_s - waiting.seen_s >= _GONE_S:
                waiting.sight = sight
        if all(waiting.is_over for waiting in self._files):
            return True
        text, is_news = self._progress(now_s)
        self._line.show(text, is_news=is_news)
        return False

    def _progress(self, now_s: float) -> tuple[str, bool]:
        """Return the text, and whether it is more than other numbers."""
        sights = [waiting.sight for waiting in self._files]
        running = [sight for sight in sights if sight.batch is not None and sight.stage is not Stage.DONE]
        if obstacle := self._obstacle.text(is_waiting=not running):
            return f"{self._subject()}: {obstacle}", True
        if not running:
            return f"{self._subject()}: in the inbox, not taken yet", True
        done, total = sum(sight.num_done for sight in sights), sum(sight.num_total for sight in sights)
        if not total:
            return f"{self._subject()}: being read and checked", True
        self._meter.add(now_s, done, sum(sight.num_tokens for sight in sights))
        failed = sum(sight.num_failed for sight in sights)
        return f"{self._subject()}: {self._numbers(done, total, failed)}", False

    def _numbers(self, done: int, total: int, failed: int) -> str:
        parts = [f"{done:,} of {counted(total, 'request')}"]
        if failed:
            parts.append(f"{failed:,} in errors")
        if rate := self._meter.tokens_per_s:
            parts.append(f"{rate:,.0f} tokens/s")
        left_s = self._meter.seconds_left(total - done)
        if left_s is not None and done < total:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)

    def _subject(self) -> str:
        if len(self._files) == 1:
            return printable(self._files[0].file.name)
        num_over = sum(waiting.is_over for waiting in self._files)
        return f"{num_over} of {counted(len(self._files), 'file')} done"


def _tell(name: str, sight: Sight, folders: Folders) -> int:
    """Say how a file ended and where its results are; return its exit code."""
    if sight.batch is None or sight.stem is None:
        print(f"{printable(name)}: somebody took it, or its results, out of {printable(folders.root)}", file=sys.stderr)
        return ExitCode.SOME_FAILED
    status, answered = sight.batch["status"], sight.num_done - sight.num_failed
    errors = f", {sight.num_failed:,} in the errors file" if sight.num_failed else ""
    if sight.num_total:
        counts = f", {answered:,} of {counted(sight.num_total, 'request')} answered{errors}"
    else:  # one that could not be read has no number of requests, not none
        counts = ", it has no requests" if status != "failed" else ""
    print(f"{printable(name)}: {status}{counts}")
    if status == "failed":
        entries = (sight.batch.get("errors") or {}).get("data") or [{"message": "see its Batch object"}]
        print(f"  {printable(str(entries[-1]['message']))}")
        print(f"  the input is in {printable(folders.failed)}")
    for path in results_of(folders.outbox, sight.stem):
        print(f"  {printable(path)}")
    return ExitCode.OK if status == "completed" and not sight.num_failed else ExitCode.SOME_FAILED
