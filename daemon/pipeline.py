"""One pipeline: its folders, its claims, its runs.

Its loop goes round and round: are the folders there, what did an earlier run leave, what is complete, is there room. Whatever a
disk refuses pauses it with one reason, as does an engine that is given up, and the next round that gets through lets it go on.
Where the folders themselves are gone, as when their disk is not mounted, its runs are ended as by a crash and taken up from their
journals once they are back.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from daemon.cancel_orders import CancelOrders
from daemon.dropped_name import forget_stray_names
from daemon.durable import Storage, printable
from daemon.engine_client import EngineClient
from daemon.errors import DaemonError, DiskFullError, FoldersGoneError, StorageError
from daemon.feeder import Feeder
from daemon.file_board import FileBoard
from daemon.file_closing import RunOutcome
from daemon.file_metrics import PipelineGauges
from daemon.file_run import FileRun
from daemon.folders import Folders
from daemon.inbox import ClaimedFile, Inbox, RefusedFile, claim_time
from daemon.ledger import Ledger
from daemon.logs import log_context
from daemon.metrics import Metrics
from daemon.on_done import left_notes
from daemon.open_file import RunParts
from daemon.options_files import put_orphans_back
from daemon.pause import PauseCause, Troubles
from daemon.pause_file import PauseFile
from daemon.recovery import end_renames, leftovers
from daemon.report_table import render_report
from daemon.retention import Retention
from daemon.settings_daemon import DaemonSettings
from daemon.settings_pipeline import PipelineSettings
from daemon.status import EndedFile, EngineState, FileState, PipelineStatus
from daemon.tracing import NoTracing, Tracing
from daemon.waiting import wait_for_event
from daemon.watch import FolderWatch

log = logging.getLogger(__name__)

_DRAIN_LOOK_S = 0.05
PAUSED_BY_HAND = "paused by hand"
REMOVED = "not in the configuration any more: what runs finishes, then it is gone"
TIDY_S = 3600.0  # between two looks for what is old enough to be removed
_MIN_WAIT_S = 0.02  # between two rounds, unless an event comes
_PAUSED_LOOK_S = 2.0  # between two rounds of a paused pipeline, at most
_LOOK_SHARE = 10  # a listing is made again only after so many times as long as it took
_HANG_S = 300.0  # that a round may take: the listing of a huge folder on a slow share
MAX_OPEN_FILES = 128  # files run at once, each with two descriptors; what is over waits in the inbox


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What a pipeline shares with others."""

    engine: EngineClient
    feeder: Feeder
    metrics: Metrics
    storage: Storage
    next_number: Callable[[], int]  # numbers files within this run of the daemon
    tell: Callable[[Path], None]  # given the note of a file that is published
    claimed_at: Callable[[Path], int] = claim_time  # when a file in work/ was claimed, Unix seconds
    find_engine: Callable[[str], tuple[EngineClient, Feeder] | None] = lambda _: None  # by its name
    tracing: Tracing = field(default_factory=NoTracing)


class Pipeline:
    """Claims files and runs them, many at a time. Used from the event loop's thread."""

    def __init__(self, name: str, settings: PipelineSettings, daemon: DaemonSettings, parts: PipelineParts) -> None:
        self.name = name
        self.settings = settings
        self.held_because: str | None = None  # somebody paused it: no file is taken, nothing is fed
        self.num_failed_files = 0
        self.num_failed_requests = 0
        self._daemon = daemon
        self._parts = parts
        self._folders = Folders(Path(daemon.spool) / name)
        self._inbox = Inbox(self._folders, daemon.settle_s, parts.storage, parts.claimed_at)
        self._orders = CancelOrders(name, self._folders)
        self._watch = FolderWatch(self._folders.inbox, daemon.watch)
        self._runs: dict[asyncio.Task[RunOutcome], FileRun] = {}
        self._board = FileBoard()
        self._troubles = Troubles()  # of the runs
        self._paused_by: StorageError | None = None  # met by a round
        self._said: str | None = None  # the reason for the pause that the log knows
        self._unusable: dict[str, str] = {}  # what the log knows of files that cannot be taken
        self._is_in_round = False
        self._switch = PauseFile(self._folders.root)
        self._ledger = Ledger(self._folders.root)
        self._has_folders = False
        self._has_begun = False
        self._has_scanned = False
        self._is_claiming = False
        self._is_retiring = False
        self._has_other_retention = asyncio.Event()
        self._must_take_up = True  # what lies in work/
        self._next_look_s = 0.0
        self._came_round_s: float | None = None  # monotonic; None: has not begun
        parts.metrics.add_pipeline(name)

    @property
    def is_idle(self) -> bool:
        """Whether the inbox holds nothing that will be taken and no file is being run, or gets on while it is paused."""
        if self.held_because is not None:
            return not any(run.is_winding_up for run in self._runs.values())
        is_quiet = self._has_scanned and not self._is_in_round and not self._runs
        return is_quiet and not (self._inbox.num_settling or self._inbox.num_complete) and self.paused_because is None

    @property
    def has_work(self) -> bool:
        """Whether a file is being run, and nobody paused that: what idles then does not want for feed."""
        return bool(self._runs) and self.held_because is None

    def is_hanging(self, now_s: float) -> bool:
        """Whether it should have come round long ago; one that is paused has said why it does not get on."""
        if self._came_round_s is None or self.paused_because is not None:
            return False
        return now_s - self._came_round_s > 2 * self._daemon.rescan_s + _HANG_S

    @property
    def awaits_disk(self) -> bool:
        """Whether results cannot be written, or no file is taken because they soon could not."""
        return self._trouble is not None

    @property
    def is_retired(self) -> bool:
        """Whether it is to go, and runs nothing more."""
        is_taken_up = not self._must_take_up or self._paused_by is not None
        return self._is_retiring and is_taken_up and not self._runs and not self._is_claiming

    @property
    def num_unusable_files(self) -> int:
        """Files in the inbox that cannot be read or moved."""
        return len(self._unusable)

    @property
    def inbox_folder(self) -> Path:
        """Where people drop files."""
        return self._folders.inbox

    @property
    def paused_because(self) -> str | None:
        """Why no file is taken; None while files are."""
        if self.held_because is not None:
            return f"{PAUSED_BY_HAND}: {self.held_because}"
        return REMOVED if self._is_retiring else self._stuck_because

    @property
    def _trouble(self) -> StorageError | None:
        """What the disk refuses."""
        return self._paused_by or self._troubles.current

    @property
    def _stuck_because(self) -> str | None:
        return self._engine_because if self._trouble is None else str(self._trouble)

    @property
    def _engine_because(self) -> str | None:
        """Why its engine is given up, so that files would wait for a person; None if it is not."""
        engine = self._parts.engine
        if engine.state is not EngineState.DOWN:
            return None
        return f"engine {self.settings.engine} is paused: {engine.reason}; `gapless resume` tries again"

    def reconfigure(self, settings: PipelineSettings, daemon: DaemonSettings, parts: PipelineParts) -> None:
        """Take other settings: the daemon's at once, its own with the next file claimed. One that was to go stays."""
        if daemon.retention != self._daemon.retention:
            self._has_other_retention.set()
        self.settings, self._daemon, self._parts = settings, daemon, parts
        self._inbox.tracker.settle_s = daemon.settle_s
        self._watch.change_mode(daemon.watch)
        self._is_retiring = False
        self._watch.nudge.set()

    def retire(self) -> None:
        """Claim nothing more, because it is not in the configuration any more; what runs finishes."""
        self._is_retiring = True

    def look_soon(self) -> None:
        """Go round at once: something may be done now that could not be done before."""
        self._watch.nudge.set()

    def num_runs_on(self, engine: EngineClient) -> int:
        """Files that an engine runs for it, a claim that is on its way included."""
        is_coming = self._is_claiming and self._parts.engine is engine
        return is_coming + sum(run.engine is engine for run in self._runs.values())

    def leave_runs(self) -> None:
        """End all runs as a crash would; they are taken up again from their journals."""
        self._must_take_up = True
        self.abandon()

    def make_folders(self, *, waits_for_room: bool = False) -> None:
        """Make what is missing, and prove that files can be moved.

        If it `waits_for_room`, a full disk is a pause like any other: its rounds try again.

        Raises:
            StorageError: a folder cannot be made or written.
        """
        try:
            self._folders.make()
        except DiskFullError as error:
            if not waits_for_room:
                raise
            self._paused_by = error
        else:
            self._has_folders = True

    async def run(self) -> None:
        """Take up what an earlier run left, then claim and run files until cancelled; runs go on after that, see `drain`."""
        log_context(pipeline=self.name)
        while True:
            self._came_round_s = time.monotonic()
            await self._go_round()
            await self._wait_for_round()

    async def keep_tidy(self) -> None:
        """Remove what is old enough, now, every hour and when that is told otherwise, until cancelled."""
        while True:
            self._has_other_retention.clear()
            retention = Retention(self._folders, self._ledger, self._daemon.retention)
            try:
                await asyncio.to_thread(retention.apply)
            except StorageError as error:
                log.warning("pipeline %s: retention: %s", self.name, error)
            await wait_for_event(self._has_other_retention, TIDY_S)

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
        left = {**self._orders.waiting, **self._inbox.options.waiting, **self._unusable}
        found = PipelineStatus(
            name=self.name,
            engine=self.settings.engine,
            paused_because=self.paused_because,
            num_waiting_files=self._inbox.num_waiting,
            files=self._board.look(now_s, [run.status() for run in self._runs.values()]),
            watch=self._watch.how,
            left_files=tuple(f"{printable(name)}: {why}" for name, why in sorted(left.items())),
            ended=self._board.ended,
        )
        self._parts.metrics.set_pipeline(self.name, self._gauges(now_s, found))
        return found

    @property
    def _pause_cause(self) -> PauseCause | None:
        if self.held_because is not None:
            return PauseCause.BY_HAND
        if self._trouble is not None:
            return PauseCause.of(self._trouble)
        return None if self._engine_because is None else PauseCause.ENGINE

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

    async def _go_round(self) -> None:
        """Do once all there is to do; a storage error pauses, and a round that gets through ends the pause."""
        self._is_in_round = True
        try:
            await self._begin()
            await asyncio.to_thread(self._folders.check)
            if self._must_take_up and not self._parts.engine.is_closed:
                await self._take_up()
            await self._watch.renew_if_lost()
            self._orders.carry_out(self._find)  # also while no file is taken
            await self._take_files()
            self._orders.carry_out(self._find)
            self._has_scanned = True
            self._paused_by = None
        except StorageError as error:
            self._paused_by = error
            if isinstance(error, FoldersGoneError):
                self.leave_runs()  # until the folders are back
        finally:
            self._is_in_round = False
        self._say_whether_paused()

    async def _begin(self) -> None:
        """Do what comes before all rounds, as far as it is not done."""
        if not self._has_folders:
            await asyncio.to_thread(self._folders.make)
            self._has_folders = True
        if not self._has_begun:
            for note in await asyncio.to_thread(left_notes, self._folders):
                self._parts.tell(note)
            await self._watch.start()
            self._has_begun = True

    async def _take_up(self) -> None:
        """Go on with what an earlier run of the daemon, or of this pipeline, left in work/."""
        await asyncio.gather(*self._runs, return_exceptions=True)  # those that ended when the folders were gone
        parts = self._parts
        await asyncio.to_thread(end_renames, self._folders, parts.storage)
        await asyncio.to_thread(put_orphans_back, self._folders, parts.storage)
        left = await asyncio.to_thread(leftovers, self._folders, parts.storage, parts.claimed_at)
        await asyncio.to_thread(forget_stray_names, parts.storage, self._folders.work)
        for claimed in left:
            log.info("pipeline %s: %s goes on where it was", self.name, printable(claimed.name))
            self._start(claimed)
        self._must_take_up = False

    async def _take_files(self) -> None:
        """Claim what is complete, as far as there is room for runs and on the disk."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            await asyncio.to_thread(self._inbox.look, now_s)
            self._next_look_s = time.monotonic() + _LOOK_SHARE * (time.monotonic() - now_s)
        self._check_space()
        room = MAX_OPEN_FILES - len(self._runs)
        if self._may_claim and room > 0 and self._inbox.num_complete:
            stems = [run.stem for run in self._runs.values()]
            self._is_claiming = True
            try:
                for file in await asyncio.to_thread(self._inbox.claim, room, stems):
                    self._take(file)
            finally:
                self._is_claiming = False
        self._say_what_cannot_be_taken()

    @property
    def _may_claim(self) -> bool:
        is_held = (
            self.held_because is not None or self._troubles.current is not None or self._engine_because is not None
        )
        return not (is_held or self._is_retiring or self._parts.engine.is_closed)

    def _take(self, file: ClaimedFile | RefusedFile) -> None:
        match file:
            case ClaimedFile():
                self._start(file)
            case RefusedFile():
                self.num_failed_files += 1
                log.error("pipeline %s: %s is in failed/: %s", self.name, printable(file.path.name), file.reason)

    def _find(self, target: str) -> FileRun | None:
        """Return the run of a stem, or of a full name in work/."""
        return next((run for run in self._runs.values() if target in {run.stem, run.path.name}), None)

    def _check_space(self) -> None:
        free = self._folders.free_bytes()
        self._parts.metrics.set_disk_free(free)
        if free < self._daemon.min_free_bytes:
            wanted = self._daemon.min_free_bytes
            root = printable(self._folders.root)
            text = f"{free:,} bytes are free on the disk of {root}, daemon.min_free_bytes is {wanted:,}"
            raise DiskFullError(text, self._folders.root, None)

    def _say_whether_paused(self) -> None:
        reason = self._stuck_because
        # What is free changes all the time, why it pauses does not.
        if reason is not None and (self._said is None or not self._is_the_same_pause(reason)):
            log.error("pipeline %s takes no files: %s", self.name, reason)
        if reason is None and self._said is not None:
            log.info("pipeline %s goes on", self.name)
        self._said = reason

    def _is_the_same_pause(self, reason: str) -> bool:
        digits = str.maketrans("", "", "0123456789,")
        return self._said is not None and self._said.translate(digits) == reason.translate(digits)

    def _say_what_cannot_be_taken(self) -> None:
        for name, reason in self._inbox.unusable.items():
            if self._unusable.get(name) != reason:
                log.warning(
                    "pipeline %s: %s stays in the inbox and is tried again: %s", self.name, printable(name), reason
                )
        self._unusable = dict(self._inbox.unusable)

    def _start(self, claimed: ClaimedFile) -> None:
        shared = self._parts
        parts = RunParts(
            self.name,
            shared.engine,
            shared.feeder,
            shared.metrics,
            self._folders,
            shared.storage,
            self._troubles,
            price_per_gpu_hour=self._daemon.price_per_gpu_hour,
            is_held=lambda: self.held_because is not None,
            tell=shared.tell,
            ledger=self._ledger,
            find_engine=shared.find_engine,
            tracing=shared.tracing,
        )
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
            self._parts.metrics.count_left_file(self.name)
            log.error(
                "pipeline %s: %s stays in work/: %s", self.name, printable(run.name), error, exc_info=_unexpected(error)
            )
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

    async def _wait_for_round(self) -> None:
        """Wait for an event, for the next file to be complete, or for the next listing that comes anyway."""
        now_s = time.monotonic()
        wake_s = self._inbox.tracker.wake_s() if self._inbox.num_settling else None
        until_s = self._daemon.rescan_s
        if self._stuck_because is not None:
            until_s = min(until_s, _PAUSED_LOOK_S)
        elif wake_s is not None:
            until_s = min(until_s, max(wake_s - now_s, self._daemon.settle_s / 4, _MIN_WAIT_S))
        await wait_for_event(self._watch.nudge, until_s)
        self._watch.nudge.clear()
        if not self._inbox.num_complete:  # nothing to claim before the next listing
            await asyncio.sleep(min(self._next_look_s - time.monotonic(), self._daemon.rescan_s))


def _unexpected(error: BaseException) -> BaseException | None:
    """The error to show with its traceback in the log: one that is not of ours."""
    return None if isinstance(error, DaemonError) else error
