"""The end of a file's run, whatever it came to: its report, its seal, its publication, and who is told of it.

    report --> sealed journal --> note for on_done --> published --> line in the ledger --> told

Up to the seal everything comes from what is known of the run; from there on from the journal alone, so that a restart goes on
where this was left.
"""

import json
import logging
import time
from asyncio import to_thread
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from daemon.batch_object import BatchStatus
from daemon.device_account import DeviceTotals
from daemon.engine_client import EngineClient
from daemon.error_groups import failed_lines, group_errors
from daemon.errors import StorageError
from daemon.journal import Journal
from daemon.journal_state import JournalState
from daemon.on_done import note_path, write_note
from daemon.open_file import OpenFile, RunParts
from daemon.outbox import Publisher
from daemon.patience import with_patience
from daemon.report import FileReport, Provenance, config_hash
from daemon.request_record import Survey
from daemon.retention import finished_file
from daemon.sealing import Failure, begin_end, end_batch, seal
from pipelines.counted import counted

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a file ended."""

    is_failed: bool  # it could not be run, or not to its end
    status: BatchStatus  # the last one of its Batch object
    num_completed: int  # requests in its output
    num_failed: int  # requests in its errors file


@dataclass(frozen=True, slots=True)
class RunStart:
    """Where a file stood when this run of the daemon began to run it; its report is about what came after."""

    at_s: float  # CLOCK_MONOTONIC
    device: DeviceTotals  # of its engine
    num_tokens: int  # computed for it in earlier runs of the daemon
    is_resumed: bool  # running began in one of those

    @classmethod
    def now(cls, journal: Journal, engine: EngineClient) -> Self:
        """Take down how things stand."""
        state = journal.state
        num_tokens = state.tally.num_computed_tokens
        return cls(time.monotonic(), engine.account.totals.copy(), num_tokens, state.started is not None)


class FileClosing:
    """Ends the run of one file. Used from the event loop's thread.

    `note_synced` is told, in a thread, that the journal is durable.
    """

    def __init__(self, file: OpenFile, start: RunStart, parts: RunParts, note_synced: Callable[[], None]) -> None:
        self._file = file
        self._start = start
        self._parts = parts
        self._note_synced = note_synced

    async def publish(self, failure: Failure | None) -> None:
        """Do all that is left, trying again while the disk refuses; `failure` is why the file could not be run to its end."""
        file = self._file
        if file.journal.state.sealed is None:
            await self._with_patience(lambda: self._seal(failure))
        if file.settings.on_done is not None:
            await self._with_patience(self._note_who_is_told)
        publisher = Publisher(file.journal, file.names, file.partial, self._parts.storage)
        source = await self._with_patience(publisher.publish)
        await to_thread(self._note_in_ledger, source)
        if file.settings.on_done is not None:
            self._parts.tell(note_path(file.names))

    def outcome(self) -> RunOutcome:
        """Return how it ended, and tell the log."""
        state = self._file.journal.state
        is_failed = state.sealed is not None and state.sealed.reason is not None
        is_cut = state.cancelled_at is not None or state.expired_at is not None
        how = "failed" if is_failed else str(self._file.ending.cause) if is_cut else "done"
        counts = (
            f"{counted(state.tally.num_completed, 'request')} answered, {state.tally.num_failed:,} in the errors file"
        )
        if state.sealed is not None and state.sealed.reason is not None:
            why = json.loads(state.sealed.reason)["message"]
            so_far = f" ({counts})" if state.tally.num_lines else ""
            log.warning("%s is in failed/: %s%s", self._file.who, why, so_far)
        elif not state.tally.num_lines and not is_cut:
            log.warning("%s is %s: it has no requests", self._file.who, how)
        else:
            log.info("%s is %s: %s", self._file.who, how, counts)
        status = BatchStatus(json.loads(state.sealed.batch)["status"]) if state.sealed else BatchStatus.FAILED
        return RunOutcome(is_failed or is_cut, status, state.tally.num_completed, state.tally.num_failed)

    def _seal(self, failure: Failure | None) -> None:
        """In a thread: write down everything that will be published."""
        journal, batch = self._file.journal, self._file.batch
        state = journal.state
        if state.sealed is not None:
            journal.sync()  # a second try
        else:
            if begin_end(batch.object, state, failure):
                batch.show()  # a table or a large report takes its time
            if state.tally.num_failed:
                journal.sync()  # the report reads error lines back
            if not batch.object.status.is_final:  # else a second try after the report could not be made
                end_batch(batch.object, state, failure)
            seal(journal, self._file.names, batch.object, self._report(failure), failure)
        self._note_synced()

    def _report(self, failure: Failure | None) -> FileReport:
        """In a thread, once the journal is synced."""
        file, engine, start = self._file, self._parts.engine, self._start
        found, state = file.survey, file.journal.state
        queued_s, running_s = self._times()
        return FileReport(
            source_name=file.name,
            pipeline=self._parts.pipeline,
            model=engine.model,
            status=file.batch.object.status,
            num_requests=_num_requests(found, state),
            tally=state.tally,
            queued_s=queued_s,
            running_s=running_s,
            num_resent=sum(state.attempts.values()),
            num_blank_lines=found.num_blank if found else 0,
            models_asked=file.models_asked,
            device=engine.account.totals.minus(start.device),
            provenance=Provenance(
                state.header.model_hash,
                config_hash(state.header.settings, engine.config),
                state.header.fingerprint,
            ),
            errors=tuple(group_errors(failed_lines(file.journal))),
            num_new_tokens=state.tally.num_computed_tokens - start.num_tokens,
            price_per_gpu_hour=self._parts.price_per_gpu_hour,
            made_with=dict(state.made_with),
            failure=None if failure is None else (failure.code, failure.message),
            is_resumed=start.is_resumed,
        )

    def _times(self) -> tuple[float, float]:
        """Return the seconds for which the file was queued and for which it ran."""
        state, now_s = self._file.journal.state, time.time()
        if self._start.is_resumed and state.started is not None:
            return float(state.started.at - state.header.created), max(0.0, now_s - state.started.at)
        running_s = time.monotonic() - self._start.at_s
        return max(0.0, now_s - running_s - state.header.created), running_s

    def _note_who_is_told(self) -> None:
        """In a thread, once the journal is sealed."""
        file, sealed = self._file, self._file.journal.state.sealed
        if file.settings.on_done is not None and sealed is not None:
            write_note(file.names, self._parts.pipeline, file.settings.on_done, sealed.batch)

    def _note_in_ledger(self, source: Path | None) -> None:
        """In a thread, once all is published. Where that fails, retention will leave the file alone, which does no harm."""
        names, sealed = self._file.names, self._file.journal.state.sealed
        if self._parts.ledger is None or sealed is None:
            return
        results = [names.output(sealed.reason), names.errors, names.report, names.batch]
        in_done = source if source is not None and source.parent == names.done else None
        try:
            self._parts.ledger.add(finished_file(names.stem, sealed.batch, results, in_done, time.time()))
        except StorageError as error:
            log.warning("%s: %s", self._file.who, error)

    async def _with_patience(self, action: Callable[[], T]) -> T:
        return await with_patience(action, self._file.who, self._parts.folders, self._parts.troubles)


def _num_requests(found: Survey | None, state: JournalState) -> int | None:
    """Return how many requests a file has, as a survey counted them now or before a restart; None if none did."""
    if found is not None:
        return found.num_requests
    return None if state.started is None else state.started.num_requests
