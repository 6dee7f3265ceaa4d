"""Reading and extending .parquet files in flat memory, by batches of rows; pyarrow is loaded only when such a file comes."""

import importlib
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from daemon.errors import FileError, FileFormatError
from daemon.request_problem import escaped
from daemon.row_template import visible_cells
from daemon.table_row import TableRow

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1024
_BATCH_BYTES = 8 << 20  # about; of the columns read, in memory
_READ_BYTES = 1 << 20  # of a column at a time
_GROUP_ROWS = 1 << 16  # of a row group that is written
_GROUP_BYTES = 64 << 20  # likewise, about


class ParquetTable:
    """A table open for reading."""

    def __init__(self, file: io.RawIOBase | io.BufferedReader, name: str) -> None:
        """Read what the file says of itself; `file` stays the caller's, is seekable, and is called `name` in messages.

        Raises:
            FileFormatError: pyarrow is not installed, or it is no Parquet file.
        """
        self._name = name
        _pyarrow(name)
        with self._reading_errors():
            from pyarrow import parquet  # noqa: PLC0415

            self._file = parquet.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)
            self.schema: pa.Schema = self._file.schema_arrow
            self.columns: tuple[str, ...] = tuple(self.schema.names)
            self.num_rows: int = self._file.metadata.num_rows

    def table_rows(self, wanted: Collection[str] | None = None) -> Iterator[TableRow]:
        """Give the rows in order, with the cells of `wanted` columns, or of all.

        Raises:
            FileError: it cannot be read on.
        """
        names = [name for name in self.columns if wanted is None or name in wanted]
        number = 0
        if not names:  # a template without a column still makes a request of each row
            yield from (TableRow(n + 1, {}) for n in range(self.num_rows))
            return
        for batch in self.batches(names):
            with self._reading_errors():
                columns = [_plain(column).to_pylist() for column in batch.columns]
            for cells in zip(*columns, strict=True):
                number += 1
                yield TableRow(number, visible_cells(batch.schema.names, cells))

    def batches(self, names: Sequence[str] | None = None) -> Iterator["pa.RecordBatch"]:
        """Give the rows as pyarrow has them.

        Raises:
            FileError: it cannot be read on.
        """
        size = self._batch_rows()
        with self._reading_errors():
            unique = None if names is None else list(dict.fromkeys(names))
            yield from self._file.iter_batches(batch_size=size, columns=unique, use_threads=False)

    def _batch_rows(self) -> int:
        """Return how many rows to take at once: as few as the widest row group needs to stay within `_BATCH_BYTES`."""
        metadata = self._file.metadata
        groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
        widest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1)
        return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(widest, 1))))

    @contextmanager
    def _reading_errors(self) -> Iterator[None]:
        import pyarrow as pa  # noqa: PLC0415

        try:
            yield
        except OSError as error:  # pyarrow's own errors of content are OSErrors too
            if error.errno is not None:
                raise FileError(f"{self._name} cannot be read: {error.strerror}") from error
            raise self._unreadable(error) from error
        except (pa.ArrowException, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> FileFormatError:
        text = escaped(str(error).partition("\n")[0][:200])
        return FileFormatError(f"{self._name}: found what cannot be read ({text}), expected a Parquet file")


class ParquetWriter:
    """Writes a table with the columns of another and some behind them."""

    def __init__(self, sink: "io.RawIOBase | BinaryIO", own: "pa.Schema", added: Sequence[tuple[str, type]]) -> None:
        """Begin; each of `added` is a name and str or int, and may be null in any row."""
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        kinds = {str: pa.string(), int: pa.int64()}
        self._added = [pa.field(name, kinds[kind], nullable=True) for name, kind in added]
        self._schema = pa.schema([*own, *self._added], metadata=own.metadata)
        self._writer: parquet.ParquetWriter = parquet.ParquetWriter(sink, self._schema)
        self._waiting: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = 0  # of those that wait

    def write(self, batch: "pa.RecordBatch", added: Sequence[Sequence[Any]] = ()) -> None:
        """Take rows, with one list of values for each added column."""
        import pyarrow as pa  # noqa: PLC0415

        columns = [pa.array(values, field.type) for values, field in zip(added, self._added, strict=True)]
        whole = pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self._schema)
        self._waiting.append(whole)
        self._num_rows += whole.num_rows
        self._num_bytes += whole.nbytes
        if self._num_rows >= _GROUP_ROWS or self._num_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the rest and the footer; without this call the file is none."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Write nothing more, after an error: pyarrow would write the footer when the object goes, into a closed file."""
        self._writer.is_open = False

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._num_rows)
        self._waiting = []
        self._num_rows = self._num_bytes = 0


@contextmanager
def writing_parquet(
    sink: "io.RawIOBase | BinaryIO", own: "pa.Schema", added: Sequence[tuple[str, type]] = ()
) -> Iterator[ParquetWriter]:
    """Give a writer that is closed behind the block, and abandoned where the block fails."""
    writer = ParquetWriter(sink, own, added)
    try:
        yield writer
        writer.close()
    except BaseException:
        writer.abandon()
        raise


def rows_of(batch: "pa.RecordBatch", is_taken: Sequence[bool]) -> "pa.RecordBatch":
    """Return the rows that are taken, with one word for each row of `batch`."""
    import pyarrow as pa  # noqa: PLC0415

    return batch.filter(pa.array(is_taken, pa.bool_()))


def _pyarrow(name: str) -> None:
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        expected = "it: pip install 'gapless[parquet]', then start the daemon again"
        raise FileFormatError(f"{name}: found no pyarrow, which reads .parquet, expected {expected}") from error


def _plain(column: "pa.Array") -> "pa.Array":
    """Return a column whose values Python has: its times know no nanoseconds."""
    import pyarrow as pa  # noqa: PLC0415

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    return column
