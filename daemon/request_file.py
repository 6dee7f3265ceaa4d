"""Reading a claimed request file, of whichever kind, as a stream of requests in flat memory."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, assert_never

from daemon.array_reader import read_document
from daemon.content_file import reading_errors
from daemon.csv_table import CsvTable
from daemon.durable import printable
from daemon.errors import FileFormatError, InputModifiedError, InvariantError
from daemon.file_kinds import KINDS, FileKind, kind_of
from daemon.line_reader import CHUNK_BYTES, MAX_REQUEST_BYTES, QUIET, LineReader, open_metered
from daemon.parquet_table import ParquetTable
from daemon.request_line import LineParser
from daemon.request_record import BadLine, ParsedRequest, Place, Survey, Unreadable
from daemon.row_template import RowTemplate, TemplateMistakeError
from daemon.table_row import RowParser, TableRow
from pipelines.counted import counted

FileItem: TypeAlias = ParsedRequest | BadLine


@dataclass(frozen=True, slots=True)
class RequestSource:
    """A request file and how to look at it while it is read."""

    path: Path
    parser: LineParser
    on_progress: Callable[[int], None] | None = None  # bytes of content read so far
    is_cancelled: Callable[[], bool] | None = None
    template: RowTemplate | None = None  # for tables

    @classmethod
    def of(
        cls,
        path: Path,
        name: str | None = None,
        on_progress: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        template: str | None = None,
    ) -> "RequestSource":
        """Return the source of the file at `path`, called `name` in messages if it was renamed by its claim.

        `template` is what makes requests of the rows of a table; other files do not need it.

        Raises:
            FileFormatError: files with its extension cannot be read, or not without a template.
        """
        shown_name = printable(name or path.name)
        kind = kind_of(path.name)
        if kind is None:
            raise FileFormatError(f"{shown_name}: found extension {path.suffix!r}, expected one of {', '.join(KINDS)}")
        parser = LineParser(shown_name, kind)
        if not kind.is_table:
            return cls(path, parser, on_progress, is_cancelled)
        if template is None:
            found = "a table in a pipeline without a template"
            expected = 'one that makes a request of a row, such as template: "Summarise: {{ text }}"'
            raise FileFormatError(f"{shown_name}: found {found}, expected {expected}")
        try:
            return cls(path, parser, on_progress, is_cancelled, RowTemplate(template))
        except TemplateMistakeError as error:
            raise FileFormatError(f"{shown_name}: its pipeline's template is none: {error}") from error


class RequestPass:
    """One pass over a file; what it says of the whole is true once it was iterated to the end."""

    def __init__(self, source: RequestSource, skip: Callable[[int], bool] | None = None) -> None:
        self._source = source
        self._skip = skip
        self.fingerprint = ""  # as in Survey, like the rest
        self.num_bytes = 0
        self.num_lines = 0
        self.num_blank = 0
        self.num_requests = 0  # skipped ones included

    def __iter__(self) -> Iterator[FileItem]:
        """Read the file from its start, leaving out the requests whose index is to be skipped.

        Raises:
            FileError: it cannot be read.
            ReadCancelledError: that was asked for.
        """
        return (item for item in self.in_pieces() if item is not None)

    def in_pieces(self) -> Iterator[FileItem | None]:
        """Read as above, with None where no item has come for a while: it may take minutes to the next one.

        Raises:
            FileError, ReadCancelledError: as above.
        """
        source, parser = self._source, self._source.parser
        metered = open_metered(source.path, source.on_progress, source.is_cancelled, parser.name)
        with metered.buffered() as file:
            match parser.kind:
                case FileKind.LINES:
                    lines = LineReader(file)
                    yield from self._parsed(lines.in_pieces())
                    self.num_lines, self.num_blank = lines.num_lines, lines.num_blank
                case FileKind.JSON:
                    yield from self._parsed(read_document(file, parser.name))
                    self.num_lines = self.num_requests
                case FileKind.TEXT:
                    yield from self._whole(_read_prompt(file, parser.name))
                    self.num_lines = self.num_requests
                case FileKind.CSV | FileKind.TSV:
                    csv_table = CsvTable(file, parser.name, parser.kind)
                    yield from self._rows(csv_table.table_rows(), csv_table.columns)
                    self.num_lines, self.num_blank = csv_table.num_lines, csv_table.num_blank
                case FileKind.PARQUET:
                    while file.read(
                        CHUNK_BYTES
                    ):  # its footer is read first, its fingerprint is that of the bytes in order
                        yield None
                    yield from self._parquet_rows()
                    self.num_lines = self.num_requests
                case _:
                    assert_never(parser.kind)
        self.fingerprint, self.num_bytes = metered.fingerprint, metered.num_bytes

    def _parsed(self, pieces: Iterable[tuple[int, bytes | Unreadable] | None]) -> Iterator[FileItem | None]:
        parse = self._source.parser.parse
        for piece in pieces:
            if piece is None:
                yield None
            elif (index := self._next_index()) is not None:
                line, raw = piece
                yield parse(raw, Place(index, line))
            elif not self.num_requests % QUIET:
                yield None

    def _rows(self, rows: Iterable[TableRow | None], columns: Sequence[str]) -> Iterator[FileItem | None]:
        source = self._source
        if source.template is None:
            raise InvariantError(f"{source.parser.name} is read as a table without a template")
        parse = RowParser(source.parser, source.template, columns).parse
        for row in rows:
            if row is None:
                yield None
            elif (index := self._next_index()) is not None:
                yield parse(row, index)
            elif not self.num_requests % QUIET:
                yield None

    def _next_index(self) -> int | None:
        """Count a request; return its index, None if it is to be skipped."""
        index = self.num_requests
        self.num_requests += 1
        return index if self._skip is None or not self._skip(index) else None

    def _parquet_rows(self) -> Iterator[FileItem | None]:
        source = self._source
        wanted = source.template.columns if source.template else None
        with reading_errors(source.parser.name, "opened"), source.path.open("rb") as file:
            table = ParquetTable(file, source.parser.name)
            yield from self._rows(table.table_rows(wanted), table.columns)

    def _whole(self, prompt: str) -> Iterator[FileItem]:
        self.num_requests = 1
        if self._skip is None or not self._skip(0):
            yield self._source.parser.prompt(prompt, Place(0, 1))


class RequestReader:
    """The requests of a surveyed file, in order, for feeding: the second of two with one custom_id is a bad line."""

    def __init__(
        self,
        path: Path,
        survey: Survey,
        skip: Callable[[int], bool] | None = None,
        *,
        name: str | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        template: str | None = None,
    ) -> None:
        self._source = RequestSource.of(path, name, None, is_cancelled, template)
        self._survey = survey
        self._skip = skip  # told a request's index; true = it has its result already

    def __iter__(self) -> Iterator[FileItem]:
        """Read the file from its start.

        Raises:
            FileError: it cannot be read.
            InputModifiedError: at the end, if what was read is not what was surveyed.
            ReadCancelledError: that was asked for.
        """
        return (item for item in self.in_pieces() if item is not None)

    def in_pieces(self) -> Iterator[FileItem | None]:
        """Read as above, with None where no item has come for a while, so that the reader can see to other things.

        Raises:
            FileError, InputModifiedError, ReadCancelledError: as above.
        """
        whole = RequestPass(self._source, self._skip)
        duplicates = self._survey.duplicates
        try:
            for item in whole.in_pieces():
                if item is not None and item.index in duplicates and isinstance(item, ParsedRequest):
                    yield self._source.parser.duplicate(item, duplicates[item.index])
                else:
                    yield item
        except FileFormatError as error:
            raise self._modified() from error
        if whole.fingerprint != self._survey.fingerprint:
            raise self._modified()

    def _modified(self) -> InputModifiedError:
        return InputModifiedError(f"{self._source.parser.name} was changed while it was being run")


def _read_prompt(file: io.BufferedReader, name: str) -> str:
    """Return the text of a whole file, without a byte order mark and the end of its last line.

    Raises:
        FileFormatError: it holds no prompt.
    """
    raw = file.read(MAX_REQUEST_BYTES + 1)
    if len(raw) > MAX_REQUEST_BYTES:
        raise FileFormatError(
            f"{name}: found more than {MAX_REQUEST_BYTES} bytes, expected at most so many in a prompt"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"0x{raw[error.start]:02x} at byte {error.start + 1}"
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileFormatError(f"{name}: found {found} ({error.reason}), expected UTF-8 text", line) from error
    if not text.strip():
        raise FileFormatError(f"{name}: found {counted(len(raw), 'byte')} without a word in them, expected a prompt")
    return text.removesuffix("\n").removesuffix("\r")
