"""One claimed file from the claim to its publication.

    survey --> journal --> work (feed, record: see `file_work`) --> seal --> publish

The journal is the truth; everything else here can be lost and is made again from it and from the input. A storage error never
ends a run: it is said once, and the file goes on when the disk takes writes again.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TypeVar

from daemon.batch_object import BatchError, BatchInfo, BatchStatus
from daemon.device_account import DeviceTotals
from daemon.dropped_name import forget_dropped_name
from daemon.durable import inode_of, printable
from daemon.ending import EndCause, Ending
from daemon.engine_client import EngineClient
from daemon.error_groups import failed_lines, group_errors
from daemon.errors import FileError, InputModifiedError, SettingsError, StorageError
from daemon.file_journal import create_journal, reopen_journal, why_changed
from daemon.file_kinds import FileKind, kind_of
from daemon.file_options import read_options
from daemon.file_work import FileWork, OpenFile, RunParts
from daemon.inbox import ClaimedFile
from daemon.journal import Journal
from daemon.journal_state import JournalState
from daemon.live_batch import LiveBatch
from daemon.logs import log_context
from daemon.on_done import note_path, write_note
from daemon.outbox import FileNames, Publisher, partial_output
from daemon.partial_output import PartialOutput  # noqa: TC001  beside the others
from daemon.patience import with_patience
from daemon.report import FileReport, Provenance, config_hash
from daemon.request_record import Survey
from daemon.retention import finished_file
from daemon.sealing import Failure, begin_end, end_batch, seal
from daemon.settings_pipeline import OnBadLine, OutputOrder, PipelineSettings
from daemon.status import FileState, FileStatus
from daemon.survey import survey
from daemon.survey_record import survey_from_record
from daemon.tracing import FileTrace  # noqa: TC001  beside the others
from daemon.waiting import wait_for_any

log = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULT_ENDPOINT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a file ended."""

    is_failed: bool  # it could not be run, or not to its end
    status: BatchStatus  # the last one of its Batch object
    num_completed: int  # requests in its output
    num_failed: int  # requests in its errors file


class FileRun:
    """One file being run. Used from the event loop's thread."""

    def __init__(self, claimed: ClaimedFile, number: int, settings: PipelineSettings, parts: RunParts) -> None:
        self.name = claimed.name
        self.stem = claimed.stem
        self.path = claimed.path
        self._claimed = claimed
        self._created_s = claimed.claimed_s  # Unix seconds
        self._number = number  # of the file within this run of the daemon
        self._settings = settings
        self._parts = parts
        folders = parts.folders
        self._names = FileNames(
            claimed.stem, claimed.path, folders.outbox, folders.done, folders.failed,
            kind_of(claimed.path.name) or FileKind.LINES,
        )  # fmt: skip
        self._who = f"pipeline {parts.pipeline}: {printable(self.name)}"
        self._batch = LiveBatch(self._names, self._info(), parts.storage)
        self._journal: Journal  # from `_open` on, like what follows
        self._partial: PartialOutput
        self._trace: FileTrace  # from `run` on
        self._survey: Survey | None = None
        self._work: FileWork | None = None  # once it has begun
        self._file: OpenFile | None = None  # likewise
        self._ending = Ending()
        self._is_dirty = asyncio.Event()
        self._orders: set[Path] = set()  # see `cancel`
        self._is_closed = False  # all lines are there: too late to end it otherwise
        self._started_s = time.monotonic()
        self._device_before = DeviceTotals()
        self._tokens_before = 0  # computed for this file in earlier runs of the daemon
        self._is_resumed = False  # running began in one of those

    @property
    def engine(self) -> EngineClient:
        """What runs its requests."""
        return self._parts.engine

    @property
    def is_winding_up(self) -> bool:
        """Whether it gets on without being fed: answers will still come, or only its publication is left."""
        if self._work is None:
            return False
        if self._ending.cause is not None:
            return True
        if self._work.feed.num_outstanding:
            return self._parts.engine.is_ready.is_set()
        return self._work.feed.is_exhausted

    @property
    def claimed_s(self) -> int:
        """Unix time of its claim, be it by an earlier run of the daemon."""
        return self._created_s

    async def run(self) -> RunOutcome:
        """Run to the end; cancelling the task leaves everything for the next start."""
        log_context(pipeline=self._parts.pipeline, file=printable(self.name))
        self._trace = self._parts.tracing.file(self._parts.pipeline, printable(self.name))
        outcome: RunOutcome | None = None
        try:
            outcome = await self._run()
        finally:
            self._end_trace(outcome)
        return outcome

    async def _run(self) -> RunOutcome:
        with self._trace.stage("survey"):
            failure = await self._open()
        deadline = asyncio.create_task(self._watch_deadline())
        try:
            if self._journal.state.sealed is None:
                with self._trace.stage("run"):
                    failure = failure or await self._run_requests()
            with self._trace.stage("publish"):
                await self._publish(failure)
        except asyncio.CancelledError:
            self._leave()
            raise
        finally:
            deadline.cancel()
        return self._outcome()

    async def _publish(self, failure: Failure | None) -> None:
        if self._journal.state.sealed is None:
            self._is_closed = True
            await self._with_patience(lambda: self._seal(failure))
        await self._with_patience(self._note_who_is_told)
        publisher = Publisher(self._journal, self._names, self._partial, self._parts.storage)
        source = await self._with_patience(publisher.publish)
        await asyncio.to_thread(self._note_in_ledger, source)
        if self._settings.on_done is not None:
            self._parts.tell(note_path(self._names))

    def _end_trace(self, outcome: RunOutcome | None) -> None:
        if outcome is None:  # the daemon ends, or a fault of ours
            self._trace.end({"gapless.file.stem": self.stem}, "interrupted")
            return
        attributes: dict[str, str | int | float | bool] = {
            "gapless.file.stem": self.stem,
            "gapless.file.status": str(outcome.status),
            "gapless.file.is_resumed": self._is_resumed,
            "gapless.requests.completed": outcome.num_completed,
            "gapless.requests.failed": outcome.num_failed,
            "gen_ai.usage.output_tokens": self._batch.object.num_output_tokens,
        }
        self._trace.end(attributes, str(outcome.status) if outcome.is_failed else None)

    def cancel(self, order: Path | None = None) -> bool:
        """End the file: what is not answered is cut. Return False if it is too late for that.

        `order` is a file that asks for it; it is removed once a crash cannot undo the cancel.
        """
        if self._is_closed or self._ending.cause is EndCause.EXPIRED:
            return False
        if order is not None:
            self._orders.add(order)
        self._ending.begin(EndCause.CANCELLED)
        if self._batch.object.status in {BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS}:
            self._batch.object.advance(BatchStatus.CANCELLING, self._ending.at)
            self._batch.show_soon()
        self._is_dirty.set()
        return True

    @property
    def is_cancelled(self) -> bool:
        """See `daemon.cancel_orders.Cancellable`."""
        return self._ending.cause is EndCause.CANCELLED

    def nudge(self) -> None:
        """Look again whether it may be fed."""
        self._is_dirty.set()

    def status(self) -> FileStatus:
        """What people see."""
        batch = self._batch.object
        state = FileState.FINALIZING if batch.status.is_final else FileState(batch.status)
        counts = batch.as_dict()["request_counts"]
        total = None if self._survey is None else self._survey.num_requests
        return FileStatus(
            printable(self.name), state, counts["completed"], counts["failed"], total,
            stem=self.stem, claimed_s=self._created_s, num_tokens=batch.num_output_tokens,
        )  # fmt: skip

    async def _open(self) -> Failure | None:
        """Read options and file, and open the journal; return why the file cannot be run, if so."""
        failure, storage = None, self._parts.storage
        journal = await self._with_patience(lambda: reopen_journal(self._names.journal, self._who, storage))
        if journal is not None:
            self._settings = PipelineSettings.from_record(journal.state.header.settings, self._names.journal)
            self._keep_engine()
        if journal is None or journal.state.sealed is None:
            failure = await self._examine(journal)
        if journal is None:
            journal = await self._with_patience(self._create_journal)
        self._journal = journal
        state = journal.state
        self.name = state.header.source_name  # after a restart the claim knows only the name in work/
        self._created_s = state.header.created
        self._is_closed = state.sealed is not None
        self._settings = PipelineSettings.from_record(state.header.settings, self._names.journal)
        self._take_up_ending(state)
        in_order = self._settings.output.order is OutputOrder.INPUT
        self._partial = partial_output(self._journal, self._names, in_input_order=in_order, storage=storage)
        if self._survey is not None and self._survey.fingerprint != state.header.fingerprint:
            failure = Failure("input_modified", f"{printable(self.name)} was changed after it was taken")
        return failure

    def _keep_engine(self) -> None:
        """Go on with the engine that the file was claimed for, if there still is one of that name."""
        if found := self._parts.find_engine(self._settings.engine):
            self._parts = replace(self._parts, engine=found[0], feeder=found[1])

    async def _examine(self, journal: Journal | None) -> Failure | None:
        """Learn what is in the file: from its journal, if running had begun, else by reading options and file."""
        started = journal.state.started if journal is not None else None
        if journal is None or started is None or started.survey is None:
            return await self._read_options() or await self._look_through()
        header = journal.state.header
        self._survey = survey_from_record(started.survey, header.fingerprint)
        changed = why_changed(self._names.input, self.name, header)
        return None if changed is None else Failure("input_modified", changed)

    async def _read_options(self) -> Failure | None:
        """Take the file's own options into its settings; with a mistake in them it is not run at all."""
        options = self._names.options
        if not self._parts.storage.exists(options):
            return None
        try:
            self._settings = await asyncio.to_thread(read_options, options, self._settings)
        except SettingsError as error:
            return _invalid_options(error)
        self._batch.start_over(self._info())
        return None

    def _take_up_ending(self, state: JournalState) -> None:
        """Go on ending as an earlier run had begun to."""
        if state.cancelled_at is not None:
            self._ending.begin(EndCause.CANCELLED, state.cancelled_at)
        if state.expired_at is not None:
            self._ending.begin(EndCause.EXPIRED, state.expired_at)
        self._batch.start_over(self._info())
        if state.started is not None and not state.is_cancelled_early:
            self._batch.object.advance(BatchStatus.IN_PROGRESS, state.started.at)
        if self._ending.cause is EndCause.CANCELLED:
            self._batch.object.advance(BatchStatus.CANCELLING, self._ending.at)

    async def _look_through(self) -> Failure | None:
        """Survey the file; a cancel that comes meanwhile is shown at once."""
        await self._with_patience(self._batch.show)
        template = self._settings.template
        reading = asyncio.create_task(asyncio.to_thread(survey, self._names.input, name=self.name, template=template))
        noticing = asyncio.create_task(self._ending.is_due.wait())
        try:
            await asyncio.wait([reading, noticing], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await self._with_patience(self._batch.show)
            self._survey = await reading
        except FileError as error:
            return Failure("invalid_file", str(error), (BatchError("invalid_file", str(error), line=error.line),))
        except InputModifiedError as error:
            return Failure("invalid_file", str(error))
        finally:
            noticing.cancel()
        return None

    async def _watch_deadline(self) -> None:
        """Have the file end when its deadline passes."""
        if (expires_at := self._info().expires_at) is not None:
            await self._ending.watch_deadline(expires_at)
            self._is_dirty.set()

    async def _run_requests(self) -> Failure | None:
        """Work on the requests until each has its line; return what ended that before, if so."""
        if self._survey is None:
            return None
        batch, found = self._batch.object, self._survey
        for bad in found.bad_lines:
            batch.add_error(BatchError(bad.code, bad.message, bad.param, bad.line))
        if found.num_bad and self._settings.on_bad_line is OnBadLine.REJECT:
            text = f"{found.num_bad} of {found.num_requests} lines are bad, and on_bad_line is reject; first: "
            return Failure("invalid_request_file", text + found.bad_lines[0].message)
        self._parts.engine.wake()
        await wait_for_any(self._parts.engine.is_ready, self._ending.is_due)
        self._started_s = time.monotonic()
        self._is_resumed = self._journal.state.started is not None
        self._tokens_before = self._journal.state.tally.num_computed_tokens
        self._device_before = self._parts.engine.account.totals.copy()
        self._file = self._open_file(found)
        self._work = FileWork(self._file, self._parts)
        await self._work.run()
        if self._work.feed.failure is not None:
            return self._work.feed.failure
        changed = why_changed(self._names.input, self.name, self._journal.state.header)
        return None if changed is None else Failure("input_modified", changed)

    def _open_file(self, found: Survey) -> OpenFile:
        return OpenFile(
            who=self._who,
            name=self.name,
            number=self._number,
            names=self._names,
            settings=self._settings,
            journal=self._journal,
            partial=self._partial,
            survey=found,
            batch=self._batch,
            ending=self._ending,
            is_dirty=self._is_dirty,
            trace=self._trace,
            orders=self._orders,
        )

    def _seal(self, failure: Failure | None) -> None:
        """In a thread: write down everything that will be published."""
        state = self._journal.state
        if state.sealed is not None:
            self._journal.sync()  # a second try
        else:
            if begin_end(self._batch.object, state, failure):
                self._batch.show()  # a table or a large report takes its time
            if state.tally.num_failed:
                self._journal.sync()  # the report reads error lines back
            if not self._batch.object.status.is_final:  # else a second try after the report could not be made
                end_batch(self._batch.object, state, failure)
            seal(self._journal, self._names, self._batch.object, self._report(), failure)
        if self._work is not None:
            self._work.note_synced()

    def _report(self) -> FileReport:
        """In a thread, once the journal is synced."""
        found, state = self._survey, self._journal.state
        queued_s, running_s = self._times()
        return FileReport(
            source_name=self.name,
            pipeline=self._parts.pipeline,
            model=self._parts.engine.model,
            status=self._batch.object.status,
            num_requests=found.num_requests if found else 0,
            tally=state.tally,
            queued_s=queued_s,
            running_s=running_s,
            num_resent=sum(state.attempts.values()),
            num_blank_lines=found.num_blank if found else 0,
            models_asked=self._file.models_asked if self._file else {},
            device=self._parts.engine.account.totals.minus(self._device_before),
            provenance=Provenance(
                state.header.model_hash,
                config_hash(state.header.settings, self._parts.engine.config),
                state.header.fingerprint,
            ),
            errors=tuple(group_errors(failed_lines(self._journal))),
            num_new_tokens=state.tally.num_computed_tokens - self._tokens_before,
            price_per_gpu_hour=self._parts.price_per_gpu_hour,
            made_with=dict(state.made_with),
            is_resumed=self._is_resumed,
        )

    def _times(self) -> tuple[float, float]:
        """Return the seconds for which the file was queued and for which it ran."""
        state, now_s = self._journal.state, time.time()
        if self._is_resumed and state.started is not None:
            return float(state.started.at - state.header.created), max(0.0, now_s - state.started.at)
        running_s = time.monotonic() - self._started_s
        return max(0.0, now_s - running_s - self._created_s), running_s

    def _note_who_is_told(self) -> None:
        """In a thread, once the journal is sealed."""
        sealed = self._journal.state.sealed
        if self._settings.on_done is not None and sealed is not None:
            write_note(self._names, self._parts.pipeline, self._settings.on_done, sealed.batch)

    def _note_in_ledger(self, source: Path | None) -> None:
        """In a thread, once all is published; without the note retention leaves the file alone, which is no harm."""
        names, sealed = self._names, self._journal.state.sealed
        if self._parts.ledger is None or sealed is None:
            return
        results = [names.output(sealed.reason), names.errors, names.report, names.batch]
        in_done = source if source is not None and source.parent == names.done else None
        try:
            self._parts.ledger.add(finished_file(names.stem, sealed.batch, results, in_done, time.time()))
        except StorageError as error:
            log.warning("%s: %s", self._who, error)

    def _outcome(self) -> RunOutcome:
        state = self._journal.state
        is_failed = state.sealed is not None and state.sealed.reason is not None
        is_cut = state.cancelled_at is not None or state.expired_at is not None
        how = "failed" if is_failed else str(self._ending.cause) if is_cut else "done"
        counts = f"{state.tally.num_completed} requests answered, {state.tally.num_failed} in the errors file"
        log.info("%s is %s: %s", self._who, how, counts)
        status = BatchStatus(json.loads(state.sealed.batch)["status"]) if state.sealed else BatchStatus.FAILED
        return RunOutcome(is_failed or is_cut, status, state.tally.num_completed, state.tally.num_failed)

    def _leave(self) -> None:
        """Stop in the middle: what is finished is kept, the rest is for the next start."""
        with suppress(StorageError):
            self._journal.sync()
        self._journal.close()

    def _create_journal(self) -> Journal:
        fingerprint = self._survey.fingerprint if self._survey else ""
        engine = self._parts.engine.config
        storage = self._parts.storage
        journal = create_journal(
            self._names.journal, self._claimed, fingerprint, self._settings, engine, storage=storage
        )
        with suppress(StorageError):  # what stays is removed by the next start
            forget_dropped_name(storage, self._parts.folders.work, self.stem)
        return journal

    def _info(self) -> BatchInfo:
        deadline_s = self._settings.limits.deadline_s
        return BatchInfo(
            stem=self._claimed.stem,
            source_name=self.name,
            pipeline=self._parts.pipeline,
            model=self._parts.engine.model,
            endpoint=_DEFAULT_ENDPOINT,
            created_at=self._created_s,
            expires_at=None if deadline_s is None else self._created_s + ceil(deadline_s),
            completion_window="unlimited" if deadline_s is None else f"{deadline_s:g}s",
            inode=inode_of(self._claimed.path),
        )

    async def _with_patience(self, action: Callable[[], T]) -> T:
        return await with_patience(action, self._who, self._parts.folders, self._parts.troubles)


def _invalid_options(error: SettingsError) -> Failure:
    errors = [
        BatchError("invalid_options", str(problem), problem.path or None, problem.line) for problem in error.problems
    ]
    num_more = len(errors) - 1
    more = f"; and {num_more} more mistake{'s' if num_more > 1 else ''}" if num_more else ""
    return Failure("invalid_options", errors[0].message + more, tuple(errors))
