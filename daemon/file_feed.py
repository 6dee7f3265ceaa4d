"""One file's requests on their way to the engine, and what comes back on its way to the journal."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from daemon.engine_client import Answer, Submission
from daemon.errors import FileError, InputModifiedError
from daemon.journal import Journal
from daemon.recorder import Recorder
from daemon.request_file import FileItem
from daemon.request_record import BadLine, ParsedRequest
from daemon.sealing import Failure
from daemon.settings_sections import PipelineSettings
from daemon.text_request import model_refusal, size_of, to_text_request

MAX_UNSYNCED_BYTES = 64 << 20  # of lines in memory while the disk takes none; beyond it nothing more is fed


class FileFeed:
    """A `RequestSource` for the feeder. Used from the event loop's thread."""

    def __init__(
        self,
        items: Iterable[FileItem],
        settings: PipelineSettings,
        journal: Journal,
        recorder: Recorder,
        *,
        number: int,
        new_key: Callable[[], int],
        on_endpoint: Callable[[str], None],
    ) -> None:
        self.priority = settings.priority
        self.is_exhausted = False
        self.is_held_back = False  # until the disk takes writes again
        self.is_dirty = asyncio.Event()  # the journal has something to sync, or the file is read to its end
        self.num_outstanding = 0
        self.failure: Failure | None = None  # found while reading
        self.fault: Exception | None = None  # ours, found while recording
        self._items = iter(items)
        self._settings = settings
        self._journal = journal
        self._recorder = recorder
        self._number = number  # of the file within this run of the daemon
        self._new_key = new_key
        self._on_endpoint = on_endpoint  # told the url of the file's first request

    def take(self, max_requests: int) -> list[Submission]:
        """See `RequestSource`."""
        submissions: list[Submission] = []
        if self._journal.num_unsynced_bytes > MAX_UNSYNCED_BYTES:
            self.is_held_back = True
            return submissions
        try:
            for _ in range(max_requests):
                submissions += self._take_one(next(self._items))
        except StopIteration:
            self.is_exhausted = True
        except InputModifiedError as error:
            self._stop_reading(Failure("input_modified", str(error)))
        except (FileError, OSError) as error:
            self._stop_reading(Failure("input_unreadable", str(error)))
        self.num_outstanding += len(submissions)
        self.is_dirty.set()
        return submissions

    def _take_one(self, item: FileItem) -> tuple[Submission, ...]:
        """Record what cannot be run, or make a request ready to go."""
        if isinstance(item, BadLine):
            self._recorder.bad_line(item)
            return ()
        if (refusal := model_refusal(item, self._settings)) is not None:
            self._recorder.refusal(item, refusal)
            return ()
        if item.index == 0:
            self._on_endpoint(item.url.value)
        fingerprint = self._journal.state.header.fingerprint
        request = to_text_request(item, self._settings, fingerprint, key=self._new_key(), file=self._number)
        return (Submission(request, size_of(item), partial(self._on_answer, item)),)

    def _on_answer(self, parsed: ParsedRequest, answer: Answer) -> None:
        """Record an answer; a fault of ours ends this file and no other."""
        self.num_outstanding -= 1
        try:
            if self.failure is None:
                self._recorder.answer(parsed, answer)
        except Exception as error:  # noqa: BLE001  raised again by the file's run, where it belongs
            self.fault = error
        self.is_dirty.set()

    def _stop_reading(self, failure: Failure) -> None:
        self.failure = failure
        self.is_exhausted = True
