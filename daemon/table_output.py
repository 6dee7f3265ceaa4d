"""The output of a table: the table itself, with what became of each row behind its own columns.

    id,text                   id,text,output,finish_reason,error_code,error_message,prompt_tokens,completion_tokens,model
    1,good film         -->   1,good film,positive,stop,,,31,2,Qwen/Qwen3-8B
    2,                        2,,,,template_error,"films.csv line 3: ...",,,

It is written when every row has its line in the journal, in one pass over input and journal; so it depends on those two alone,
and writing it again after a crash gives the same bytes. Rows of a .csv or .tsv keep the bytes they were dropped with. One that
is broken, so that nobody knows where its cells end, has empty cells: its text stays where it is, in the input.
"""

import csv
import io
import json
import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from daemon.csv_table import DELIMITERS, CsvRow, CsvTable
from daemon.durable import Storage, printable
from daemon.errors import FileFormatError, InputModifiedError
from daemon.file_kinds import FileKind
from daemon.journal import Journal
from daemon.journal_records import LineRecord, Outcome
from daemon.json_text import utf8
from daemon.line_reader import BYTE_ORDER_MARK, CHUNK_BYTES, MeteredFile
from daemon.parquet_table import ParquetTable, writing_parquet
from daemon.storage_file import StorageFile, open_storage_file

log = logging.getLogger(__name__)

_WRITE_BYTES = 1 << 20
_PREFIX = "gapless_"


@dataclass(frozen=True, slots=True)
class Added:
    """What is added to a row; None where it has no such thing."""

    output: str | None = None
    finish_reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None


ADDED_COLUMNS: Sequence[tuple[str, type]] = (
    ("output", str),
    ("finish_reason", str),
    ("error_code", str),
    ("error_message", str),
    ("prompt_tokens", int),
    ("completion_tokens", int),
    ("model", str),
)


def added_names(own: Sequence[str]) -> list[str]:
    """Return how the added columns are called beside these: one whose name is taken gets a prefix, as often as it takes."""
    names = []
    for name, _ in ADDED_COLUMNS:
        free = name
        while free in own:
            free = _PREFIX + free
        names.append(free)
    return names


def added_of(record: LineRecord) -> Added:
    """Return what a row's line in the journal says; see `LineFormat.TABLE`."""
    line = json.loads(record.line)
    if record.outcome is Outcome.COMPLETED:
        usage = line["usage"]
        return Added(
            output=_text(line["text"]),
            finish_reason=line["finish_reason"],
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            model=line.get("model"),  # a journal of an earlier version does not say
        )
    error = line["error"] or line["response"]["body"]["error"]
    return Added(error_code=error["code"], error_message=_text(error["message"]))


def write_table(journal: Journal, source: Path, kind: FileKind, target: Path, storage: Storage) -> None:
    """Write the table at `source` with its results to `target` and make it durable; what was there is replaced.

    Every row has its durable line in the journal. Runs in any thread.

    Raises:
        StorageError: it is not whole; doing it again is right.
        InputModifiedError: the input is not the one that was run.
    """
    results = _Results(journal)
    with (
        open_storage_file(storage, source) as input_file,
        open_storage_file(storage, target, is_new=True) as output_file,
    ):
        try:
            metered = MeteredFile(input_file, results.name, None, None)
            if kind is FileKind.PARQUET:
                while metered.read(CHUNK_BYTES):
                    pass
                input_file.seek(0)
                _write_parquet(results, input_file, output_file)
            else:
                _write_csv(
                    results, CsvTable(io.BufferedReader(metered, CHUNK_BYTES), results.name, kind), kind, output_file
                )
        except FileFormatError as error:
            raise results.modified() from error
        if metered.fingerprint != journal.state.header.fingerprint or not results.is_at_end:
            raise results.modified()
        output_file.sync()


class _Results:
    """What became of the rows, in their order."""

    def __init__(self, journal: Journal) -> None:
        self.name = printable(journal.state.header.source_name)
        self._journal = journal
        self._num_taken = 0

    @property
    def is_at_end(self) -> bool:
        """Whether every row was asked for."""
        return self._num_taken == len(self._journal.state.lines)

    def take(self) -> Added:
        """Return what became of the next row.

        Raises:
            InputModifiedError: there are fewer requests than rows.
        """
        if self.is_at_end:
            raise self.modified()
        self._num_taken += 1
        return added_of(self._journal.read_line(self._num_taken - 1))

    def names(self, own: Sequence[str]) -> list[str]:
        """Return the names of the added columns, and say so if they are not the usual ones."""
        names = added_names(own)
        for (usual, _), name in zip(ADDED_COLUMNS, names, strict=True):
            if name != usual:
                log.info("%s: has a column %s of its own; ours is %s", self.name, usual, name)
        return names

    def modified(self) -> InputModifiedError:
        """Return the error of an input that is another one by now."""
        return InputModifiedError(
            f"{self.name} was changed after it was run: its results wait for the file that it was"
        )


def _write_csv(results: _Results, table: CsvTable, kind: FileKind, output: "StorageFile") -> None:
    delimiter = DELIMITERS[kind]
    separator = delimiter.encode()
    rows = bytearray(BYTE_ORDER_MARK if table.has_mark else b"")
    rows += table.header.raw + separator + _encoded(results.names(table.columns), delimiter) + table.line_end
    for row in table:
        added = _encoded(astuple(results.take()), delimiter)
        rows += _own_cells(row, len(table.columns), delimiter) + separator + added + table.line_end
        if len(rows) >= _WRITE_BYTES:
            output.write_all(rows)
            rows.clear()
    output.write_all(rows)


def _own_cells(row: CsvRow, num_columns: int, delimiter: str) -> bytes:
    """Return a row's cells as they stand in the file; as many as there are columns where the row has another number."""
    if len(row.cells) == num_columns:
        return row.raw
    return _encoded((*row.cells, *[""] * num_columns)[:num_columns], delimiter)


def _encoded(cells: Sequence[Any], delimiter: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerow(cells)  # quotes what holds a part of that end
    return text.getvalue().removesuffix("\r\n").encode(errors="surrogateescape")


def _write_parquet(results: _Results, input_file: "StorageFile", output_file: "StorageFile") -> None:
    table = ParquetTable(input_file, results.name)
    kinds = [kind for _, kind in ADDED_COLUMNS]
    names = results.names(table.columns)
    with writing_parquet(output_file, table.schema, list(zip(names, kinds, strict=True))) as writer:
        for batch in table.batches():
            rows = [astuple(results.take()) for _ in range(batch.num_rows)]
            writer.write(batch, list(zip(*rows, strict=True)))


def _text(text: str) -> str:
    """Return text that has a UTF-8 form; an answer may hold half of a surrogate pair."""
    return utf8(text).decode()
