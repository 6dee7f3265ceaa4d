"""The records of a journal and their bytes; `journal` says what they are for and what holds between them."""

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from daemon.made_with import MadeWith
from pipelines.core.request import FinishReason, RequestOutput

MAGIC = b"GAPLJRNL"
VERSION = 1  # of everything below; a reader takes its own version alone
FILE_HEAD = struct.Struct("<8sI")  # magic, version
RECORD_HEAD = struct.Struct("<IIB")  # payload length, checksum, type
MAX_RECORD_BYTES = 1 << 30  # what is longer is no record
_CHECKED_HEAD = struct.Struct("<IB")  # what the checksum covers before the payload: length, type
_LINE_HEAD = struct.Struct(
    "<IBHHIII"
)  # index, outcome, choices stopped, choices cut, tokens: prompt, cached, completion
_THOUGHT = struct.Struct("<II")  # index, tokens
_ATTEMPT = struct.Struct("<II")  # index, attempts that a death of the engine ended
_CHUNK_BYTES = 1 << 20


class RecordType(IntEnum):
    """What a record says. Numbers are never given to another meaning."""

    HEADER = 1
    STARTED = 2  # validating is over: the number of requests is known, running began
    RESULT = 3  # a line of the output file
    REFUSED = 4  # a line of the errors file, whatever its `Outcome`
    ATTEMPT = 5  # a request was in flight when the engine died
    CANCELLED = 6  # somebody asked to cancel the file
    EXPIRED = 7  # the file's deadline passed
    SEALED = 8  # every request has its line; nothing but publishing is left
    PUBLISHED = 9  # all of the outbox is durable; only the input and this journal are left to move
    MODEL = 10  # the model that the results from here on are made with
    THOUGHT = 11  # how much of the result that follows for a request was thought in front of its answer


class Outcome(IntEnum):
    """How a request ended. 0 is kept for "not yet"."""

    COMPLETED = 1
    REFUSED = 2  # the request itself is wrong (4xx)
    DUPLICATE = 3  # refused for a custom_id that an earlier line has
    CANCELLED = 4  # batch_cancelled
    EXPIRED = 5  # batch_expired
    TIMED_OUT = 6  # request_timeout
    ENGINE_ERROR = 7  # engine_error


@dataclass(frozen=True, slots=True)
class Header:
    """What a file was when it was claimed, and how it is to be run whatever the configuration says later."""

    fingerprint: str  # hash of the content alone
    created: int  # claim time, Unix seconds
    source_name: str  # the file's name as it was dropped
    input_bytes: int
    input_mtime_ns: int
    model_hash: str
    settings: dict[str, Any]  # the effective settings, as JSON values


@dataclass(frozen=True, slots=True)
class Started:
    """Running began."""

    at: int  # Unix seconds
    num_requests: int
    survey: dict[str, Any] | None = None  # what is in the file, as JSON values; None where a restart looks again


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is left to publish beside the lines; whole bytes, so that publishing again gives the same ones."""

    batch: str  # the final Batch object, JSON
    report: str  # JSON
    reason: str | None = None  # JSON; given, the input goes to failed/ with it, else to done/


@dataclass(frozen=True, slots=True)
class LineNumbers:
    """What the counts need of a result, so that nobody parses its line again."""

    num_stop: int = 0  # choices that ended by themselves
    num_length: int = 0  # choices that were cut
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those of the prompt
    completion_tokens: int = 0  # of all choices
    reasoning_tokens: int = 0  # of those; in a record of its own, where there are any

    @classmethod
    def of_output(cls, output: RequestOutput) -> "LineNumbers":
        """Count an answer."""
        num_stop = sum([choice.finish_reason is FinishReason.STOP for choice in output.choices])
        return cls(
            num_stop=num_stop,
            num_length=len(output.choices) - num_stop,
            prompt_tokens=output.num_prompt_tokens,
            cached_tokens=output.num_cached_tokens,
            completion_tokens=sum([choice.num_tokens for choice in output.choices]),
            reasoning_tokens=sum([choice.num_reasoning_tokens for choice in output.choices]),
        )


NO_NUMBERS = LineNumbers()


@dataclass(frozen=True, slots=True)
class LineRecord:
    """A RESULT or REFUSED record."""

    index: int
    outcome: Outcome
    line: bytes  # with its newline


class Record(NamedTuple):
    """One whole record as it lies in a file."""

    type: int
    offset: int  # of its head
    payload: memoryview  # valid until the next record is read

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.offset + RECORD_HEAD.size + len(self.payload)


def encode(kind: RecordType, payload: bytes) -> bytes:
    """Return a record."""
    length = len(payload)
    checksum = zlib.crc32(payload, zlib.crc32(_CHECKED_HEAD.pack(length, kind)))
    return RECORD_HEAD.pack(length, checksum, kind) + payload


def encode_json(kind: RecordType, value: Any) -> bytes:
    """Return a record of JSON; in ASCII, because a file's name may hold what is no UTF-8."""
    return encode(kind, json.dumps(value, separators=(",", ":")).encode("ascii"))


def encode_line(index: int, outcome: Outcome, line: bytes, numbers: LineNumbers) -> bytes:
    """Return a RESULT or REFUSED record."""
    kind = RecordType.RESULT if outcome is Outcome.COMPLETED else RecordType.REFUSED
    head = _LINE_HEAD.pack(
        index,
        outcome,
        numbers.num_stop,
        numbers.num_length,
        numbers.prompt_tokens,
        numbers.cached_tokens,
        numbers.completion_tokens,
    )
    return encode(kind, head + line)


def encode_thought(index: int, numbers: LineNumbers) -> bytes:
    """Return a THOUGHT record, nothing where nothing was thought."""
    thought = numbers.reasoning_tokens
    return encode(RecordType.THOUGHT, _THOUGHT.pack(index, thought)) if thought else b""


def encode_attempt(index: int, num_deaths: int) -> bytes:
    """Return an ATTEMPT record."""
    return encode(RecordType.ATTEMPT, _ATTEMPT.pack(index, num_deaths))


def encode_record_of(value: Header | Started | Sealed | MadeWith) -> bytes:
    """Return the record of a dataclass."""
    kinds = {
        Header: RecordType.HEADER,
        Started: RecordType.STARTED,
        Sealed: RecordType.SEALED,
        MadeWith: RecordType.MODEL,
    }
    return encode_json(kinds[type(value)], asdict(value))


def decode_json(payload: memoryview) -> Any:
    """Return a JSON record's value."""
    return json.loads(bytes(payload))


def decode_line(payload: memoryview) -> LineRecord:
    """Return a RESULT or REFUSED record's content but for its numbers."""
    head = _LINE_HEAD.unpack_from(payload)
    return LineRecord(head[0], Outcome(head[1]), bytes(payload[_LINE_HEAD.size :]))


def decode_line_head(payload: memoryview) -> tuple[int, ...]:
    """Return (index, outcome, then the first fields of LineNumbers) without touching the line."""
    return _LINE_HEAD.unpack_from(payload)


def line_bytes(payload: memoryview) -> int:
    """Return the length of the line in a RESULT or REFUSED record."""
    return len(payload) - _LINE_HEAD.size


def decode_thought(payload: memoryview) -> tuple[int, int]:
    """Return (index, tokens)."""
    index, num_tokens = _THOUGHT.unpack(payload)
    return index, num_tokens


def decode_attempt(payload: memoryview) -> tuple[int, int]:
    """Return (index, attempts that a death of the engine ended)."""
    index, num_deaths = _ATTEMPT.unpack(payload)
    return index, num_deaths


class RecordReader:
    """Iterates over the whole records of `[offset, end)`; it stops before the first that is torn or does not match its checksum.

    `offset` is then the end of the last good record. `read(size, offset)` gives a file's bytes, `chunk_bytes` at a time.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], offset: int, end: int, chunk_bytes: int = _CHUNK_BYTES
    ) -> None:
        self.offset = offset
        self._chunk_bytes = chunk_bytes
        self._read = read
        self._end = end

    def __iter__(self) -> Iterator[Record]:
        chunk, base = memoryview(b""), self.offset
        while True:
            record = self._record_at(chunk, self.offset - base)
            if record is None:  # it goes on behind the chunk, or it is bad
                chunk, base = self._chunk_from_here(), self.offset
                record = self._record_at(chunk, 0)
            if record is None:
                return
            self.offset = record.end
            yield record

    def _chunk_from_here(self) -> memoryview:
        """Return bytes that begin with the next record's and hold all of it, if the file does."""
        left = self._end - self.offset
        chunk = memoryview(self._read(min(self._chunk_bytes, left), self.offset))
        if len(chunk) >= RECORD_HEAD.size:
            needed = RECORD_HEAD.size + RECORD_HEAD.unpack_from(chunk)[0]
            if len(chunk) < needed <= min(left, MAX_RECORD_BYTES):
                chunk = memoryview(self._read(needed, self.offset))
        return chunk

    def _record_at(self, chunk: memoryview, position: int) -> Record | None:
        start = position + RECORD_HEAD.size
        if start > len(chunk):
            return None
        length, checksum, kind = RECORD_HEAD.unpack_from(chunk, position)
        if start + length > len(chunk):
            return None
        payload = chunk[start : start + length]
        if zlib.crc32(payload, zlib.crc32(_CHECKED_HEAD.pack(length, kind))) != checksum:
            return None
        return Record(kind, self.offset, payload)
