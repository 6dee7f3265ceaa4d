"""The readable copies of a running file's lines, which become its output and errors files when all lines are there.

Only lines that are durable in the journal are copied, in input order as soon as all earlier requests have theirs, or in the
order in which they came. The copies are not synced until the end: after a restart they are written anew from the journal, at the
cost of reading and writing every finished line once.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from daemon.durable import Storage, file_size, printable, storage_errors, write_all
from daemon.errors import StorageError
from daemon.journal import Journal
from daemon.journal_records import LineRecord, Outcome

_BATCH_BYTES = 1 << 20  # lines held in memory before they are written


class LineFile:
    """One copy that grows. It is open only while it is written, so that many files can run at once."""

    def __init__(self, storage: Storage, path: Path) -> None:
        self.path = path
        self.is_wanted = True  # False once its lines are in their final place
        self.num_bytes = 0  # of whole lines
        self._storage = storage

    def is_as_left(self) -> bool:
        """Whether the file has the length it was given; what it holds before the first write does not matter.

        Raises:
            StorageError: it cannot be looked at.
        """
        return not self.num_bytes or file_size(self._storage, self.path) == self.num_bytes

    def write(self, data: bytearray) -> None:
        """Write behind the whole lines; the caller adds to `num_bytes` once all that belongs together is written.

        What a dead process left in the file goes with the first write.

        Raises:
            StorageError: what lies behind the whole lines is undefined, see `cut`.
        """
        with storage_errors("write", self.path), self._opened() as fd:
            if not self.num_bytes:
                self._storage.truncate(fd, 0)
            write_all(self._storage, fd, data, self.num_bytes)

    def cut(self) -> None:
        """Take back what was written behind the whole lines, as far as the disk lets us; the next write goes there anyway."""
        with suppress(OSError), self._opened() as fd:
            self._storage.truncate(fd, self.num_bytes)

    def sync(self) -> None:
        """Make it durable; an empty one is made.

        Raises:
            StorageError: it is not durable.
        """
        with storage_errors("sync", self.path), self._opened() as fd:
            if not self.num_bytes:
                self._storage.truncate(fd, 0)
            if self._storage.size(fd) != self.num_bytes:
                raise OSError(errno.ESTALE, "somebody else changed it")
            self._storage.sync(fd)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        fd = self._storage.open_write(self.path)
        try:
            yield fd
        finally:
            self._storage.close(fd)


class PartialOutput:
    """Copies one journal's lines into the output's and the errors' partial files. Used from one thread at a time."""

    def __init__(self, journal: Journal, output: Path, errors: Path, storage: Storage, *, in_input_order: bool) -> None:
        self.output = LineFile(storage, output)
        self.errors = LineFile(storage, errors)
        self._journal = journal
        self._in_input_order = in_input_order
        self._position = 0  # next request, or offset in the journal
        self.is_behind = False  # the last call left lines to copy

    def advance(self, max_bytes: int | None = None) -> int:
        """Copy what has become durable since the last call and can be copied; return the number of lines.

        Of more than about `max_bytes` the rest is left to later calls, and `is_behind` says so: after a restart in the middle
        of a large file all of it is copied anew, and what else the caller has to do would wait for that.

        Raises:
            StorageError, JournalError: what is not copied will be by a later call.
        """
        if not all(file.is_as_left() for file in (self.output, self.errors) if file.is_wanted):
            self._start_over()  # somebody removed or changed a file that is not theirs
        num_lines = num_bytes = 0
        output, errors = bytearray(), bytearray()
        position = self._position
        self.is_behind = False
        for record, position in self._ready():
            (output if record.outcome is Outcome.COMPLETED else errors).extend(record.line)
            num_lines += 1
            num_bytes += len(record.line)
            if len(output) + len(errors) >= _BATCH_BYTES:
                self._write(output, errors, position)
                output, errors = bytearray(), bytearray()
            if max_bytes is not None and num_bytes >= max_bytes:
                self.is_behind = True
                break
        self._write(output, errors, position)
        return num_lines

    def finish(self) -> None:
        """Copy what is left of a sealed journal.

        Raises:
            StorageError, JournalError: as `advance`; also if a file is not what the journal says.
        """
        self.advance()
        tally = self._journal.state.tally
        for file, expected in ((self.output, tally.output_bytes), (self.errors, tally.errors_bytes)):
            if file.is_wanted and file.num_bytes != expected:
                message = f"{printable(file.path)}: found {file.num_bytes} bytes of lines, expected {expected}"
                raise StorageError(message, file.path, None)

    def _start_over(self) -> None:
        self.output.num_bytes = self.errors.num_bytes = 0
        self._position = 0

    def _ready(self) -> Iterator[tuple[LineRecord, int]]:
        """Yield lines to copy, each with the position behind it."""
        if not self._in_input_order:
            yield from self._journal.lines_from(self._position)
            return
        lines, has_gaps = self._journal.state.lines, self._journal.state.sealed is not None
        for index in range(self._position, len(lines)):
            if self._journal.is_durable(index):
                yield self._journal.read_line(index), index + 1
            elif not has_gaps or lines.has(index):
                return

    def _write(self, output: bytearray, errors: bytearray, position: int) -> None:
        files = [
            (file, data) for file, data in ((self.output, output), (self.errors, errors)) if file.is_wanted and data
        ]
        try:
            for file, data in files:
                file.write(data)
        except StorageError:
            for file, _ in files:
                file.cut()
            raise
        for file, data in files:
            file.num_bytes += len(data)
        self._position = position
