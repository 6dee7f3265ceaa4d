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

_LOOK_S = 0.25
_ASK_S = 2.0  # between two questions to the daemon
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


class Paused:
    """Why a pipeline is paused: by hand, as its folder says at once, or for a fault, as the daemon says when it is asked."""

    def __init__(
        self,
        by_hand: Callable[[], str | None],
        for_a_fault: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take two sources of a reason; None: it is not paused. `for_a_fault` may take long, and is asked seldom."""
        self._by_hand = by_hand
        self._for_a_fault = for_a_fault
        self._clock = clock
        self._asked_s = clock()
        self._fault: str | None = None

    def reason(self) -> str | None:
        """Return it as it is now, a fault as it was a few seconds ago."""
        if (reason := self._by_hand()) is not None:
            return reason
        if self._clock() - self._asked_s >= _ASK_S:
            self._fault = self._for_a_fault()
            self._asked_s = self._clock()
        return self._fault


class Waiter:
    """Waits for files of one pipeline."""

    def __init__(
        self,
        files: Sequence[Followed],
        folders: Folders,
        why_paused: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = [_Waiting(file, seen_s=clock()) for file in files]
        self._folders = folders
        self._why_paused = why_paused
        self._clock = clock
        self._line = StatusLine(sys.stderr, clock)
        self._meter = SpeedMeter()

    def wait(self) -> int:
        """Wait until every file is done; return the exit code. An interruption leaves the files to the daemon."""
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
        if obstacle := self._obstacle(is_waiting=not running):
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
        parts = [f"{done:,} of {total:,} requests"]
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
        return f"{num_over} of {len(self._files)} files done"

    def _obstacle(self, *, is_waiting: bool) -> str | None:
        """Return why nothing goes on, where that can be seen from here."""
        spool = self._folders.root.parent
        if holder_of(spool) is None:
            return f"no daemon runs on {printable(spool)}: `gapless run` starts one; waiting for it"
        reason = self._why_paused()
        if reason is None:
            return None
        what = "takes no files" if is_waiting else "feeds no requests"
        return f"pipeline {self._folders.root.name} is paused and {what}: {reason}"


def _tell(name: str, sight: Sight, folders: Folders) -> int:
    """Say how a file ended and where its results are; return its exit code."""
    if sight.batch is None or sight.stem is None:
        print(f"{printable(name)}: somebody took it, or its results, out of {printable(folders.root)}", file=sys.stderr)
        return ExitCode.SOME_FAILED
    status, answered = sight.batch["status"], sight.num_done - sight.num_failed
    errors = f", {sight.num_failed:,} in the errors file" if sight.num_failed else ""
    print(f"{printable(name)}: {status}, {answered:,} of {sight.num_total:,} requests answered{errors}")
    for path in results_of(folders.outbox, sight.stem):
        print(f"  {printable(path)}")
    if status == "failed":
        entries = (sight.batch.get("errors") or {}).get("data") or [{"message": "see its Batch object"}]
        print(f"  {printable(str(entries[-1]['message']))}")
    return ExitCode.OK if status == "completed" and not sight.num_failed else ExitCode.SOME_FAILED
