"""OpenAI's Batch object of one file: a pure state machine, shown live as `STEM.batch.json`.

    validating --> in_progress --> finalizing --> completed
        |              |               |--------> expired      (the deadline passed, the rest is recorded as such)
        |              |               `--------> failed
        |--------------+-> cancelling ----------> cancelled
        |              |       `----------------> failed
        `--------------`------------------------> failed       (the input cannot be run, or was changed while it ran)

Each change stamps `<status>_at`. The clock is given, so that a restart can replay the times that the journal holds.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from daemon.durable import utf8_name
from daemon.errors import InvariantError
from daemon.journal_state import Tally
from daemon.json_text import json_document
from pipelines.counted import counted

MAX_ERRORS = 100  # entries of errors.data; the errors file has them all
_MAX_METADATA_CHARS = 512  # OpenAI's limit of a value


class BatchStatus(StrEnum):
    """Where a file is, in OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return not _NEXT[self]


_NEXT: Mapping[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.VALIDATING: frozenset({BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING, BatchStatus.FAILED}),
    BatchStatus.IN_PROGRESS: frozenset({BatchStatus.FINALIZING, BatchStatus.CANCELLING, BatchStatus.FAILED}),
    BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.FAILED}),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED, BatchStatus.FINALIZING, BatchStatus.FAILED}),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.COMPLETED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}


FINAL_STATUSES = frozenset(status for status in BatchStatus if status.is_final)


@dataclass(frozen=True, slots=True)
class BatchError:
    """One entry of errors.data."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None  # from 1


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """What does not change while the file runs."""

    stem: str
    source_name: str  # as it was dropped
    pipeline: str
    model: str | None
    endpoint: str  # that of its requests
    created_at: int  # claim time, Unix seconds
    expires_at: int | None = None  # the deadline, Unix seconds
    completion_window: str = "unlimited"  # the deadline as it was set
    # Of the input, which keeps it wherever it is moved: by it, whoever dropped the file finds its results.
    inode: int | None = None


class BatchObject:
    """One file's Batch object.

    `clock` gives Unix seconds.
    """

    def __init__(self, info: BatchInfo, clock: Callable[[], float]) -> None:
        self._info = info
        self._clock = clock
        self._status = BatchStatus.VALIDATING
        self._times: dict[BatchStatus, int] = {}
        self._num_requests = 0
        self._tally = Tally()
        self._errors: list[BatchError] = []
        self._num_more_errors = 0
        self._files: dict[str, str | None] = {"output_file_id": None, "error_file_id": None}

    @property
    def status(self) -> BatchStatus:
        """Where the file is."""
        return self._status

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the answers so far."""
        return self._tally.completion_tokens

    def advance(self, status: BatchStatus, at: int | None = None) -> None:
        """Go to another status; `at` is its time (Unix seconds) where that is known from before, else it is now.

        Raises:
            InvariantError: that status does not follow the present one.
        """
        if status not in _NEXT[self._status]:
            raise InvariantError(f"a Batch object cannot go from {self._status} to {status}")
        self._status = status
        self._times[status] = int(self._clock()) if at is None else at

    def count(self, num_requests: int, tally: Tally) -> None:
        """Show these numbers from now on; `tally` is the journal's own and stays live."""
        self._num_requests = num_requests
        self._tally = tally

    def add_error(self, error: BatchError) -> None:
        """Add to errors.data, up to `MAX_ERRORS`; what is over is counted in a last entry."""
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(error)
        else:
            self._num_more_errors += 1

    def name_endpoint(self, endpoint: str) -> None:
        """Say what the requests ask for, once one has been read."""
        self._info = replace(self._info, endpoint=endpoint)

    def name_files(self, output: str | None, errors: str | None) -> None:
        """Say which files hold the lines, by their names in the outbox."""
        self._files = {"output_file_id": output, "error_file_id": errors}

    def as_dict(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        info, times = self._info, self._times
        stamps = {f"{status}_at": times.get(status) for status in BatchStatus if status is not BatchStatus.VALIDATING}
        names = {key: name and utf8_name(name) for key, name in self._files.items()}
        return {
            "id": batch_id(info.stem, info.created_at),
            "object": "batch",
            "endpoint": info.endpoint,
            "model": info.model,
            "errors": self._error_list(),
            "input_file_id": utf8_name(info.source_name),
            "completion_window": info.completion_window,
            "status": self._status.value,
            **names,
            "created_at": info.created_at,
            "expires_at": info.expires_at,
            **stamps,
            "request_counts": {
                "total": self._num_requests,
                "completed": self._tally.num_completed,
                "failed": self._tally.num_failed,
            },
            "usage": _usage(self._tally),
            "metadata": {
                "source": utf8_name(info.source_name)[:_MAX_METADATA_CHARS],
                "pipeline": info.pipeline[:_MAX_METADATA_CHARS],
            }
            | ({} if info.inode is None else {"inode": str(info.inode)}),
        }

    def as_json(self) -> str:
        """Return it as people read it."""
        return json_document(self.as_dict()).decode()

    def _error_list(self) -> dict[str, Any] | None:
        if not self._errors:
            return None
        entries = [asdict(error) for error in self._errors]
        if self._num_more_errors:
            note = f"not listed here: {counted(self._num_more_errors, 'more error')}"
            entries.append(asdict(BatchError("more_errors", note)))
        return {"object": "list", "data": entries}


def batch_id(stem: str, created_at: int) -> str:
    """Return the object's id. The fingerprint is not in it: it is unknown until the file is read, and copies share it."""
    digest = hashlib.blake2b(digest_size=16, person=b"gapless-batch")
    digest.update(f"{created_at}/{utf8_name(stem)}".encode())
    return f"batch_{digest.hexdigest()}"


def _usage(tally: Tally) -> dict[str, Any]:
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
    }
