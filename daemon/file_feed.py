"""One file's requests on their way to the engine, and what comes back on its way to the journal."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from daemon.ending import EndCause, answer_of
from daemon.errors import FileError, InputModifiedError
from daemon.journal import Journal
from daemon.recorder import Recorder
from daemon.request_file import FileItem
from daemon.request_record import BadLine, ParsedRequest
from daemon.request_size import memory_bytes
from daemon.request_trail import FileTrail, RequestTrail
from daemon.sealing import Failure
from daemon.settings_pipeline import PipelineSettings
from daemon.submission import Answer, Submission
from daemon.text_request import model_refusal, num_tokens_of, to_text_request
from daemon.tracing import FileTrace

_LOOK_AHEAD = 32  # lines without a request that are recorded beyond what was asked for
MAX_UNSYNCED_BYTES = 64 << 20  # of lines in memory while the disk takes none; beyond it nothing more is fed


@dataclass(frozen=True, slots=True)
class FeedParts:
    """What a feed needs of its file."""

    pipeline: str
    name: str  # of the file, printable
    number: int  # of the file within this run of the daemon
    num_requests: int  # that it had when it was surveyed
    settings: PipelineSettings
    journal: Journal
    recorder: Recorder
    context: int  # tokens a sequence may have; 0: not known yet
    model: str  # that runs its requests
    trace: FileTrace
    is_held: Callable[[], bool] = lambda: False  # whether somebody paused the pipeline


class FileFeed:
    """A `FeedSource` for the feeder. Used from the event loop's thread.

    `nudge` is set when there is something to sync, `is_over` when nothing more will come.
    """

    def __init__(self, items: Iterable[FileItem | None], parts: FeedParts, nudge: asyncio.Event) -> None:
        self.priority = parts.settings.priority
        self.is_exhausted = False
        self.is_held_back = False  # until the disk takes writes again, or the pipeline goes on
        self.is_closed = False  # nothing is recorded any more
        self.num_outstanding = 0
        self.failure: Failure | None = None  # found while reading
        self.fault: Exception | None = None  # ours, found while recording
        self._items = iter(items)
        self._ahead: ParsedRequest | None = None  # read already, the next to be handled
        self._parts = parts
        self._trail = FileTrail(parts.pipeline, parts.name, parts.model, parts.recorder.lines.request_id, parts.trace)
        self._nudge = nudge
        self.is_over = asyncio.Event()

    def take(self, max_requests: int, max_tokens: int) -> list[Submission]:
        """See `FeedSource`."""
        submissions: list[Submission] = []
        if self._parts.is_held():
            self.is_held_back = True
            return submissions
        num_tokens = 0

        def take_one(item: FileItem) -> bool:
            nonlocal num_tokens
            if (submission := self._submission(item)) is not None:
                submissions.append(submission)
                self.num_outstanding += 1  # before the end of the file is seen: it is not over then
                num_tokens += submission.num_tokens
            return num_tokens < max_tokens

        self._read(max_requests, take_one)
        return submissions

    def record_rest(self, max_requests: int, cause: EndCause) -> None:
        """Record for the next `max_requests` at most that they get no answer, because the file ends."""

        def record_one(item: FileItem) -> bool:
            if (request := self._runnable(item)) is not None:
                self._parts.recorder.answer(request, answer_of(cause))
            return True

        self._read(max_requests, record_one)

    def _read(self, max_requests: int, handle: Callable[[FileItem], bool]) -> None:
        """Handle at most `max_requests` of the next items; stop where `handle` returns False, or the reader takes a break.

        Nothing is read while too much is not synced.
        """
        if self._parts.journal.num_unsynced_bytes > MAX_UNSYNCED_BYTES:
            self.is_held_back = True
            return
        self._nudge.set()
        try:
            num_left = max_requests
            while num_left and (item := self._next()) is not None:
                num_left = num_left - 1 if handle(item) else 0
            if not num_left:
                self._look_ahead()
        except StopIteration:
            self.is_exhausted = True
        except InputModifiedError as error:
            self._stop_reading(Failure("input_modified", str(error)))
        except (FileError, OSError) as error:
            self._stop_reading(Failure("input_unreadable", str(error)))
        except Exception as error:  # noqa: BLE001  ours: it ends this file and no other, so it is raised again by its run
            self.fault = error
            self.is_exhausted = True
        self._note_end()

    def _look_ahead(self) -> None:
        """Go on to the next request, so that the end is seen with the last one and what needs no engine waits for no turn."""
        for _ in range(_LOOK_AHEAD):
            if self._ahead is not None or (item := self._next()) is None:
                return
            self._ahead = self._runnable(item)

    def _next(self) -> FileItem | None:
        if (ahead := self._ahead) is not None:
            self._ahead = None
            return ahead
        item = next(self._items)
        if item is not None and item.index >= self._parts.num_requests:
            raise InputModifiedError(
                f"pipeline {self._parts.pipeline}: {self._parts.name} has more requests than when it was taken"
            )
        return item

    def _runnable(self, item: FileItem) -> ParsedRequest | None:
        """Record what cannot be run; return what can."""
        if isinstance(item, BadLine):
            self._parts.recorder.bad_line(item)
            self._trail.refused(item, item)
            return None
        if (refusal := model_refusal(item, self._parts.settings)) is not None:
            self._parts.recorder.refusal(item, refusal)
            self._trail.refused(item, refusal)
            return None
        return item

    def _submission(self, item: FileItem) -> Submission | None:
        parsed = self._runnable(item)
        if parsed is None:
            return None
        settings, state = self._parts.settings, self._parts.journal.state
        request = to_text_request(parsed, settings, state.header.fingerprint, file=self._parts.number)
        num_deaths = state.attempts.get(parsed.index, 0)
        trail = RequestTrail(self._trail, parsed, request.sampling, num_deaths)
        return Submission(
            request,
            memory_bytes(parsed),
            partial(self._on_answer, parsed, trail),
            num_tokens=num_tokens_of(parsed, request, self._parts.context),
            timeout_s=settings.limits.request_timeout_s,
            num_deaths=num_deaths,
            on_death=partial(self._on_death, parsed.index, trail),
            on_sent=trail.sent,
        )

    def _on_answer(self, parsed: ParsedRequest, trail: RequestTrail, answer: Answer) -> None:
        """Record an answer; a fault of ours ends this file and no other."""
        self.num_outstanding -= 1
        trail.ended(answer)
        try:
            if self._records:
                self._parts.recorder.answer(parsed, answer)
        except Exception as error:  # noqa: BLE001  raised again by the file's run, where it belongs
            self.fault = error
        self._nudge.set()
        self._note_end()

    def _on_death(self, index: int, trail: RequestTrail, num_deaths: int) -> None:
        """Record that the engine died while it had a request, so that a restart of the daemon knows the suspect."""
        trail.died(num_deaths)
        if self._records:
            self._parts.journal.append_attempt(index, num_deaths)
            self._nudge.set()

    def _note_end(self) -> None:
        if self.is_exhausted and not self.num_outstanding:
            self.is_over.set()

    @property
    def _records(self) -> bool:
        return self.failure is None and not self.is_closed

    def _stop_reading(self, failure: Failure) -> None:
        self.failure = failure
        self.is_exhausted = True
