"""One claimed file from the claim to its publication.

    survey --> journal --> feed <--> answers --> journal (synced in groups) --> partial output --> seal --> publish

The journal is the truth; everything else here can be lost and is made again from it and from the input. A storage error never
ends a run: it is said once, and the file goes on when the disk takes writes again.
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from daemon.batch_object import BatchError, BatchInfo, BatchObject, BatchStatus
from daemon.device_account import DeviceTotals
from daemon.durable import inode_of, printable, storage_errors
from daemon.engine_client import Answer, EngineClient, Submission
from daemon.error_groups import failed_lines, group_errors
from daemon.errors import FileError, InputModifiedError, StorageError
from daemon.feeder import Feeder
from daemon.folders import Folders
from daemon.inbox import ClaimedFile
from daemon.journal import Journal
from daemon.journal_records import Header, Outcome, Sealed
from daemon.ledger import Ledger
from daemon.metrics import Metrics
from daemon.on_done import note_path, write_note
from daemon.outbox import FileNames, Publisher, output_is_published, partial_output, reason_document, write_batch_object
from daemon.partial_output import PartialOutput  # noqa: TC001  beside the others
from daemon.recorder import Recorder
from daemon.report import FileReport, Provenance, config_hash
from daemon.request_file import FileItem, RequestReader, kind_of
from daemon.request_record import BadLine, FileKind, ParsedRequest, Survey
from daemon.result_line import LineBuilder, LineFormat
from daemon.retention import finished_file
from daemon.settings_sections import OnBadLine, OutputFormat, OutputOrder, PipelineSettings
from daemon.status import FileState, FileStatus
from daemon.survey import survey
from daemon.text_request import model_refusal, size_of, to_text_request

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_S = 0.05  # answers of so long share one fsync
SHOW_S = 1.0  # between two versions of the live Batch object
RETRY_S = 2.0  # between two tries at a disk that takes no writes
MAX_UNSYNCED_BYTES = 64 << 20  # of lines in memory while the disk takes none; beyond it nothing more is fed
_DEFAULT_ENDPOINT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run shares with others."""

    pipeline: str
    engine: EngineClient
    feeder: Feeder
    metrics: Metrics
    folders: Folders
    price_per_gpu_hour: float | None = None  # for the report
    is_held: Callable[[], bool] = lambda: False  # whether somebody paused the pipeline
    tell: Callable[[Path], None] = lambda _: None  # given the note of a file that is published
    ledger: Ledger | None = None  # of what is published, for retention


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a file ended."""

    is_failed: bool  # it could not be run to its end
    num_failed: int  # requests in its errors file


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a file cannot be run, or not to its end."""

    code: str
    message: str


class FileRun:
    """One file being run; a `RequestSource` for the feeder. Used from the event loop's thread."""

    def __init__(self, claimed: ClaimedFile, number: int, settings: PipelineSettings, parts: RunParts) -> None:
        self.name = claimed.name
        self.stem = claimed.stem
        self.priority = settings.priority
        self.is_exhausted = False
        self.is_held_back = False  # until the disk takes writes again, or the pipeline goes on
        self._claimed = claimed
        self._number = number  # of the file within this run of the daemon
        self._settings = settings
        self._parts = parts
        folders = parts.folders
        self._names = FileNames(
            claimed.stem, claimed.path, folders.outbox, folders.done, folders.failed,
            is_text=kind_of(claimed.path.name) is FileKind.TEXT,
        )  # fmt: skip
        self._batch = BatchObject(self._info(), time.time)
        self._journal: Journal  # from `_open` on, like what follows
        self._partial: PartialOutput
        self._survey: Survey | None = None
        self._recorder: Recorder  # while it is being worked on
        self._models_asked: Counter[str] = Counter()
        self._counted: Counter[Outcome] = Counter()  # outcomes that the metrics know
        self._items: Iterator[FileItem] = iter(())
        self._failure: _Failure | None = None  # found while reading
        self._fault: Exception | None = None  # ours, found while recording
        self._is_dirty = asyncio.Event()
        self._num_outstanding = 0
        self._shown_s = 0.0
        self._started_s = time.monotonic()
        self._device_before = DeviceTotals()
        self._tokens_before = 0  # computed for this file in earlier runs of the daemon
        self._is_resumed = False  # running began in one of those

    @property
    def is_winding_up(self) -> bool:
        """Whether it gets on without being fed: answers will still come, or only its publication is left."""
        if self._num_outstanding:
            return self._parts.engine.is_ready.is_set()
        return self.is_exhausted

    async def run(self) -> RunOutcome:
        """Run to the end; cancelling leaves everything for the next start."""
        failure = await self._open()
        try:
            if self._journal.state.sealed is None:
                failure = failure or await self._work()
                await self._with_patience(lambda: self._seal(failure))
            await self._with_patience(self._note_who_is_told)
            publisher = Publisher(self._journal, self._names, self._partial)
            source = await self._with_patience(publisher.publish)
            await asyncio.to_thread(self._note_in_ledger, source)
            if self._settings.on_done is not None:
                self._parts.tell(note_path(self._names))
        except asyncio.CancelledError:
            self._leave()
            raise
        return self._outcome()

    def nudge(self) -> None:
        """Look again whether it may be fed."""
        self._is_dirty.set()

    def status(self) -> FileStatus:
        """What people see."""
        state = FileState.FINALIZING if self._batch.status.is_final else FileState(self._batch.status)
        counts = self._batch.as_dict()["request_counts"]
        total = None if state is FileState.VALIDATING else counts["total"]
        return FileStatus(printable(self.name), state, counts["completed"], counts["failed"], total)

    def take(self, max_requests: int) -> list[Submission]:
        """See `RequestSource`."""
        submissions: list[Submission] = []
        if self._journal.num_unsynced_bytes > MAX_UNSYNCED_BYTES or self._parts.is_held():
            self.is_held_back = True
            return submissions
        try:
            for _ in range(max_requests):
                submissions += self._take_one(next(self._items))
        except StopIteration:
            self.is_exhausted = True
        except InputModifiedError as error:
            self._stop_reading(_Failure("input_modified", str(error)))
        except (FileError, OSError) as error:
            self._stop_reading(_Failure("input_unreadable", str(error)))
        self._num_outstanding += len(submissions)
        self._is_dirty.set()
        return submissions

    async def _open(self) -> _Failure | None:
        """Read the file through once and open its journal; return why it cannot be run, if so."""
        failure = None
        journal = await self._with_patience(self._reopen_journal)
        if journal is None or journal.state.sealed is None:
            failure = await self._look_through()
        if journal is None:
            journal = await self._with_patience(self._create_journal)
        self._journal = journal
        self._counted = Counter({outcome: self._journal.state.tally.count(outcome) for outcome in Outcome})
        header = self._journal.state.header
        self._settings = PipelineSettings.from_record(header.settings, self._names.journal)
        self.priority = self._settings.priority
        self._batch = BatchObject(self._info(), time.time)
        in_order = self._settings.output.order is OutputOrder.INPUT
        self._partial = partial_output(self._journal, self._names, in_input_order=in_order)
        if self._survey is not None and self._survey.fingerprint != header.fingerprint:
            failure = _Failure("input_modified", f"{printable(self.name)} was changed after it was taken")
        return failure

    async def _look_through(self) -> _Failure | None:
        await self._with_patience(self._show)
        if self._claimed.refusal is not None:
            return _Failure("invalid_file_name", self._claimed.refusal)
        try:
            self._survey = await asyncio.to_thread(survey, self._names.input, name=self.name)
        except (FileError, InputModifiedError) as error:
            return _Failure("invalid_file", str(error))
        return None

    async def _work(self) -> _Failure | None:
        """Feed the requests and record what becomes of them until each has its line; return what ended it before, if so."""
        if self._survey is None:
            return None
        for bad in self._survey.bad_lines:
            self._batch.add_error(BatchError(bad.code, bad.message, bad.param, bad.line))
        if self._survey.num_bad and self._settings.on_bad_line is OnBadLine.REJECT:
            text = f"{self._survey.num_bad} of {self._survey.num_requests} lines are bad, and on_bad_line is reject; first: "
            return _Failure("invalid_request_file", text + self._survey.bad_lines[0].message)
        await self._parts.engine.is_ready.wait()
        self._begin(self._survey)
        self._parts.feeder.add(self)
        try:
            await self._record_until_complete(self._survey.num_requests)
        finally:
            self._parts.feeder.remove(self)
        return self._failure or self._changed_since_claim()

    def _begin(self, found: Survey) -> None:
        state = self._journal.state
        self._is_resumed = state.started is not None
        self._tokens_before = state.tally.num_computed_tokens
        if state.started is None:
            self._journal.append_started(int(time.time()), found.num_requests)
        self._batch.advance(BatchStatus.IN_PROGRESS, state.started.at if state.started else None)
        self._batch.count(found.num_requests, state.tally)
        self._recorder = Recorder(self._journal, self._line_builder(), self._models_asked)
        self._items = iter(RequestReader(self._names.input, found, state.lines.has, name=self.name))
        self._shown_s = 0.0  # show the new status with the first sync
        self._started_s = time.monotonic()
        self._device_before = self._parts.engine.account.totals.copy()
        self._is_dirty.set()

    async def _record_until_complete(self, num_requests: int) -> None:
        """Sync the journal in groups and copy what is durable, until nothing more will come."""
        while True:
            await self._is_dirty.wait()
            self._is_dirty.clear()
            if self._fault is not None:
                raise self._fault
            await self._with_patience(self._sync)
            if self.is_held_back and not self._parts.is_held():
                self.is_held_back = False
                self._parts.feeder.add(self)
            is_complete = self._journal.state.tally.num_lines == num_requests
            if self._failure is not None or (is_complete and self.is_exhausted and not self._is_dirty.is_set()):
                return
            await asyncio.sleep(GROUP_S)

    def _take_one(self, item: FileItem) -> tuple[Submission, ...]:
        """Record what cannot be run, or make a request ready to go."""
        if isinstance(item, BadLine):
            self._recorder.bad_line(item)
            return ()
        if (refusal := model_refusal(item, self._settings)) is not None:
            self._recorder.refusal(item, refusal)
            return ()
        if item.index == 0:
            self._batch.name_endpoint(item.url.value)
        request = to_text_request(
            item, self._settings, self._journal.state.header.fingerprint,
            key=self._parts.engine.new_key(), file=self._number,
        )  # fmt: skip
        return (Submission(request, size_of(item), partial(self._on_answer, item)),)

    def _on_answer(self, parsed: ParsedRequest, answer: Answer) -> None:
        """Record an answer; a fault of ours ends this file and no other."""
        self._num_outstanding -= 1
        try:
            if self._failure is None:
                self._recorder.answer(parsed, answer)
        except Exception as error:  # noqa: BLE001  raised again by `run`, where it belongs
            self._fault = error
        self._is_dirty.set()

    def _stop_reading(self, failure: _Failure) -> None:
        self._failure = failure
        self.is_exhausted = True

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

    def _seal(self, failure: _Failure | None) -> None:
        """In a thread: write down everything that will be published."""
        state = self._journal.state
        if state.sealed is not None:
            self._journal.sync()  # a second try
            return
        if failure is None:
            self._batch.advance(BatchStatus.FINALIZING)
            self._batch.advance(BatchStatus.COMPLETED)
        else:
            self._batch.add_error(BatchError(failure.code, failure.message))
            self._batch.advance(BatchStatus.FAILED)
        reason = None if failure is None else self._reason(failure)
        draft = Sealed(batch="", report="", reason=reason)
        has_output = output_is_published(draft, state.tally.num_completed, is_text=self._names.is_text)
        self._batch.name_files(
            self._names.output.name if has_output else None,
            self._names.errors.name if state.tally.num_failed else None,
        )
        self._journal.sync()  # the report reads error lines back
        self._journal.append_sealed(Sealed(self._batch.as_json(), self._report().as_json(), reason))
        self._journal.sync()

    def _reason(self, failure: _Failure) -> str:
        return reason_document(self.name, failure.code, failure.message, self._batch.as_dict()["errors"]).decode()

    def _report(self) -> FileReport:
        """In a thread, once the journal is synced."""
        found, state = self._survey, self._journal.state
        queued_s, running_s = self._times()
        return FileReport(
            source_name=self.name,
            pipeline=self._parts.pipeline,
            model=self._parts.engine.model,
            status=self._batch.status,
            num_requests=found.num_requests if found else 0,
            tally=state.tally,
            queued_s=queued_s,
            running_s=running_s,
            num_resent=sum(state.attempts.values()),
            num_blank_lines=found.num_blank if found else 0,
            models_asked=self._models_asked,
            device=self._parts.engine.account.totals.minus(self._device_before),
            provenance=Provenance(
                state.header.model_hash,
                config_hash(state.header.settings, self._parts.engine.config),
                state.header.fingerprint,
            ),
            errors=tuple(group_errors(failed_lines(self._journal))),
            num_new_tokens=state.tally.num_computed_tokens - self._tokens_before,
            price_per_gpu_hour=self._parts.price_per_gpu_hour,
            is_resumed=self._is_resumed,
        )

    def _times(self) -> tuple[float, float]:
        """Return the seconds for which the file was queued and for which it ran."""
        state, now_s = self._journal.state, time.time()
        if self._is_resumed and state.started is not None:
            return float(state.started.at - state.header.created), max(0.0, now_s - state.started.at)
        running_s = time.monotonic() - self._started_s
        return max(0.0, now_s - running_s - self._claimed.claimed_s), running_s

    def _outcome(self) -> RunOutcome:
        state = self._journal.state
        is_failed = state.sealed is not None and state.sealed.reason is not None
        log.info(
            "pipeline %s: %s is %s: %d requests answered, %d in the errors file",
            self._parts.pipeline, printable(self.name), "failed" if is_failed else "done",
            state.tally.num_completed, state.tally.num_failed,
        )  # fmt: skip
        return RunOutcome(is_failed, state.tally.num_failed)

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
        results = [names.output, names.errors, names.report, names.batch]
        in_done = source if source is not None and source.parent == names.done else None
        try:
            self._parts.ledger.add(finished_file(names.stem, sealed.batch, results, in_done, time.time()))
        except StorageError as error:
            log.warning("pipeline %s: %s", self._parts.pipeline, error)

    def _leave(self) -> None:
        """Stop in the middle: what is finished is kept, the rest is for the next start."""
        with suppress(StorageError):
            self._journal.sync()
        self._journal.close()

    def _reopen_journal(self) -> Journal | None:
        """In a thread: open the journal that an earlier run left, if there is one."""
        if not self._names.journal.exists():
            return None
        journal, recovery = Journal.open(self._names.journal)
        log.info(
            "pipeline %s: %s: %d requests have their result already, %d torn bytes were cut from the journal",
            self._parts.pipeline, printable(self.name), recovery.num_lines, recovery.cut_bytes,
        )  # fmt: skip
        return journal

    def _create_journal(self) -> Journal:
        """In a thread: write down what the file was when it was claimed."""
        with storage_errors("read", self._names.input):
            status = self._names.input.stat()
        header = Header(
            fingerprint=self._survey.fingerprint if self._survey else "",
            created=self._claimed.claimed_s,
            source_name=self.name,
            input_bytes=status.st_size,
            input_mtime_ns=status.st_mtime_ns,
            model_hash=self._model_hash(),
            settings=self._settings.to_record(),
        )
        return Journal.create(self._names.journal, header)

    def _changed_since_claim(self) -> _Failure | None:
        header = self._journal.state.header
        try:
            status = self._names.input.stat()
        except OSError as error:
            return _Failure("input_modified", f"{printable(self.name)} is gone from work/: {error.strerror}")
        if (status.st_size, status.st_mtime_ns) == (header.input_bytes, header.input_mtime_ns):
            return None
        return _Failure("input_modified", f"{printable(self.name)} was changed while it was being run")

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
            inode=inode_of(self._claimed.path),
        )

    def _model_hash(self) -> str:
        model = self._parts.engine.config.model
        return hashlib.blake2b(f"{model.path}@{model.revision}/{model.dtype}".encode(), digest_size=8).hexdigest()

    async def _with_patience(self, action: Callable[[], T]) -> T:
        """Do something with the disk in a thread, again and again until it works."""
        is_said = False
        while True:
            try:
                return await asyncio.to_thread(action)
            except StorageError as error:
                if not is_said:
                    log.error("pipeline %s: %s waits: %s", self._parts.pipeline, printable(self.name), error)  # noqa: TRY400  one line
                is_said = True
                await asyncio.sleep(RETRY_S)


_FORMATS = {OutputFormat.BATCH: LineFormat.BATCH, OutputFormat.PLAIN: LineFormat.PLAIN}
