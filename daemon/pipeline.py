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
from daemon.errors import DiskFullError, FoldersGoneError, StorageError
from daemon.feeder import Feeder
from daemon.file_metrics import PipelineGauges
from daemon.file_rules import MAX_OPEN_FILES
from daemon.file_run import FileRun
from daemon.file_runs import FileRuns
from daemon.folders import Folders
from daemon.hold import Hold
from daemon.inbox import ClaimedFile, claim_time
from daemon.intake import Intake
from daemon.ledger import Ledger
from daemon.logs import log_context
from daemon.metrics import Metrics
from daemon.on_done import left_notes
from daemon.open_file import RunParts
from daemon.options_files import put_orphans_back
from daemon.recovery import end_renames, leftovers
from daemon.report_table import render_report
from daemon.retention import Retention
from daemon.settings_daemon import DaemonSettings
from daemon.settings_pipeline import PipelineSettings
from daemon.status import EngineState, FileState, PipelineStatus
from daemon.tracing import NoTracing, Tracing
from daemon.waiting import wait_for_event

log = logging.getLogger(__name__)

TIDY_S = 3600.0  # between two looks for what is old enough to be removed
_HANG_S = 300.0  # that a round may take: the listing of a huge folder on a slow share


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
        self._daemon = daemon
        self._parts = parts
        self._folders = Folders(Path(daemon.spool) / name)
        self._intake = Intake(name, self._folders, daemon, parts.storage, parts.claimed_at)
        self._orders = CancelOrders(name, self._folders)
        self._hold = Hold(name, self._folders.root, self._why_engine_is_down)
        self._runs = FileRuns(name, parts.metrics, self._intake.look_soon)
        self._is_in_round = False
        self._ledger = Ledger(self._folders.root)
        self._has_folders = False
        self._has_begun = False
        self._has_scanned = False
        self._has_other_retention = asyncio.Event()
        self._must_take_up = True  # what lies in work/
        self._came_round_s: float | None = None  # monotonic; None: has not begun
        parts.metrics.add_pipeline(name)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do: nothing to take, and no file being run; if paused by hand, none that gets on."""
        if self.held_because is not None:
            return not self._runs.are_winding_up
        is_quiet = self._has_scanned and not self._is_in_round and not self._runs
        return is_quiet and self._intake.is_empty and self.paused_because is None

    @property
    def held_because(self) -> str | None:
        """Why somebody paused it by hand, so that no file is taken and nothing is fed; None if nobody did."""
        return self._hold.by_hand

    @property
    def num_failed_files(self) -> int:
        """Files that could not be taken, or not be run to their end."""
        return self._intake.num_refused + self._runs.num_failed_files

    @property
    def num_failed_requests(self) -> int:
        """Requests in the errors files of those that ended."""
        return self._runs.num_failed_requests

    @property
    def has_work(self) -> bool:
        """Whether a file is being run and nobody paused the pipeline: a device that idles then lacks feed, not work."""
        return bool(self._runs) and self.held_because is None

    def is_hanging(self, now_s: float) -> bool:
        """Whether its round takes far too long. A paused pipeline does not count: it says why it stands still."""
        if self._came_round_s is None or self.paused_because is not None:
            return False
        return now_s - self._came_round_s > 2 * self._daemon.rescan_s + _HANG_S

    @property
    def awaits_disk(self) -> bool:
        """Whether results cannot be written, or no file is taken because the disk is nearly full."""
        return self._hold.trouble is not None

    @property
    def is_retired(self) -> bool:
        """Whether it is to go (see `retire`), and its last file has ended."""
        is_taken_up = not self._must_take_up or self._hold.round_error is not None
        return self._hold.is_retiring and is_taken_up and not self._runs and not self._intake.is_claiming

    @property
    def num_unusable_files(self) -> int:
        """Files in the inbox that cannot be read or moved."""
        return self._intake.num_unusable

    @property
    def inbox_folder(self) -> Path:
        """Where people drop files."""
        return self._folders.inbox

    @property
    def paused_because(self) -> str | None:
        """Why no file is taken; None while files are."""
        return self._hold.because

    def _why_engine_is_down(self) -> str | None:
        """Return why its engine is given up, so that only a person can have it go on; None if it is not."""
        engine = self._parts.engine
        if engine.state is not EngineState.DOWN:
            return None
        return f"engine {self.settings.engine} is paused: {engine.reason}; `gapless resume` tries again"

    def reconfigure(self, settings: PipelineSettings, daemon: DaemonSettings, parts: PipelineParts) -> None:
        """Take other settings: the daemon's at once, its own with the next file claimed. This undoes `retire`."""
        if daemon.retention != self._daemon.retention:
            self._has_other_retention.set()
        self.settings, self._daemon, self._parts = settings, daemon, parts
        self._intake.reconfigure(daemon)
        self._hold.is_retiring = False
        self._intake.look_soon()

    def retire(self) -> None:
        """Claim nothing more, because the configuration no longer has it; files that are being run finish."""
        self._hold.is_retiring = True

    def look_soon(self) -> None:
        """Go round at once: something may be done now that could not be done before."""
        self._intake.look_soon()

    def num_runs_on(self, engine: EngineClient) -> int:
        """Files that an engine runs for it; a claim in progress counts as one."""
        is_coming = self._intake.is_claiming and self._parts.engine is engine
        return is_coming + self._runs.num_on(engine)

    def leave_runs(self) -> None:
        """End all runs as a crash would; they are taken up again from their journals."""
        self._must_take_up = True
        self.abandon()

    def make_folders(self, *, waits_for_room: bool = False) -> None:
        """Make what is missing, and prove that files can be moved.

        If it `waits_for_room`, a full disk does not raise: it pauses the pipeline, and each round tries again.

        Raises:
            StorageError: a folder cannot be made or written.
        """
        try:
            self._folders.make()
        except DiskFullError as error:
            if not waits_for_room:
                raise
            self._hold.round_error = error
        else:
            self._has_folders = True

    async def run(self) -> None:
        """Take up what an earlier run left, then claim and run files until cancelled. The files' runs go on: see `drain`."""
        log_context(pipeline=self.name)
        while True:
            self._came_round_s = time.monotonic()
            await self._go_round()
            await self._intake.wait(is_stuck=self._hold.stuck_because is not None)

    async def keep_tidy(self) -> None:
        """Remove what is old enough: now, every hour, and when the retention is changed; until cancelled."""
        while True:
            self._has_other_retention.clear()
            retention = Retention(self._folders, self._ledger, self._daemon.retention)
            try:
                await asyncio.to_thread(retention.apply)
            except StorageError as error:
                log.warning("pipeline %s: retention: %s", self.name, error)
            await wait_for_event(self._has_other_retention, TIDY_S)

    async def drain(self, grace_s: float) -> None:
        """Give requests that are already fed `grace_s` to finish, and leave the rest to the next start. After `run` only."""
        self._intake.stop()
        await self._runs.drain(grace_s, self._carry_out_cancels)

    def _carry_out_cancels(self) -> None:
        """Carry out cancels while the daemon drains; one that cannot be read now is for the next start."""
        with suppress(StorageError):
            self._orders.carry_out(self._runs.find)

    def abandon(self) -> None:
        """Leave every file to the next start, now."""
        self._runs.abandon()

    def cancel(self, target: str) -> bool:
        """End the file of this stem or full name; False if it is not being run, or it is too late."""
        run = self._runs.find(target)
        return run is not None and run.cancel()

    def status(self) -> PipelineStatus:
        """What people see; the metrics are told the same."""
        now_s = time.monotonic()
        left = {**self._orders.waiting, **self._intake.left}
        found = PipelineStatus(
            name=self.name,
            engine=self.settings.engine,
            paused_because=self.paused_because,
            num_waiting_files=self._intake.num_waiting,
            files=self._runs.look(now_s),
            watch=self._intake.how,
            left_files=tuple(f"{printable(name)}: {why}" for name, why in sorted(left.items())),
            ended=self._runs.ended,
        )
        self._parts.metrics.set_pipeline(self.name, self._gauges(now_s, found))
        return found

    def _gauges(self, now_s: float, found: PipelineStatus) -> PipelineGauges:
        states = Counter({FileState.WAITING: found.num_waiting_files}) + Counter(file.state for file in found.files)
        return PipelineGauges(
            files=states,
            oldest_waiting_s=self._intake.oldest_age_s(now_s),
            oldest_running_s=max((time.time() - file.claimed_s for file in found.files), default=0.0),
            num_pending=sum(file.num_pending for file in found.files),
            pause=self._hold.cause,
        )

    def report_of(self, number: int) -> str | None:
        """The report of a file that ended, as a table; None where there is none any more. May be called from any thread."""
        stem = next((file.stem for file in self._runs.ended if file.number == number), None)
        if stem is None:
            return None
        try:
            return render_report(json.loads((self._folders.outbox / f"{stem}.report.json").read_bytes()))
        except (OSError, ValueError):
            return None  # taken out of the outbox, or changed there

    def look_at_switch(self) -> None:
        """Notice that somebody paused this pipeline or lets it go on."""
        is_other = self._hold.look_at_switch()
        if self._hold.take_resume():
            self._parts.engine.resume()
        if is_other:
            for run in self._runs:
                run.nudge()
            self._intake.look_soon()

    async def _go_round(self) -> None:
        """Do once all there is to do. A storage error pauses the pipeline; a round without one ends the pause."""
        self._is_in_round = True
        try:
            await self._begin()
            await asyncio.to_thread(self._folders.check)
            if self._must_take_up and not self._parts.engine.is_closed:
                await self._take_up()
            await self._intake.renew_if_lost()
            self._orders.carry_out(self._runs.find)  # also while no file is taken
            await self._take_files()
            self._orders.carry_out(self._runs.find)
            self._has_scanned = True
            self._hold.round_error = None
        except StorageError as error:
            self._hold.round_error = error
            if isinstance(error, FoldersGoneError):
                self.leave_runs()  # until the folders are back
        finally:
            self._is_in_round = False
        self._hold.tell()

    async def _begin(self) -> None:
        """Do what has to be done once before the first round; an error leaves the rest of it to the next one."""
        if not self._has_folders:
            await asyncio.to_thread(self._folders.make)
            self._has_folders = True
        if not self._has_begun:
            for note in await asyncio.to_thread(left_notes, self._folders):
                self._parts.tell(note)
            await self._intake.start()
            self._has_begun = True

    async def _take_up(self) -> None:
        """Go on with what an earlier run of the daemon, or of this pipeline, left in work/."""
        await self._runs.wait()  # for those that were left because the folders were gone
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
        await self._intake.look()
        self._check_space()
        if self._hold.lets_claim and not self._parts.engine.is_closed:
            room = MAX_OPEN_FILES - len(self._runs)
            for claimed in await self._intake.claim(room, [run.stem for run in self._runs]):
                self._start(claimed)
            await asyncio.sleep(0)  # let the runs begin before the rest of the round
        self._intake.tell()

    def _check_space(self) -> None:
        free = self._folders.free_bytes()
        self._parts.metrics.set_disk_free(free)
        if free < self._daemon.min_free_bytes:
            wanted = self._daemon.min_free_bytes
            root = printable(self._folders.root)
            text = f"{free:,} bytes are free on the disk of {root}, daemon.min_free_bytes is {wanted:,}"
            raise DiskFullError(text, self._folders.root, None)

    def _start(self, claimed: ClaimedFile) -> None:
        shared = self._parts
        parts = RunParts(
            self.name,
            shared.engine,
            shared.feeder,
            shared.metrics,
            self._folders,
            shared.storage,
            self._hold.troubles,
            price_per_gpu_hour=self._daemon.price_per_gpu_hour,
            is_held=lambda: self.held_because is not None,
            tell=shared.tell,
            ledger=self._ledger,
            find_engine=shared.find_engine,
            tracing=shared.tracing,
            claim_synced=self._intake.claims_synced,
        )
        self._runs.start(FileRun(claimed, self._parts.next_number(), self.settings, parts))
