"""A new file of some of another's requests, in their order and in its format, each as it was written.

A request that got its id by its place says it itself in the new file, where its place is another. Rows of tables are the
exception: they have no id, and a column more would make another table of it.
"""

import io
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, assert_never

from daemon.array_reader import read_document
from daemon.content_file import reading_errors
from daemon.csv_table import CsvTable
from daemon.durable import printable, storage_errors
from daemon.file_kinds import FileKind, split_name
from daemon.json_text import json_line
from daemon.line_reader import BYTE_ORDER_MARK, LineReader, open_metered
from daemon.parquet_table import ParquetTable, rows_of, writing_parquet
from daemon.request_line import LineParser, is_plain
from daemon.request_record import Place, Unreadable
from daemon.retry import InputRequest, object_on

Takes = Callable[[InputRequest], bool]  # asked once of each request, in their order


def write_chosen(source: Path, kind: FileKind, target: Path, takes: Takes) -> None:
    """Write to `target` what is taken of the requests of `source`.

    Raises:
        StorageError: it cannot be written.
        FileError: the source cannot be read.
    """
    with storage_errors("write", target), target.open("wb") as file:
        match kind:
            case FileKind.LINES:
                file.writelines(line + b"\n" for line in _chosen_lines(source, kind, takes))
            case FileKind.JSON:
                file.write(b"[\n")
                for number, line in enumerate(_chosen_lines(source, kind, takes)):
                    file.write((b",\n" if number else b"") + line)
                file.write(b"\n]\n")
            case FileKind.TEXT:
                _write_text(source, file, takes)
            case FileKind.CSV | FileKind.TSV:
                _write_csv(source, kind, file, takes)
            case FileKind.PARQUET:
                _write_parquet(source, file, takes)
            case _:
                assert_never(kind)


def new_suffix(source: Path, kind: FileKind) -> str:
    """Return the extension of the new file; one of lines is not compressed."""
    return ".jsonl" if kind is FileKind.LINES else split_name(source.name)[1]


def _chosen_lines(source: Path, kind: FileKind, takes: Takes) -> Iterator[bytes]:
    """Yield lines without their ends, or elements of an array."""
    parser = _parser(source, kind)
    seen: set[str] = set()
    with open_metered(source).buffered() as file:
        for index, (line, raw) in enumerate(_pieces(file, parser)):
            place = Place(index, line)
            custom_id = parser.parse(raw, place).custom_id
            by_place = custom_id == parser.default_id(place)
            is_readable = not isinstance(raw, Unreadable)
            if takes(InputRequest(index, custom_id, custom_id in seen, by_place, is_readable)) and isinstance(
                raw, bytes
            ):
                yield with_id(raw, custom_id)
            seen.add(custom_id)


def _pieces(file: io.BufferedReader, parser: LineParser) -> Iterable[tuple[int, bytes | Unreadable]]:
    return LineReader(file) if parser.kind is FileKind.LINES else read_document(file, parser.name)


def with_id(raw: bytes, custom_id: str) -> bytes:
    """Return a request that says its id itself; one that does already, or cannot be read, stays as it is."""
    value = object_on(raw)
    key = "id" if is_plain(value) else "custom_id"
    if not value or value.get(key) is not None:
        return raw
    return json_line({key: custom_id} | {name: given for name, given in value.items() if name != key}).rstrip(b"\n")


def _write_text(source: Path, target: BinaryIO, takes: Takes) -> None:
    if takes(InputRequest(0, _parser(source, FileKind.TEXT).default_id(Place(0, 1)))):
        with open_metered(source).buffered() as file:
            shutil.copyfileobj(file, target)


def _write_csv(source: Path, kind: FileKind, target: BinaryIO, takes: Takes) -> None:
    parser = _parser(source, kind)
    with open_metered(source).buffered() as file:
        table = CsvTable(file, parser.name, kind)
        target.write(BYTE_ORDER_MARK if table.has_mark else b"")
        target.write(table.header.raw + table.line_end)
        for index, row in enumerate(table):
            custom_id = parser.default_id(Place(index, row.line))
            if takes(InputRequest(index, custom_id, is_readable=bool(row.raw))):
                target.write(row.raw + table.line_end)


def _write_parquet(source: Path, target: BinaryIO, takes: Takes) -> None:
    parser = _parser(source, FileKind.PARQUET)
    with reading_errors(parser.name, "opened"):
        file = source.open("rb")
    with file:
        table = ParquetTable(file, parser.name)
        with writing_parquet(target, table.schema) as writer:
            first = 0
            for batch in table.batches():
                places = [Place(index, index + 1) for index in range(first, first + batch.num_rows)]
                taken = [takes(InputRequest(place.index, parser.default_id(place))) for place in places]
                writer.write(rows_of(batch, taken))
                first += batch.num_rows


def _parser(source: Path, kind: FileKind) -> LineParser:
    return LineParser(printable(source.name), kind)
