"""One claimed file from the claim to its publication.

    survey --> journal --> feed <--> answers --> journal (synced in groups) --> partial output --> seal --> publish

The journal is the truth; everything else here can be lost and is made again from it and from the input. A storage error never
ends a run: it is said once, and the file goes on when the disk takes writes again.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from daemon.batch_object import BatchError, BatchInfo, BatchObject, BatchStatus
from daemon.device_account import DeviceTotals
from daemon.durable import printable
from daemon.engine_client import EngineClient
from daemon.errors import FileError, InputModifiedError, StorageError
from daemon.feeder import Feeder
from daemon.file_feed import FileFeed
from daemon.file_journal import create_journal, reopen_journal, why_changed
from daemon.folders import Folders
from daemon.inbox import ClaimedFile
from daemon.journal import Journal
from daemon.journal_records import Outcome
from daemon.metrics import Metrics
from daemon.outbox import FileNames, Publisher, partial_output, write_batch_object
from daemon.partial_output import PartialOutput  # noqa: TC001  beside the others
from daemon.patience import with_patience
from daemon.recorder import Recorder
from daemon.report import FileReport
from daemon.request_file import RequestReader, kind_of
from daemon.request_record import FileKind, Survey
from daemon.result_line import LineBuilder, LineFormat
from daemon.sealing import Failure, end_batch, seal
from daemon.settings_sections import OnBadLine, OutputFormat, OutputOrder, PipelineSettings
from daemon.status import FileState, FileStatus
from daemon.survey import survey

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_S = 0.05  # answers of so long share one fsync
SHOW_S = 1.0  # between two versions of the live Batch object
_DEFAULT_ENDPOINT = "/v1/chat/completions"
_FORMATS = {OutputFormat.BATCH: LineFormat.BATCH, OutputFormat.PLAIN: LineFormat.PLAIN}


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run shares with others."""

    pipeline: str
    engine: EngineClient
    feeder: Feeder
    metrics: Metrics
    folders: Folders


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a file ended."""

    is_failed: bool  # it could not be run to its end
    num_failed: int  # requests in its errors file


class FileRun:
    """One file being run. Used from the event loop's thread."""

    def __init__(self, claimed: ClaimedFile, number: int, settings: PipelineSettings, parts: RunParts) -> None:
        self.name = claimed.name
        self.stem = claimed.stem
        self._claimed = claimed
        self._number = number  # of the file within this run of the daemon
        self._settings = settings
        self._parts = parts
        folders = parts.folders
        self._names = FileNames(
            claimed.stem, claimed.path, folders.outbox, folders.done, folders.failed,
            is_text=kind_of(claimed.path.name) is FileKind.TEXT,
        )  # fmt: skip
        self._who = f"pipeline {parts.pipeline}: {printable(self.name)}"
        self._batch = BatchObject(self._info(), time.time)
        self._journal: Journal  # from `_open` on, like what follows
        self._partial: PartialOutput
        self._survey: Survey | None = None
        self._feed: FileFeed | None = None  # while it is being worked on
        self._models_asked: Counter[str] = Counter()
        self._counted: Counter[Outcome] = Counter()  # outcomes that the metrics know
        self._shown_s = 0.0
        self._started_s = time.monotonic()
        self._device_before = DeviceTotals()

    @property
    def is_winding_up(self) -> bool:
        """Whether it gets on without being fed: answers will still come, or only its publication is left."""
        if self._feed is None:
            return False
        if self._feed.num_outstanding:
            return self._parts.engine.is_ready.is_set()
        return self._feed.is_exhausted

    async def run(self) -> RunOutcome:
        """Run to the end; cancelling leaves everything for the next start."""
        failure = await self._open()
        try:
            if self._journal.state.sealed is None:
                failure = failure or await self._work()
                await self._with_patience(lambda: self._seal(failure))
            publisher = Publisher(self._journal, self._names, self._partial)
            await self._with_patience(publisher.publish)
        except asyncio.CancelledError:
            self._leave()
            raise
        return self._outcome()

    def status(self) -> FileStatus:
        """What people see."""
        state = FileState.FINALIZING if self._batch.status.is_final else FileState(self._batch.status)
        counts = self._batch.as_dict()["request_counts"]
        total = None if state is FileState.VALIDATING else counts["total"]
        return FileStatus(printable(self.name), state, counts["completed"], counts["failed"], total)

    async def _open(self) -> Failure | None:
        """Read the file through once and open its journal; return why it cannot be run, if so."""
        failure = None
        journal = await self._with_patience(lambda: reopen_journal(self._names.journal, self._who))
        if journal is None or journal.state.sealed is None:
            failure = await self._look_through()
        if journal is None:
            journal = await self._with_patience(self._create_journal)
        self._journal = journal
        self._counted = Counter({outcome: self._journal.state.tally.count(outcome) for outcome in Outcome})
        header = self._journal.state.header
        self._settings = PipelineSettings.from_record(header.settings, self._names.journal)
        self._batch = BatchObject(self._info(), time.time)
        in_order = self._settings.output.order is OutputOrder.INPUT
        self._partial = partial_output(self._journal, self._names, in_input_order=in_order)
        if self._survey is not None and self._survey.fingerprint != header.fingerprint:
            failure = Failure("input_modified", f"{printable(self.name)} was changed after it was taken")
        return failure

    async def _look_through(self) -> Failure | None:
        await self._with_patience(self._show)
        if self._claimed.refusal is not None:
            return Failure("invalid_file_name", self._claimed.refusal)
        try:
            self._survey = await asyncio.to_thread(survey, self._names.input, name=self.name)
        except (FileError, InputModifiedError) as error:
            return Failure("invalid_file", str(error))
        return None

    async def _work(self) -> Failure | None:
        """Feed the requests and record what becomes of them until each has its line; return what ended it before, if so."""
        if self._survey is None:
            return None
        for bad in self._survey.bad_lines:
            self._batch.add_error(BatchError(bad.code, bad.message, bad.param, bad.line))
        if self._survey.num_bad and self._settings.on_bad_line is OnBadLine.REJECT:
            text = f"{self._survey.num_bad} of {self._survey.num_requests} lines are bad, and on_bad_line is reject; first: "
            return Failure("invalid_request_file", text + self._survey.bad_lines[0].message)
        await self._parts.engine.is_ready.wait()
        self._feed = feed = self._begin(self._survey)
        self._parts.feeder.add(feed)
        try:
            await self._record_until_complete(feed, self._survey.num_requests)
        finally:
            self._parts.feeder.remove(feed)
        if feed.failure is not None:
            return feed.failure
        changed = why_changed(self._names.input, self.name, self._journal.state.header)
        return None if changed is None else Failure("input_modified", changed)

    def _begin(self, found: Survey) -> FileFeed:
        state = self._journal.state
        if state.started is None:
            self._journal.append_started(int(time.time()), found.num_requests)
        self._batch.advance(BatchStatus.IN_PROGRESS, state.started.at if state.started else None)
        self._batch.count(found.num_requests, state.tally)
        self._shown_s = 0.0  # show the new status with the first sync
        self._started_s = time.monotonic()
        self._device_before = self._parts.engine.account.totals.copy()
        feed = FileFeed(
            RequestReader(self._names.input, found, state.lines.has, name=self.name),
            self._settings,
            self._journal,
            Recorder(self._journal, self._line_builder(), self._models_asked),
            number=self._number,
            new_key=self._parts.engine.new_key,
            on_endpoint=self._batch.name_endpoint,
        )
        feed.is_dirty.set()
        return feed

    async def _record_until_complete(self, feed: FileFeed, num_requests: int) -> None:
        """Sync the journal in groups and copy what is durable, until nothing more will come."""
        while True:
            await feed.is_dirty.wait()
            feed.is_dirty.clear()
            if feed.fault is not None:
                raise feed.fault
            await self._with_patience(self._sync)
            if feed.is_held_back:
                feed.is_held_back = False
                self._parts.feeder.add(feed)
            is_complete = self._journal.state.tally.num_lines == num_requests
            if feed.failure is not None or (is_complete and feed.is_exhausted and not feed.is_dirty.is_set()):
                return
            await asyncio.sleep(GROUP_S)

    def _sync(self) -> None:
        """In a thread: make lines durable, copy them, and show the Batch object now and then."""
        started_s = time.monotonic()
        self._journal.sync()
        self._parts.metrics.observe_journal_sync(time.monotonic() - started_s)
        self._count_outcomes()
        self._partial.advance()
        if time.monotonic() - self._shown_s > SHOW_S:
            self._show()

    def _count_outcomes(self) -> None:
        """Tell the metrics of the requests that have ended since the last call in this run of the daemon."""
        tally = self._journal.state.tally
        for outcome in Outcome:
            added = tally.count(outcome) - self._counted[outcome]
            self._parts.metrics.count_requests(self._parts.pipeline, outcome, added)
            self._counted[outcome] += added

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        write_batch_object(self._names, self._batch.as_dict())

    def _seal(self, failure: Failure | None) -> None:
        """In a thread: write down everything that will be published."""
        if self._journal.state.sealed is not None:
            self._journal.sync()  # a second try
            return
        end_batch(self._batch, failure)
        seal(self._journal, self._names, self._batch, self._report(), failure)

    def _report(self) -> FileReport:
        now_s = time.monotonic()
        found = self._survey
        return FileReport(
            source_name=self.name,
            pipeline=self._parts.pipeline,
            model=self._parts.engine.model,
            status=self._batch.status,
            num_requests=found.num_requests if found else 0,
            tally=self._journal.state.tally,
            queued_s=max(0.0, time.time() - (now_s - self._started_s) - self._claimed.claimed_s),
            running_s=now_s - self._started_s,
            num_blank_lines=found.num_blank if found else 0,
            models_asked=self._models_asked,
            device=self._parts.engine.account.totals.minus(self._device_before),
        )

    def _outcome(self) -> RunOutcome:
        state = self._journal.state
        is_failed = state.sealed is not None and state.sealed.reason is not None
        how = "failed" if is_failed else "done"
        counts = f"{state.tally.num_completed} requests answered, {state.tally.num_failed} in the errors file"
        log.info("%s is %s: %s", self._who, how, counts)
        return RunOutcome(is_failed, state.tally.num_failed)

    def _leave(self) -> None:
        """Stop in the middle: what is finished is kept, the rest is for the next start."""
        with suppress(StorageError):
            self._journal.sync()
        self._journal.close()

    def _create_journal(self) -> Journal:
        fingerprint = self._survey.fingerprint if self._survey else ""
        model = self._parts.engine.config.model
        return create_journal(self._names.journal, self._claimed, fingerprint, self._settings, model)

    def _line_builder(self) -> LineBuilder:
        header = self._journal.state.header
        line_format = LineFormat.TEXT if self._names.is_text else _FORMATS[self._settings.output.format]
        return LineBuilder(
            header.fingerprint, header.created, self._parts.engine.model, line_format, f"fp_{header.model_hash}"
        )

    def _info(self) -> BatchInfo:
        return BatchInfo(
            stem=self._claimed.stem,
            source_name=self.name,
            pipeline=self._parts.pipeline,
            model=self._parts.engine.model,
            endpoint=_DEFAULT_ENDPOINT,
            created_at=self._claimed.claimed_s,
        )

    async def _with_patience(self, action: Callable[[], T]) -> T:
        return await with_patience(action, self._who)
