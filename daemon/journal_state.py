"""What a journal's records add up to: a state machine without files or threads, driven by appending and by recovery alike.

Its invariants are those of `journal`, by their numbers there.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from daemon.errors import InvariantError
from daemon.journal_records import (
    Header,
    LineNumbers,
    Outcome,
    Record,
    RecordType,
    Sealed,
    Started,
    decode_attempt,
    decode_json,
    decode_line_head,
    decode_thought,
    line_bytes,
)
from daemon.made_with import MadeWith


@dataclass(slots=True)
class Tally:
    """Sums over the lines of one file."""

    outcomes: list[int] = field(default_factory=lambda: [0] * (max(Outcome) + 1))  # lines by `Outcome`
    num_stop: int = 0  # choices
    num_length: int = 0  # choices
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    output_bytes: int = 0
    errors_bytes: int = 0

    @property
    def num_lines(self) -> int:
        """Requests that have their line."""
        return sum(self.outcomes)

    @property
    def num_completed(self) -> int:
        """Lines of the output file."""
        return self.outcomes[Outcome.COMPLETED]

    @property
    def num_failed(self) -> int:
        """Lines of the errors file."""
        return self.num_lines - self.num_completed

    @property
    def num_computed_tokens(self) -> int:
        """Tokens that the engine computed: those of prompts that were not cached, and the answers'."""
        return self.prompt_tokens - self.cached_tokens + self.completion_tokens

    def count(self, outcome: Outcome) -> int:
        """Return how many requests ended so."""
        return self.outcomes[outcome]

    def add(self, outcome: Outcome, num_bytes: int, numbers: LineNumbers) -> None:
        """Take one line in."""
        self.outcomes[outcome] += 1
        if outcome is Outcome.COMPLETED:
            self.output_bytes += num_bytes
        else:
            self.errors_bytes += num_bytes
        self.num_stop += numbers.num_stop
        self.num_length += numbers.num_length
        self.prompt_tokens += numbers.prompt_tokens
        self.cached_tokens += numbers.cached_tokens
        self.completion_tokens += numbers.completion_tokens
        self.reasoning_tokens += numbers.reasoning_tokens


class LineIndex:
    """Offset and outcome of each request's line: nine bytes a request.

    One thread adds, others may look: an entry's offset is there before its outcome says that it exists.
    """

    def __init__(self) -> None:
        self._offsets = array("Q")  # [requests] of the record's head
        self._outcomes = bytearray()  # [requests] 0 = no line yet

    def __len__(self) -> int:
        return len(self._outcomes)

    def reserve(self, num_requests: int) -> None:
        """Make room, once, for requests 0 .. num_requests - 1."""
        self._offsets = array("Q", bytes(8 * num_requests))
        self._outcomes = bytearray(num_requests)

    def add(self, index: int, outcome: Outcome, offset: int) -> None:
        """Enter a line that is not there yet."""
        self._offsets[index] = offset
        self._outcomes[index] = outcome

    def has(self, index: int) -> bool:
        """Whether the request has its line."""
        return self._outcomes[index] != 0

    def outcome(self, index: int) -> Outcome | None:
        """Return how the request ended, None if it has no line yet."""
        value = self._outcomes[index]
        return Outcome(value) if value else None

    def offset(self, index: int) -> int | None:
        """Return where the line's record begins, None if there is none yet."""
        return self._offsets[index] if self._outcomes[index] else None

    def failed(self) -> Iterator[int]:
        """Yield the requests whose line is one of the errors file, in order."""
        return (index for index, value in enumerate(self._outcomes) if value > Outcome.COMPLETED)

    def next_missing(self, start: int = 0) -> int | None:
        """Return the first request from `start` on that has no line, None if all have."""
        position = self._outcomes.find(0, start)
        return position if position >= 0 else None


class JournalState:
    """One file's state; each method takes one record in.

    Raises:
        InvariantError: (every method) the record may not come now; the state is as it was.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.started: Started | None = None
        self.cancelled_at: int | None = None  # Unix seconds
        self.is_cancelled_early = False  # before running began
        self.expired_at: int | None = None  # Unix seconds
        self.sealed: Sealed | None = None
        self.is_published = False
        self.attempts: dict[int, int] = {}  # request -> attempts that a death of the engine ended
        self.made_with: Counter[MadeWith] = Counter()  # results by the model they were made with, the first model first
        self.model: MadeWith | None = None  # of the next result, as far as it is known
        self.tally = Tally()
        self.lines = LineIndex()
        self._thoughts: dict[int, int] = {}  # request -> tokens, of results that are still to be read back

    def start(self, started: Started) -> None:
        """Running begins."""
        self._check_unsealed()
        if self.started is not None:
            raise self._broken(5, "started twice")
        self.started = started
        self.lines.reserve(started.num_requests)

    def add_line(self, index: int, outcome: Outcome, offset: int, num_bytes: int, numbers: LineNumbers) -> None:
        """A request has its line, in the record at `offset`."""
        self._check_request(index)
        if self.lines.has(index):
            raise self._broken(2, f"a second line for request {index}")
        self.lines.add(index, outcome, offset)
        if outcome is Outcome.COMPLETED and self.model is not None:
            self.made_with[self.model] += 1
        self.tally.add(outcome, num_bytes, numbers)

    def note_model(self, model: MadeWith) -> None:
        """The results from here on are made with another model."""
        self._check_unsealed()
        self.model = model

    def add_attempt(self, index: int, num_deaths: int) -> None:
        """Attempts at a request that the engine's death ended."""
        self._check_request(index)
        self.attempts[index] = num_deaths

    def cancel(self, at: int) -> None:
        """Somebody asked to cancel the file."""
        self._check_unsealed()
        self.cancelled_at = at
        self.is_cancelled_early = self.started is None

    def expire(self, at: int) -> None:
        """The deadline passed."""
        self._check_unsealed()
        self.expired_at = at

    def seal(self, sealed: Sealed) -> None:
        """Nothing is left but publishing."""
        self._check_unsealed()
        is_complete = self.started is not None and self.lines.next_missing() is None
        if not is_complete and sealed.reason is None:
            raise self._broken(5, "sealed before every request had its line")
        self.sealed = sealed

    def publish(self) -> None:
        """The outbox is complete and durable."""
        if self.sealed is None:
            raise self._broken(6, "published before it was sealed")
        self.is_published = True

    def replay(self, record: Record) -> None:
        """Take in a record that was read back.

        Raises:
            ValueError, TypeError, struct.error: its payload is none that this version writes.
        """
        match RecordType(record.type):
            case RecordType.RESULT | RecordType.REFUSED | RecordType.THOUGHT:
                self._replay_line(record)
            case RecordType.STARTED:
                self.start(Started(**decode_json(record.payload)))
            case RecordType.ATTEMPT:
                self.add_attempt(*decode_attempt(record.payload))
            case RecordType.MODEL:
                self.note_model(MadeWith(**decode_json(record.payload)))
            case RecordType.CANCELLED:
                self.cancel(int(decode_json(record.payload)))
            case RecordType.EXPIRED:
                self.expire(int(decode_json(record.payload)))
            case RecordType.SEALED:
                self.seal(Sealed(**decode_json(record.payload)))
            case RecordType.PUBLISHED:
                self.publish()
            case RecordType.HEADER:
                raise ValueError("a second header")

    def _replay_line(self, record: Record) -> None:
        """Take in a line, or what is said ahead of one."""
        if record.type == RecordType.THOUGHT:
            self._thoughts.update([decode_thought(record.payload)])
            return
        index, outcome, *numbers = decode_line_head(record.payload)
        found = LineNumbers(*numbers)
        if thought := self._thoughts.pop(index, 0):
            found = replace(found, reasoning_tokens=thought)
        self.add_line(index, Outcome(outcome), record.offset, line_bytes(record.payload), found)

    def _check_unsealed(self) -> None:
        if self.sealed is not None:
            raise self._broken(6, "a record after it was sealed")

    def _check_request(self, index: int) -> None:
        self._check_unsealed()
        if not 0 <= index < len(self.lines):
            raise self._broken(5, f"request {index} of {len(self.lines)}")

    def _broken(self, invariant: int, what: str) -> InvariantError:
        return InvariantError(f"journal of {self.header.source_name!a}: invariant {invariant}: {what}")
