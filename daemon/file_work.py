"""The middle of a file's run: its requests are fed and what becomes of them is recorded, until each has its line.

feed --> engine --> answers --> journal, synced in groups --> partial output
  `-- cancelled or expired: what is left is recorded as such --^
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar, assert_never

from daemon.batch_object import BatchStatus
from daemon.durable import printable
from daemon.ending import EndCause, answer_of
from daemon.file_feed import FeedParts, FileFeed
from daemon.file_kinds import FileKind
from daemon.journal_records import Outcome
from daemon.journal_state import Tally
from daemon.kept_requests import longest_first
from daemon.open_file import OpenFile, RunParts
from daemon.patience import with_patience
from daemon.recorder import Recorder
from daemon.request_file import FileItem, RequestReader
from daemon.request_record import Survey
from daemon.result_line import LineBuilder, LineFormat
from daemon.settings_pipeline import OutputFormat
from daemon.survey_record import survey_to_record
from pipelines.core.request import FinishReason

T = TypeVar("T")

GROUP_S = 0.05  # answers that come within this time share one fsync
_COPY_BYTES = 16 << 20  # of lines copied between two syncs
_REST_CHUNK = 2000  # requests recorded between two syncs where a file is cancelled or expires
_KIND_FORMATS = {
    FileKind.TEXT: LineFormat.TEXT,
    FileKind.CSV: LineFormat.TABLE,
    FileKind.TSV: LineFormat.TABLE,
    FileKind.PARQUET: LineFormat.TABLE,
}
_FORMATS = {OutputFormat.BATCH: LineFormat.BATCH, OutputFormat.PLAIN: LineFormat.PLAIN}


class FileWork:
    """The work on one file that was surveyed. Used from the event loop's thread.

    `kept` are its requests, if the survey kept them.
    """

    def __init__(self, file: OpenFile, survey: Survey, parts: RunParts, kept: Sequence[FileItem] | None) -> None:
        self._file = file
        self._survey = survey
        self._parts = parts
        state = file.journal.state
        self._counted = Counter({outcome: state.tally.count(outcome) for outcome in Outcome})  # what the metrics know
        self._counted_choices = _choices(state.tally)  # likewise
        self.feed = self._begin(kept)

    async def run(self) -> None:
        """Work until each request has its line, or reading failed: then `feed.failure` says why."""
        if self._file.ending.cause is None:
            self._parts.feeder.add(self.feed)
        try:
            await self._record_until_complete()
        finally:
            self._parts.feeder.remove(self.feed)
            self.feed.is_closed = True
            self._parts.engine.withdraw(self._file.number, answer_of(EndCause.CANCELLED))  # if it is left in the middle

    def _begin(self, kept: Sequence[FileItem] | None) -> FileFeed:
        file, state = self._file, self._file.journal.state
        if file.ending.cause is EndCause.CANCELLED and state.started is None:
            self._record_ending()  # it was cancelled before its requests began to run
        if state.started is None:
            file.journal.append_started(int(time.time()), self._survey.num_requests, survey_to_record(self._survey))
        if file.batch.object.status is BatchStatus.VALIDATING:
            file.batch.object.advance(BatchStatus.IN_PROGRESS, state.started.at if state.started else None)
        file.batch.object.count(self._survey.num_requests, state.tally)
        file.batch.show_soon()
        file.nudge.set()
        parts = FeedParts(
            pipeline=self._parts.pipeline,
            name=printable(file.name),
            number=file.number,
            num_requests=self._survey.num_requests,
            settings=file.settings,
            journal=file.journal,
            recorder=self._recorder(),
            context=self._parts.engine.context,
            model=self._parts.engine.model,
            trace=file.trace,
            is_held=self._parts.is_held,
        )
        return FileFeed(self._items(kept), parts, file.nudge)

    def _items(self, kept: Sequence[FileItem] | None) -> Iterable[FileItem | None]:
        """Return the requests to feed, in the order in which they are fed."""
        file = self._file
        if kept is not None:
            left = [item for item in kept if not self._has_line(item.index)]
            return longest_first(left, file.settings.sampling.max_tokens)
        reader = RequestReader(
            file.names.input, self._survey, self._has_line, name=file.name, template=file.settings.template
        )
        return reader.in_pieces()

    def _has_line(self, index: int) -> bool:
        """Whether a request is done already; one beyond the survey's end is none, because the file was changed."""
        return index < self._survey.num_requests and self._file.journal.state.lines.has(index)

    async def _record_until_complete(self) -> None:
        """Sync the journal in groups and copy what is durable, until nothing more will come."""
        feed, file = self.feed, self._file
        while True:
            await file.nudge.wait()
            if file.ending.cause is None:
                await self._wait_for_more()
            file.nudge.clear()
            if feed.fault is not None:
                raise feed.fault
            if file.ending.cause is not None:
                self._end_requests(file.ending.cause)
            if feed.failure is not None or (self._is_complete and feed.is_exhausted):
                return  # the last lines are synced together with the seal
            await self._with_patience(self._sync)
            if file.partial.is_behind:
                file.nudge.set()
            if feed.is_held_back and not self._is_held:
                self._go_on_feeding()

    async def _wait_for_more(self) -> None:
        """Wait for further answers to share the next sync; after the last one there is nothing to wait for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GROUP_S):
                await self.feed.is_over.wait()

    @property
    def _is_complete(self) -> bool:
        return self._file.journal.state.tally.num_lines == self._survey.num_requests

    @property
    def _is_held(self) -> bool:
        """Whether nothing may be fed because somebody paused the pipeline. A cancel or an expiry goes on all the same."""
        return self._parts.is_held() and self._file.ending.cause is None

    def _go_on_feeding(self) -> None:
        """Feed again: the disk takes writes again, or the pipeline is no longer paused."""
        self.feed.is_held_back = False
        if self._file.ending.cause is None:
            self._parts.feeder.add(self.feed)
        else:
            self._file.nudge.set()

    def _end_requests(self, cause: EndCause) -> None:
        """Cut what runs, and record for requests not fed yet that they get no answer, a piece at a time."""
        state = self._file.journal.state
        is_recorded = state.cancelled_at is not None or state.expired_at is not None
        if is_recorded or not self._is_complete:  # what is complete is not late, and of it nothing can be cut
            self._record_ending()
        self._parts.feeder.remove(self.feed)
        self._parts.engine.withdraw(self._file.number, answer_of(cause))
        if not self.feed.is_exhausted:
            self.feed.record_rest(_REST_CHUNK, cause)

    def _record_ending(self) -> None:
        """Write down, once, that the file is cancelled or has expired."""
        journal, batch, ending = self._file.journal, self._file.batch, self._file.ending
        match ending.cause:
            case EndCause.CANCELLED:
                if journal.state.cancelled_at is None:
                    journal.append_cancelled(ending.at)
            case EndCause.EXPIRED:
                if journal.state.expired_at is None:
                    journal.append_expired(ending.at)
                if batch.object.status is BatchStatus.IN_PROGRESS:
                    batch.object.advance(BatchStatus.FINALIZING, ending.at)
                    batch.show_soon()
            case None:
                pass
            case _:
                assert_never(ending.cause)

    def _sync(self) -> None:
        """In a thread: make lines durable, copy them, and show the Batch object now and then."""
        started_s = time.monotonic()
        self._file.journal.sync()
        self._parts.metrics.observe_journal_sync(time.monotonic() - started_s)
        self.note_synced()
        self._file.partial.advance(_COPY_BYTES)
        self._file.batch.show_when_due()

    def note_synced(self) -> None:
        """In a thread: do what may be done once the journal is durable."""
        self._count_outcomes()
        self._remove_orders()

    def _count_outcomes(self) -> None:
        """Tell the metrics of the requests that have ended since the last call in this run of the daemon."""
        tally = self._file.journal.state.tally
        for outcome in Outcome:
            added = tally.count(outcome) - self._counted[outcome]
            self._parts.metrics.count_requests(self._parts.pipeline, outcome, added)
            self._counted[outcome] += added
        choices = _choices(tally)
        for reason, number in choices.items():
            self._parts.metrics.count_choices(self._parts.pipeline, reason, number - self._counted_choices[reason])
        self._counted_choices = choices

    def _remove_orders(self) -> None:
        """Remove the files that asked for a cancel which no crash can undo any more."""
        if self._file.journal.state.cancelled_at is not None:
            while self._file.orders:
                with suppress(OSError):  # somebody removed it; one that stays is met again by `CancelOrders`
                    self._file.orders.pop().unlink()

    def _recorder(self) -> Recorder:
        file, made_with = self._file, self._parts.engine.made_with
        header, kind = file.journal.state.header, file.names.kind
        line_format = _KIND_FORMATS.get(kind) or _FORMATS[file.settings.output.format]
        lines = LineBuilder(header.fingerprint, header.created, made_with(), line_format)
        return Recorder(printable(file.name), kind, file.journal, lines, file.models_asked, made_with)

    async def _with_patience(self, action: Callable[[], T]) -> T:
        return await with_patience(action, self._file.who, self._parts.folders, self._parts.troubles)


def _choices(tally: Tally) -> dict[FinishReason, int]:
    """Choices of completed requests by how they ended."""
    return {FinishReason.STOP: tally.num_stop, FinishReason.LENGTH: tally.num_length}
