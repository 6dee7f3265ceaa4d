"""The journal: the only truth about one request file, from its claim until its results are published.

The problem. A file may hold a million requests that finish in any order over hours, and the process, the machine or the disk
may give way at any moment. Afterwards each request has to have one result, and a result that was finished must be neither
computed again nor changed. So every line of the output and errors files is recorded here first, as the very bytes that will be
published, and is only copied from here.

One file a request file, `work/STEM.journal`, append-only:

    +-----------------+----------------------------------------------------------------------------+
    | magic, version  | record | record | record | ...                            | torn tail, maybe |
    +-----------------+----------------------------------------------------------------------------+
      record = payload length u32, CRC-32 of (length, type, payload) u32, type u8, payload;  little endian

    HEADER --> STARTED --> { MODEL | RESULT | REFUSED | ATTEMPT | CANCELLED | EXPIRED }* --> SEALED --> PUBLISHED
        `-- a file that cannot be run at all is sealed at once, with its reason --'

RESULT and REFUSED carry the request's index, the few numbers that counts need, and the line; MODEL says which model the results
behind it were made with. Appending only fills a buffer;
`sync` writes the buffer and makes it durable, for all files' results of a moment at once:

            appended ------------------------------------------> end_offset
    |  durable: in the index, may leave  |  in memory until a sync says that it is durable  |
    0 ------------------------- durable_offset ----------------------------- end_offset

Threads: one thread appends; `sync` may run in another meanwhile; reading durable lines is free to all.

Invariants:
 1. A record counts once it is whole and its checksum is right. Opening cuts the file at the first that is not; since `sync`
    returned only after everything before was on the disk, what is cut was never promised to anybody.
 2. A request has at most one line: the first. A second is refused.
 3. Only durable lines are handed out, so what a person has seen is never lost or replaced.
 4. Nothing below `durable_offset` is ever written again. What lies above stays in memory until fdatasync has succeeded, and a
    failed sync starts over at `durable_offset`: after a failed one the kernel may have dropped the pages, and would call the next
    one a success.
 5. Requests are numbered 0 .. num_requests - 1 without holes. A journal is sealed when each has its line, or with a reason.
 6. After SEALED only PUBLISHED follows.
"""

import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from daemon.durable import (
    PRIVATE_MODE,
    DiskStorage,
    Storage,
    atomic_write_bytes,
    printable,
    storage_error,
    storage_errors,
    write_all,
)
from daemon.errors import InvariantError, JournalError
from daemon.journal_records import (
    FILE_HEAD,
    MAGIC,
    MAX_RECORD_BYTES,
    NO_NUMBERS,
    VERSION,
    Header,
    LineNumbers,
    LineRecord,
    Outcome,
    RecordReader,
    RecordType,
    Sealed,
    Started,
    decode_json,
    decode_line,
    encode,
    encode_attempt,
    encode_json,
    encode_line,
    encode_record_of,
    encode_thought,
)
from daemon.journal_state import JournalState
from daemon.made_with import MadeWith

JOURNAL_SUFFIX = ".journal"
_ONE_LINE_BYTES = 4096  # a line is rarely longer, and one read is then enough
_LINE_TYPES = (RecordType.RESULT, RecordType.REFUSED)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found."""

    num_lines: int  # requests that need not run again
    cut_bytes: int  # of a torn or corrupt tail, see invariant 1


class Journal:
    """One journal, open; `create` and `open` make it. `state` is what its records add up to, those not yet durable included."""

    def __init__(self, storage: Storage, path: Path, fd: int, state: JournalState, end: int) -> None:
        self.path = path
        self.state = state
        self._storage = storage
        self._fd = fd
        self._unsynced = bytearray()
        self._end = end
        self._durable = end
        self._append_lock = threading.Lock()  # held for moments: state, buffer, offsets
        self._sync_lock = threading.Lock()  # held for a whole sync

    @classmethod
    def create(cls, path: Path, header: Header, storage: Storage | None = None) -> Self:
        """Make a journal; once this returns it is durable, and before that there is none.

        Raises:
            JournalError: there is one already.
            StorageError: it cannot be written.
        """
        storage = storage or DiskStorage()
        if storage.exists(path):
            raise JournalError(f"{printable(path)}: found a journal, expected none yet", path)
        head = FILE_HEAD.pack(MAGIC, VERSION) + encode_record_of(header)
        # Private, because it will hold answers that nobody may see yet.
        atomic_write_bytes(storage, path, head, is_durable=True, mode=PRIVATE_MODE)
        with storage_errors("open", path):
            return cls(storage, path, storage.open_write(path), JournalState(header), len(head))

    @classmethod
    def open(cls, path: Path, storage: Storage | None = None) -> tuple[Self, Recovery]:
        """Read a journal whole and cut its tail where it is torn.

        Raises:
            JournalError: it is no journal, or not one of this version.
            StorageError: it cannot be read or cut.
        """
        storage = storage or DiskStorage()
        with storage_errors("open", path):
            storage.close(storage.open_read(path))  # a missing one is an error here, not made anew
            fd = storage.open_write(path)
        try:
            with storage_errors("read", path):
                state, end, size = _recover(storage, path, fd)
        except BaseException:
            storage.close(fd)
            raise
        return cls(storage, path, fd, state, end), Recovery(state.tally.num_lines, size - end)

    def append_started(self, at: int, num_requests: int, survey: dict[str, Any] | None = None) -> None:
        """Record that running began, at Unix second `at`, how many requests there are, and what else is known of the file."""
        with self._append_lock:
            started = Started(at, num_requests, survey)
            self.state.start(started)
            self._push(encode_record_of(started))

    def append_result(self, index: int, line: bytes, numbers: LineNumbers) -> None:
        """Record a line of the output file.

        Raises:
            InvariantError: the request has its line, or is none of this file.
        """
        self._append_line(index, Outcome.COMPLETED, line, numbers)

    def append_refused(self, index: int, outcome: Outcome, line: bytes, numbers: LineNumbers = NO_NUMBERS) -> None:
        """Record a line of the errors file.

        Raises:
            InvariantError: the request has its line, or is none of this file.
        """
        if outcome is Outcome.COMPLETED:
            raise InvariantError("a completed request has no line in the errors file")
        self._append_line(index, outcome, line, numbers)

    def append_model(self, model: MadeWith) -> None:
        """Record that the results from here on are made with this model."""
        with self._append_lock:
            self.state.note_model(model)
            self._push(encode_record_of(model))

    def append_attempt(self, index: int, num_deaths: int) -> None:
        """Record that `num_deaths` attempts at a request ended with the engine's death, so that a restart knows the suspect."""
        with self._append_lock:
            self.state.add_attempt(index, num_deaths)
            self._push(encode_attempt(index, num_deaths))

    def append_cancelled(self, at: int) -> None:
        """Record that the file is to be cancelled, at Unix second `at`."""
        with self._append_lock:
            self.state.cancel(at)
            self._push(encode_json(RecordType.CANCELLED, at))

    def append_expired(self, at: int) -> None:
        """Record that the deadline passed, at Unix second `at`."""
        with self._append_lock:
            self.state.expire(at)
            self._push(encode_json(RecordType.EXPIRED, at))

    def append_sealed(self, sealed: Sealed) -> None:
        """Record that nothing is left but publishing.

        Raises:
            InvariantError: a request has no line and no reason is given, see invariant 5.
        """
        with self._append_lock:
            self.state.seal(sealed)
            self._push(encode_record_of(sealed))

    def append_published(self) -> None:
        """Record that the outbox is complete and durable."""
        with self._append_lock:
            self.state.publish()
            self._push(encode(RecordType.PUBLISHED, b""))

    def sync(self) -> int:
        """Make everything durable that was appended before this call; return the new `durable_offset`.

        Callable from any thread while another appends.

        Raises:
            StorageError: nothing is lost: a later call does the same again, see invariant 4.
        """
        with self._sync_lock:
            with self._append_lock:
                chunk, self._unsynced = self._unsynced, bytearray()
            if not chunk:
                return self._durable
            is_durable = False
            try:
                with storage_errors("write", self.path):
                    write_all(self._storage, self._fd, chunk, self._durable)
                    self._storage.sync(self._fd)
                is_durable = True
            finally:
                if not is_durable:
                    self._take_back(chunk)
            self._durable += len(chunk)
            return self._durable

    @property
    def durable_offset(self) -> int:
        """Bytes of the file that outlive a crash."""
        return self._durable

    @property
    def end_offset(self) -> int:
        """Bytes the file will have once all that was appended is written."""
        return self._end

    @property
    def num_unsynced_bytes(self) -> int:
        """Bytes held in memory; a caller whose syncs fail stops appending before this grows large."""
        return self._end - self._durable

    def is_durable(self, index: int) -> bool:
        """Whether the request has a line that outlives a crash."""
        offset = self.state.lines.offset(index)
        return offset is not None and offset < self._durable

    def read_line(self, index: int) -> LineRecord:
        """Read a request's line back.

        Raises:
            InvariantError: it is not durable, see invariant 3.
            JournalError: the disk gives other bytes than were written.
            StorageError: it cannot be read.
        """
        offset = self.state.lines.offset(index)
        if offset is None or offset >= self._durable:
            what = f"request {index} read before its line was durable"
            raise InvariantError(f"{printable(self.path)}: invariant 3: {what}")
        reader = RecordReader(self._read, offset, self._durable, _ONE_LINE_BYTES)
        record = next(iter(reader), None)
        if record is None:
            raise self._changed(offset)
        return decode_line(record.payload)

    def lines_from(self, offset: int) -> Iterator[tuple[LineRecord, int]]:
        """Yield the durable lines at or after `offset` in the order in which they came, each with the offset to go on from.

        Start with 0. Raises as `read_line`.
        """
        end = self._durable
        reader = RecordReader(self._read, max(offset, FILE_HEAD.size), end)
        for record in reader:
            if record.type in _LINE_TYPES:
                yield decode_line(record.payload), record.end
        if reader.offset < end:
            raise self._changed(reader.offset)

    def close(self) -> None:
        """Wait for a running sync and give the descriptor back; what is not synced is dropped."""
        with self._sync_lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._storage.close(fd)

    def _append_line(self, index: int, outcome: Outcome, line: bytes, numbers: LineNumbers) -> None:
        record = encode_line(index, outcome, line, numbers)
        if len(record) > MAX_RECORD_BYTES:
            raise InvariantError(f"line of request {index} has {len(line)} bytes, at most {MAX_RECORD_BYTES} expected")
        thought = encode_thought(index, numbers)
        with self._append_lock:
            self.state.add_line(index, outcome, self._end + len(thought), len(line), numbers)
            self._push(thought + record)

    def _push(self, record: bytes) -> None:
        self._unsynced += record
        self._end += len(record)

    def _take_back(self, chunk: bytearray) -> None:
        with self._append_lock:
            chunk += self._unsynced
            self._unsynced = chunk
        with suppress(OSError):  # opening cuts a torn tail too; this only keeps it short
            self._storage.truncate(self._fd, self._durable)

    def _read(self, size: int, offset: int) -> bytes:
        try:
            return self._storage.pread(self._fd, size, offset)
        except OSError as error:
            raise storage_error(error, "read", self.path) from error

    def _changed(self, offset: int) -> JournalError:
        message = f"{printable(self.path)}: found other bytes at {offset} than were written there"
        return JournalError(message, self.path)


def _recover(storage: Storage, path: Path, fd: int) -> tuple[JournalState, int, int]:
    """Return what the file says, where it ends now, and how long it was."""
    size = storage.size(fd)
    _check_version(path, storage.pread(fd, FILE_HEAD.size, 0))
    reader = RecordReader(lambda count, at: storage.pread(fd, count, at), FILE_HEAD.size, size)
    records = iter(reader)
    header = next(records, None)
    if header is None or header.type != RecordType.HEADER:
        raise JournalError(f"{printable(path)}: found no header record, expected one at its start", path)
    try:
        state = JournalState(Header(**decode_json(header.payload)))
        for record in records:
            state.replay(record)
    except (ValueError, TypeError, struct.error, InvariantError) as error:
        what = f"a whole record before byte {reader.offset} that may not stand there ({error})"
        raise JournalError(f"{printable(path)}: found {what}", path) from error
    if reader.offset < size:
        storage.truncate(fd, reader.offset)
    # What a killed process wrote may be in the kernel's memory only, and is about to be called durable.
    storage.sync(fd)
    return state, reader.offset, size


def _check_version(path: Path, head: bytes) -> None:
    magic, version = FILE_HEAD.unpack(head) if len(head) == FILE_HEAD.size else (head, 0)
    if magic != MAGIC:
        raise JournalError(f"{printable(path)}: found {head[:8]!r} at its start, expected a journal's {MAGIC!r}", path)
    if version != VERSION:
        advice = "; run the newer gapless that wrote it" if version > VERSION else ""
        raise JournalError(f"{printable(path)}: found format {version}, expected {VERSION}{advice}", path)
