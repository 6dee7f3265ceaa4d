"""One claimed file from the claim to its publication.

    opening (survey, journal) --> work (feed, record) --> closing (seal, publish)

Each of the three has its module: `file_opening`, `file_work`, `file_closing`. The journal is the truth; everything else here can
be lost and is made again from it and from the input. A storage error never ends a run: it is said once, and the file goes on when
the disk takes writes again.
"""

import asyncio
from functools import partial
from pathlib import Path

from daemon.batch_object import BatchError, BatchStatus
from daemon.durable import printable
from daemon.ending import EndCause, Ending
from daemon.engine_client import EngineClient
from daemon.file_closing import FileClosing, RunOutcome, RunStart
from daemon.file_journal import why_changed
from daemon.file_kinds import FileKind, kind_of
from daemon.file_opening import FileOpening
from daemon.file_work import FileWork
from daemon.inbox import ClaimedFile
from daemon.journal import Journal
from daemon.logs import log_context
from daemon.open_file import OpenFile, RunParts
from daemon.outbox import FileNames, partial_output
from daemon.patience import with_patience
from daemon.sealing import Failure
from daemon.settings_pipeline import OnBadLine, OutputOrder, PipelineSettings
from daemon.status import FileState, FileStatus
from daemon.tracing import FileTrace
from daemon.waiting import wait_for_any
from pipelines.counted import counted


class FileRun:
    """One file being run. Used from the event loop's thread."""

    def __init__(self, claimed: ClaimedFile, number: int, settings: PipelineSettings, parts: RunParts) -> None:
        self.stem = claimed.stem
        self.path = claimed.path
        self._number = number  # of the file within this run of the daemon
        self._pipeline = parts.pipeline
        self._tracing = parts.tracing
        folders = parts.folders
        self._names = FileNames(
            claimed.stem, claimed.path, folders.outbox, folders.done, folders.failed,
            kind_of(claimed.path.name) or FileKind.LINES,
        )  # fmt: skip
        self._who = f"pipeline {parts.pipeline}: {printable(claimed.name)}"
        self._ending = Ending()
        self._opening = FileOpening(claimed, self._names, self._who, settings, parts, ending=self._ending)
        self._file: OpenFile | None = None  # from its opening on
        self._work: FileWork | None = None  # once it has begun
        self._start: RunStart  # from its opening on, and anew when its engine is there
        self._nudge = asyncio.Event()
        self._orders: set[Path] = set()  # see `cancel`
        self._is_closed = False  # every request has its line: too late for a cancel

    @property
    def name(self) -> str:
        """Its name as it was dropped; after a restart the one in work/, until its journal is read."""
        return self._opening.name

    @property
    def engine(self) -> EngineClient:
        """What runs its requests."""
        return self._opening.parts.engine

    @property
    def is_winding_up(self) -> bool:
        """Whether it gets on although it is not fed: answers will still come, or only its publication is left."""
        if self._work is None:
            return False
        if self._ending.cause is not None:
            return True
        if self._work.feed.num_outstanding:
            return self.engine.is_ready.is_set()
        return self._work.feed.is_exhausted

    @property
    def claimed_s(self) -> int:
        """Unix time of its claim, perhaps by an earlier run of the daemon."""
        return self._opening.created_s

    @property
    def is_cancelled(self) -> bool:
        """See `daemon.cancel_orders.Cancellable`."""
        if self._is_closed and self._file is not None:
            return self._file.journal.state.cancelled_at is not None  # else the last answers came before it
        return self._ending.cause is EndCause.CANCELLED

    async def run(self) -> RunOutcome:
        """Run to the end; cancelling the task leaves everything for the next start."""
        log_context(pipeline=self._pipeline, file=printable(self.name))
        trace = self._tracing.file(self._pipeline, printable(self.name))
        outcome: RunOutcome | None = None
        try:
            outcome = await self._run(trace)
        finally:
            self._end_trace(trace, outcome)
        return outcome

    def cancel(self, order: Path | None = None) -> bool:
        """End the file: what is not answered is cut. Return False if it is too late for that.

        `order` is a file that asks for it; it is removed once a crash cannot undo the cancel.
        """
        if self._is_closed or self._ending.cause is EndCause.EXPIRED:
            return False
        if order is not None:
            self._orders.add(order)
        self._ending.begin(EndCause.CANCELLED)
        batch = self._opening.batch
        if batch.object.status in {BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS}:
            batch.object.advance(BatchStatus.CANCELLING, self._ending.at)
            batch.show_soon()
        self._nudge.set()
        return True

    def nudge(self) -> None:
        """Look again whether it may be fed."""
        self._nudge.set()

    def status(self) -> FileStatus:
        """What people see."""
        batch, found = self._opening.batch.object, self._opening.survey
        state = FileState.FINALIZING if batch.status.is_final else FileState(batch.status)
        counts = batch.as_dict()["request_counts"]
        total = None if found is None else found.num_requests
        return FileStatus(
            printable(self.name), state, counts["completed"], counts["failed"], total,
            stem=self.stem, claimed_s=self.claimed_s, num_tokens=batch.num_output_tokens,
        )  # fmt: skip

    async def _run(self, trace: FileTrace) -> RunOutcome:
        try:
            return await self._run_stages(trace)
        except asyncio.CancelledError:
            self._opening.leave()
            raise
        except Exception:  # the file stays in work/, and nothing of it is held open meanwhile
            self._opening.close()
            raise

    async def _run_stages(self, trace: FileTrace) -> RunOutcome:
        with trace.stage("survey"):
            journal, failure = await self._opening.open()
        self._is_closed = journal.state.sealed is not None
        self._start = RunStart.now(journal, self.engine)
        file = self._file = self._open_file(journal, trace)
        deadline = asyncio.create_task(self._watch_deadline())
        try:
            if journal.state.sealed is None:
                with trace.stage("run"):
                    failure = failure or await self._run_requests(file)
            with trace.stage("publish"):
                self._is_closed = True
                closing = FileClosing(file, self._start, self._opening.parts, self._note_synced)
                await closing.publish(failure)
        finally:
            deadline.cancel()
        return closing.outcome()

    def _open_file(self, journal: Journal, trace: FileTrace) -> OpenFile:
        known = self._opening
        in_order = known.settings.output.order is OutputOrder.INPUT
        return OpenFile(
            who=self._who,
            name=known.name,
            number=self._number,
            names=self._names,
            settings=known.settings,
            journal=journal,
            partial=partial_output(journal, self._names, in_input_order=in_order, storage=known.parts.storage),
            survey=known.survey,
            batch=known.batch,
            ending=self._ending,
            nudge=self._nudge,
            trace=trace,
            orders=self._orders,
        )

    async def _watch_deadline(self) -> None:
        """Have the file end when its deadline passes."""
        if (expires_at := self._opening.expires_at) is not None:
            await self._ending.watch_deadline(
                expires_at + 1
            )  # a claim's time is cut to whole seconds: without the 1 a file could get less
            self._nudge.set()

    async def _run_requests(self, file: OpenFile) -> Failure | None:
        """Work on the requests until each has its line; return what ended that before, if so."""
        found, journal, parts = file.survey, file.journal, self._opening.parts
        if found is None:
            return None
        file.batch.object.count(found.num_requests, journal.state.tally)
        for bad in found.bad_lines:
            file.batch.object.add_error(BatchError(bad.code, bad.message, bad.param, bad.line))
        if found.num_bad and file.settings.on_bad_line is OnBadLine.REJECT:
            text = (
                f"bad: {found.num_bad:,} of {counted(found.num_requests, 'line')}, and on_bad_line is reject; first: "
            )
            return Failure("invalid_request_file", text + found.bad_lines[0].message)
        self.engine.wake()
        await wait_for_any(self.engine.is_ready, self._ending.is_due)
        self._start = RunStart.now(journal, self.engine)
        self._work = FileWork(file, found, parts, self._opening.kept.take())
        await self._work.run()
        self._is_closed = True  # before another task runs and could cancel the file
        if self._work.feed.failure is not None:
            return self._work.feed.failure
        look = partial(why_changed, self._names.input, self.name, journal.state.header)
        changed = await with_patience(look, self._who, parts.folders, parts.troubles)
        return None if changed is None else Failure("input_modified", changed)

    def _note_synced(self) -> None:
        if self._work is not None:
            self._work.note_synced()

    def _end_trace(self, trace: FileTrace, outcome: RunOutcome | None) -> None:
        if outcome is None:  # the daemon ends, or a fault of ours
            trace.end({"gapless.file.stem": self.stem}, "interrupted")
            return
        attributes: dict[str, str | int | float | bool] = {
            "gapless.file.stem": self.stem,
            "gapless.file.status": str(outcome.status),
            "gapless.file.is_resumed": self._start.is_resumed,
            "gapless.requests.completed": outcome.num_completed,
            "gapless.requests.failed": outcome.num_failed,
            "gen_ai.usage.output_tokens": self._opening.batch.object.num_output_tokens,
        }
        trace.end(attributes, str(outcome.status) if outcome.is_failed else None)
