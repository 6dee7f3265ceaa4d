"""Reading .csv and .tsv files row by row in flat memory, each row with the bytes it is written in.

The form is RFC 4180's: cells in double quotes may hold delimiters, line ends and doubled quotes. It is read strictly, so that a
stray quotation mark is an error of its row and not a cell that swallows its neighbours. What a row says and where it ends is
Python's csv module to tell; the bytes are kept beside it because the output repeats them unchanged.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from daemon.errors import FileFormatError
from daemon.file_kinds import FileKind
from daemon.line_reader import BYTE_ORDER_MARK, CHUNK_BYTES, MAX_REQUEST_BYTES, QUIET
from daemon.row_template import visible_cells
from daemon.table_row import TableRow

DELIMITERS: Mapping[FileKind, str] = {FileKind.CSV: ",", FileKind.TSV: "\t"}
_BLANK = b" \r\n"  # of these alone a line is blank; tabs are cells of a .tsv


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row as it is written."""

    line: int  # on which it starts, from 1
    raw: bytes  # without the end of its last line; empty if it has too many bytes to be kept
    cells: tuple[str, ...]  # empty if it is broken
    problem: str | None  # what was found, what was expected
    is_broken: bool  # where its cells begin and end is unknown


class _TooLargeError(Exception):
    """A row has more bytes than a row may have."""


class _Lines:
    """Gives the csv module its lines, and keeps those of the present row."""

    def __init__(self, file: io.BufferedReader, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes  # of a row
        self.num_lines = 0
        self.num_bytes = 0  # of the row
        self.pieces: list[bytes] = []  # of the row
        self.fault: str | None = None  # bytes of the row that are no UTF-8
        self._last = b""  # the beginning of a line that is too large

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        left = self._max_bytes - self.num_bytes
        raw = self._file.readline(left + 1)
        if not raw:
            raise StopIteration
        self.num_lines += 1
        self.num_bytes += len(raw)
        if len(raw) > left:
            self.pieces = []
            self._last = raw
            raise _TooLargeError
        if self.num_lines == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        self.pieces.append(raw)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fault = (
                f"found 0x{raw[error.start]:02x} on line {self.num_lines} ({error.reason}), expected UTF-8 text"
            )
            return raw.decode(errors="surrogateescape")

    def begin_row(self) -> None:
        self.num_bytes = 0
        self.pieces = []
        self.fault = None

    def skip(self) -> Iterator[None]:
        """Read on, a piece at a time, to the end of the line that was too large."""
        raw, self._last = self._last, b""
        while not raw.endswith(b"\n") and (raw := self._file.readline(CHUNK_BYTES)):
            self.num_bytes += len(raw)
            yield None


class CsvTable:
    """A table being read, once, from its start."""

    def __init__(
        self, file: io.BufferedReader, name: str, kind: FileKind, max_row_bytes: int = MAX_REQUEST_BYTES
    ) -> None:
        """Read the header.

        Raises:
            FileFormatError: there is none.
        """
        csv.field_size_limit(MAX_REQUEST_BYTES)  # of the whole process, and the same at each call
        self._max_row_bytes = max_row_bytes
        self._lines = _Lines(file, max_row_bytes)
        self._reader = csv.reader(self._lines, delimiter=DELIMITERS[kind], strict=True)
        self._num_columns = 0
        self.num_blank = 0
        self.has_mark = file.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK)
        header = next(iter(self), None)
        if header is None:
            raise FileFormatError(f"{name}: found nothing, expected a header with the names of the columns")
        if header.problem is not None:
            raise FileFormatError(f"{name} line {header.line}: {header.problem}: in the header", header.line)
        self.header = header
        self.columns = header.cells
        self._num_columns = len(header.cells)
        self.line_end = b"\r\n" if self._lines.pieces[-1].endswith(b"\r\n") else b"\n"

    @property
    def num_lines(self) -> int:
        """Lines read so far, the header's and blank ones included."""
        return self._lines.num_lines

    def __iter__(self) -> Iterator[CsvRow]:
        """Read to the end of the file."""
        return (row for row in self._rows() if row is not None)

    def table_rows(self) -> Iterator[TableRow | None]:
        """Read to the end of the file, for templates, with None where no row has come for a while."""
        for row in self._rows():
            if row is None:
                yield None
            elif row.problem is not None:
                yield TableRow(row.line, {}, row.problem)
            else:
                yield TableRow(row.line, visible_cells(self.columns, row.cells))

    def _rows(self) -> Iterator[CsvRow | None]:
        lines = self._lines
        while True:
            lines.begin_row()
            start = lines.num_lines + 1
            try:
                cells = tuple(next(self._reader))
            except StopIteration:
                return
            except csv.Error as error:
                yield self._broken(start, _in_our_words(str(error)))
                continue
            except _TooLargeError:
                yield from lines.skip()
                found = f"found {lines.num_bytes} bytes up to line {lines.num_lines}, expected at most"
                yield self._broken(start, f"{found} {self._max_row_bytes} in a row: is a quotation mark never closed?")
                continue
            raw = b"".join(lines.pieces)
            if not raw.strip(_BLANK):
                self.num_blank += 1
                if not self.num_blank % QUIET:
                    yield None
                continue
            yield CsvRow(start, _without_end(raw), cells, lines.fault or self._count_problem(cells), is_broken=False)

    def _broken(self, start: int, problem: str) -> CsvRow:
        return CsvRow(start, _without_end(b"".join(self._lines.pieces)), (), problem, is_broken=True)

    def _count_problem(self, cells: tuple[str, ...]) -> str | None:
        if len(cells) == self._num_columns or not self._num_columns:
            return None
        cells_found = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
        return f"found {cells_found}, expected {self._num_columns} as in the header"


def _without_end(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _in_our_words(error: str) -> str:
    if "unexpected end of data" in error:
        return "found the end of the file within quotes, expected a closing quotation mark"
    if "expected after" in error:
        return "found text behind a closing quotation mark, expected the next cell (a quotation mark within quotes is doubled)"
    if "new-line character" in error:
        return "found a carriage return without a line feed, expected it within quotes alone"
    return f"found no row ({error})"
