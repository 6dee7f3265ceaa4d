"""The end of a file's run: what will be published beside its lines, written into the journal."""

from dataclasses import dataclass

from daemon.batch_object import BatchError, BatchObject, BatchStatus
from daemon.journal import Journal
from daemon.journal_records import Sealed
from daemon.journal_state import JournalState
from daemon.outbox import FileNames, output_is_published, reason_document
from daemon.report import FileReport


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a file cannot be run, or not to its end."""

    code: str
    message: str
    errors: tuple[BatchError, ...] = ()  # for errors.data, where it is more than this one


def begin_end(batch: BatchObject, state: JournalState, failure: Failure | None) -> bool:
    """Say that all lines are there and are being put together; return whether there is a state before the last to show."""
    # A file whose last answers came before its cancel could cut anything is cancelling and not cancelled.
    is_open = batch.status in {BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING}
    if failure is None and state.cancelled_at is None and is_open:
        batch.advance(BatchStatus.FINALIZING)
    return batch.status in {BatchStatus.FINALIZING, BatchStatus.CANCELLING}


def end_batch(batch: BatchObject, state: JournalState, failure: Failure | None) -> None:
    """Bring the Batch object to its last status, behind `begin_end`; what ended the file early stands in the journal."""
    if failure is not None:
        for error in failure.errors or (BatchError(failure.code, failure.message),):
            batch.add_error(error)
        batch.advance(BatchStatus.FAILED)
    elif state.cancelled_at is not None:
        batch.advance(BatchStatus.CANCELLED)
    elif state.expired_at is not None:
        batch.advance(BatchStatus.EXPIRED)
    else:
        batch.advance(BatchStatus.COMPLETED)


def seal(journal: Journal, names: FileNames, batch: BatchObject, report: FileReport, failure: Failure | None) -> None:
    """Write down everything that will be published; `batch` has its last status. Runs in a thread.

    Raises:
        StorageError: it is appended and not durable: syncing the journal again is all that is left to do.
    """
    tally = journal.state.tally
    reason = None
    if failure is not None:
        reason = reason_document(
            journal.state.header.source_name, failure.code, failure.message, batch.as_dict()["errors"]
        ).decode()
    draft = Sealed(batch="", report="", reason=reason)
    has_output = output_is_published(draft, tally.num_completed, is_text=names.is_text)
    batch.name_files(names.output(reason).name if has_output else None, names.errors.name if tally.num_failed else None)
    journal.append_sealed(Sealed(batch.as_json(), report.as_json(), reason))
    journal.sync()
