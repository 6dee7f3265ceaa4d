"""One pipeline: its folders, its claims, its runs."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.cancel_orders import CancelOrders
from daemon.durable import printable
from daemon.engine_client import EngineClient
from daemon.errors import DaemonError, StorageError
from daemon.feeder import Feeder
from daemon.file_board import FileBoard
from daemon.file_metrics import PipelineGauges
from daemon.file_run import FileRun, RunOutcome
from daemon.file_work import RunParts
from daemon.folders import Folders
from daemon.inbox import ClaimedFile, Inbox
from daemon.ledger import Ledger
from daemon.metrics import Metrics
from daemon.on_done import left_notes
from daemon.options_files import put_orphans_back
from daemon.outbox import free_stem
from daemon.pause import PauseCause
from daemon.pause_file import PauseFile
from daemon.recovery import leftovers
from daemon.report_table import render_report
from daemon.retention import Retention
from daemon.settings_sections import DaemonSettings, PipelineSettings, Watch
from daemon.status import EndedFile, FileState, PipelineStatus
from daemon.waiting import wait_for_event
from daemon.watch import FolderWatch

log = logging.getLogger(__name__)

_DRAIN_LOOK_S = 0.05
PAUSED_BY_HAND = "paused by hand"
TIDY_S = 3600.0  # between two looks for what is old enough to be removed
MAX_OPEN_FILES = 128  # files run at once, each with two descriptors; what is over waits in the inbox


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What a pipeline shares with others."""

    engine: EngineClient
    feeder: Feeder
    metrics: Metrics
    next_number: Callable[[], int]  # numbers files within this run of the daemon
    tell: Callable[[Path], None]  # given the note of a file that is published


class Pipeline:
    """Claims files and runs them, many at a time. Used from the event loop's thread."""

    def __init__(self, name: str, settings: PipelineSettings, daemon: DaemonSettings, parts: PipelineParts) -> None:
        self.name = name
        self.settings = settings
        self.held_because: str | None = None  # somebody paused it: no file is taken, nothing is fed
        self._stuck_because: str | None = None  # an error of the file system: no file is taken
        self.num_failed_files = 0
        self.num_failed_requests = 0
        self._daemon = daemon
        self._parts = parts
        self._folders = Folders(Path(daemon.spool) / name)
        self._inbox = Inbox(self._folders.inbox, self._folders.work, self._free_stem, daemon.settle_s, time.time)
        self._orders = CancelOrders(name, self._folders)
        self._watch = FolderWatch(self._folders.inbox)
        self._runs: dict[asyncio.Task[RunOutcome], FileRun] = {}
        self._board = FileBoard()
        self._has_scanned = False
        self._lacks_disk = False
        self._switch = PauseFile(self._folders.root)
        self._ledger = Ledger(self._folders.root)
        parts.metrics.add_pipeline(name)

    @property
    def is_idle(self) -> bool:
        """Whether the inbox holds nothing that will be taken and no file is being run, or gets on while it is paused."""
        if self.held_because is not None:
            return not any(run.is_winding_up for run in self._runs.values())
        return self._has_scanned and not self._runs and not self._inbox.num_settling and self.paused_because is None

    @property
    def paused_because(self) -> str | None:
        """Why no file is taken; None while files are."""
        return self._stuck_because if self.held_because is None else f"{PAUSED_BY_HAND}: {self.held_because}"

    @property
    def has_work(self) -> bool:
        """Whether a file is being run, and nobody paused that: what idles then does not want for feed."""
        return bool(self._runs) and self.held_because is None

    @property
    def awaits_disk(self) -> bool:
        """Whether results cannot be written, or no file is taken because they soon could not."""
        return self._lacks_disk or any(run.awaits_disk for run in self._runs.values())

    @property
    def inbox_folder(self) -> Path:
        """Where people drop files."""
        return self._folders.inbox

    def make_folders(self) -> None:
        """Make what is missing, and prove that files can be moved.

        Raises:
            StorageError: a folder cannot be made or written.
        """
        self._folders.make()

    async def run(self) -> None:
        """Take up what an earlier run left, then claim and run files until cancelled; runs go on after that, see `stop`."""
        put_orphans_back(self._folders)
        for claimed in leftovers(self._folders):
            log.info("pipeline %s: %s goes on where it was", self.name, claimed.name)
            self._start(claimed)
        for note in left_notes(self._folders):
            self._parts.tell(note)
        if self._daemon.watch is not Watch.POLL:
            await self._watch.start()
        while True:
            self._claim_what_is_complete()
            self._carry_out_orders()
            await self._wait_for_scan()

    async def keep_tidy(self) -> None:
        """Remove what is old enough, now and every hour until cancelled."""
        retention = Retention(self._folders, self._ledger, self._daemon.retention)
        while True:
            try:
                await asyncio.to_thread(retention.apply)
            except StorageError as error:
                log.warning("pipeline %s: retention: %s", self.name, error)
            await asyncio.sleep(TIDY_S)

    async def drain(self, grace_s: float) -> None:
        """Let what is fed already finish for at most `grace_s`, then leave the rest to the next start; `run` has ended."""
        self._watch.stop()
        tasks = list(self._runs)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(run.is_winding_up for run in self._runs.values()):
                    await asyncio.wait(self._runs, timeout=_DRAIN_LOOK_S)
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Leave every file to the next start, now."""
        for task in self._runs:
            task.cancel()

    def cancel(self, target: str) -> bool:
        """End the file of this stem or full name; False if it is not being run, or it is too late."""
        run = self._find(target)
        return run is not None and run.cancel()

    def status(self) -> PipelineStatus:
        """What people see; the metrics are told the same."""
        now_s = time.monotonic()
        left = {**self._orders.waiting, **self._inbox.options.waiting}
        found = PipelineStatus(
            name=self.name,
            engine=self.settings.engine,
            paused_because=self.paused_because,
            num_waiting_files=self._inbox.num_settling,
            files=self._board.look(now_s, [run.status() for run in self._runs.values()]),
            left_files=tuple(f"{printable(name)}: {why}" for name, why in sorted(left.items())),
            ended=self._board.ended,
        )
        self._parts.metrics.set_pipeline(self.name, self._gauges(now_s, found))
        return found

    @property
    def _pause_cause(self) -> PauseCause | None:
        if self.held_because is not None:
            return PauseCause.BY_HAND
        return None if self._stuck_because is None else PauseCause.STORAGE

    def _gauges(self, now_s: float, found: PipelineStatus) -> PipelineGauges:
        states = Counter({FileState.WAITING: found.num_waiting_files}) + Counter(file.state for file in found.files)
        return PipelineGauges(
            files=states,
            oldest_waiting_s=self._inbox.tracker.oldest_age_s(now_s) if found.num_waiting_files else 0.0,
            oldest_running_s=max((time.time() - file.claimed_s for file in found.files), default=0.0),
            num_pending=sum(file.num_pending for file in found.files),
            pause=self._pause_cause,
        )

    def report_of(self, number: int) -> str | None:
        """The report of a file that ended, as a table; None where there is none any more. May be called from any thread."""
        stem = next((file.stem for file in self._board.ended if file.number == number), None)
        if stem is None:
            return None
        try:
            return render_report(json.loads((self._folders.outbox / f"{stem}.report.json").read_bytes()))
        except (OSError, ValueError):
            return None  # taken out of the outbox, or changed there

    def look_at_switch(self) -> None:
        """Notice that somebody paused this pipeline or lets it go on."""
        reason = self._switch.reason()
        if self._switch.take_resume():
            self._parts.engine.resume()
        if reason == self.held_because:
            return
        if reason is not None:
            log.warning("pipeline %s is paused by hand, running requests finish: %s", self.name, reason)
        else:
            log.info("pipeline %s goes on, as somebody wished", self.name)
        self.held_because = reason
        for run in self._runs.values():
            run.nudge()
        self._watch.nudge.set()

    def _claim_what_is_complete(self) -> None:
        try:
            self._check_space()
            if self.held_because is None and len(self._runs) < MAX_OPEN_FILES:
                for claimed in self._inbox.scan(time.monotonic()):
                    self._start(claimed)
                    if len(self._runs) >= MAX_OPEN_FILES:
                        break
        except StorageError as error:
            self._lacks_disk = True
            self._pause(str(error))
            return
        self._has_scanned = True
        self._lacks_disk = False
        if self._stuck_because is not None:
            log.info("pipeline %s goes on", self.name)
            self._stuck_because = None

    def _carry_out_orders(self) -> None:
        """Cancel what people ask for, also while no file is taken."""
        try:
            self._orders.carry_out(self._find)
        except StorageError as error:
            self._pause(str(error))

    def _find(self, target: str) -> FileRun | None:
        """Return the run of a stem, or of a full name in work/."""
        return next((run for run in self._runs.values() if target in {run.stem, run.path.name}), None)

    def _free_stem(self, stem: str) -> str:
        taken = {run.stem for run in self._runs.values()}
        return free_stem(stem, self._folders.work, self._folders.outbox, taken)

    def _check_space(self) -> None:
        free = self._folders.free_bytes()
        self._parts.metrics.set_disk_free(free)
        if free < self._daemon.min_free_bytes:
            wanted = self._daemon.min_free_bytes
            text = f"{free:,} bytes are free on the disk of {self._folders.root}, daemon.min_free_bytes is {wanted:,}"
            raise StorageError(text, self._folders.root, None)

    def _pause(self, reason: str) -> None:
        if self._stuck_because != reason:
            log.error("pipeline %s takes no files: %s", self.name, reason)
        self._stuck_because = reason

    def _start(self, claimed: ClaimedFile) -> None:
        shared = self._parts
        price = self._daemon.price_per_gpu_hour
        parts = RunParts(
            self.name, shared.engine, shared.feeder, shared.metrics, self._folders, price,
            is_held=lambda: self.held_because is not None, tell=shared.tell,
            ledger=self._ledger,
        )  # fmt: skip
        run = FileRun(claimed, self._parts.next_number(), self.settings, parts)
        task = asyncio.create_task(run.run(), name=f"{self.name}/{claimed.stem}")
        self._runs[task] = run
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[RunOutcome]) -> None:
        run = self._runs.pop(task)
        self._watch.nudge.set()
        if task.cancelled():
            return
        if error := task.exception():
            self.num_failed_files += 1
            log.error("pipeline %s: %s stays in work/: %s", self.name, run.name, error, exc_info=_unexpected(error))
        else:
            self.num_failed_files += task.result().is_failed
            self.num_failed_requests += task.result().num_failed
            self._note_outcome(run, task.result())

    def _note_outcome(self, run: FileRun, outcome: RunOutcome) -> None:
        seconds = max(0.0, time.time() - run.claimed_s)
        self._parts.metrics.count_file(self.name, outcome.status, seconds)
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

    async def _wait_for_scan(self) -> None:
        wake_s = self._inbox.tracker.wake_s()
        until_s = self._daemon.rescan_s
        if wake_s is not None:
            until_s = min(until_s, max(wake_s - time.monotonic(), self._daemon.settle_s / 4, 0.02))
        await wait_for_event(self._watch.nudge, until_s)
        self._watch.nudge.clear()


def _unexpected(error: BaseException) -> BaseException | None:
    """The error to show with its traceback in the log: one that is not of ours."""
    return None if isinstance(error, DaemonError) else error
