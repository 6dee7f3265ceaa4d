"""Reading .parquet: rows in order, only the columns a template looks at, and one message for what is none."""

import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from daemon.errors import FileError, FileFormatError
from daemon.parquet_table import ParquetTable
from daemon.request_file import RequestReader
from daemon.request_record import BadLine, ParsedRequest
from daemon.survey import survey


def put(path: Path, table: pa.Table, **options: object) -> Path:
    parquet.write_table(table, path, **options)
    return path


def read(path: Path, template: str) -> list[ParsedRequest | BadLine]:
    return list(RequestReader(path, survey(path, template=template), template=template))


def prompts(path: Path, template: str) -> list[str]:
    return [item.messages[0]["content"] for item in read(path, template) if isinstance(item, ParsedRequest)]


def test_rows_are_numbered_from_one(tmp_path: Path) -> None:
    """There is no header to count, and no line."""
    path = put(tmp_path / "in.parquet", pa.table({"text": ["a", None, "c"], "n": [1, 2, 3]}), row_group_size=2)
    first, second, third = read(path, "{{ text }}")
    assert (first.index, first.line, first.custom_id) == (0, 1, "line-1")
    assert isinstance(second, BadLine)
    assert second.message == "in.parquet row 2: template: found an empty prompt, expected words"
    assert (third.index, third.line) == (2, 3)
    found = survey(path, template="{{ text }}")
    assert (found.num_lines, found.num_blank, found.num_requests, found.num_bad) == (3, 0, 3, 1)


def test_values_of_all_kinds_reach_the_template(tmp_path: Path) -> None:
    when = datetime(2026, 11, 30, 12, tzinfo=UTC)
    columns = {
        "n": [1],
        "x": [0.5],
        "flag": [True],
        "tags": [["a", "b"]],
        "place": [{"city": "Rome"}],
        "when": pa.array([when], pa.timestamp("ns", "UTC")),
    }
    path = put(tmp_path / "in.parquet", pa.table(columns))
    template = "{{ n + 1 }} {{ x }} {{ flag }} {{ tags|join('+') }} {{ place.city }} {{ when.isoformat() }}"
    assert prompts(path, template) == ["2 0.5 True a+b Rome 2026-11-30T12:00:00+00:00"]


def test_times_of_nanoseconds_are_cut_to_what_python_has(tmp_path: Path) -> None:
    path = put(tmp_path / "in.parquet", pa.table({"when": pa.array([1_000_001], pa.timestamp("ns"))}))
    assert prompts(path, "{{ when }}") == ["1970-01-01 00:00:00.001000"]


def test_only_the_columns_that_the_template_looks_at_are_read(tmp_path: Path) -> None:
    """A column of large images beside the text costs nothing."""
    size = 4 << 20
    path = put(tmp_path / "in.parquet", pa.table({"text": ["a"] * 4, "image": [bytes(size)] * 4}), compression="none")
    with path.open("rb") as file:
        before = pa.total_allocated_bytes()
        rows = list(ParquetTable(file, "in.parquet").table_rows({"text"}))
        assert pa.total_allocated_bytes() - before < size
    assert [dict(row.cells) for row in rows] == [{"text": "a"}] * 4


def test_wide_rows_are_taken_few_at_a_time(tmp_path: Path) -> None:
    """Memory follows the size of rows, not their number in a row group: 60 rows of 2 MB do not come at once."""
    rows = ["x" * (2 << 20)] * 60
    path = put(
        tmp_path / "in.parquet", pa.table({"text": rows}), compression="none", use_dictionary=False, write_batch_size=4
    )
    del rows
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    with path.open("rb") as file:
        table = ParquetTable(file, "in.parquet")
        peak = max(pa.total_allocated_bytes() - before for _ in table.table_rows())
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20
    assert python_peak < 60 << 20


def test_a_template_without_a_column_makes_a_request_of_each_row(tmp_path: Path) -> None:
    path = put(tmp_path / "in.parquet", pa.table({"text": ["a", "b"]}))
    assert prompts(path, "Tell a joke.") == ["Tell a joke."] * 2


def test_columns_of_one_name_are_not_guessed(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["x", "x", "y"])
    path = put(tmp_path / "in.parquet", table)
    assert prompts(path, "{{ y }}") == ["c"]
    (bad,) = read(path, "{{ x }}")
    assert isinstance(bad, BadLine)
    assert 'found "x", which is no column: more than one has this name' in bad.message


@pytest.mark.parametrize("keep", [0, 3, 100, -5])
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = put(tmp_path / "in.parquet", pa.table({"text": ["a"]}))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        FileFormatError, match=r"^in\.parquet: found what cannot be read \(.*\), expected a Parquet file"
    ):
        survey(path, template="{{ text }}")


def test_damaged_content_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "in.parquet", pa.table({"text": [f"row {n}" for n in range(5000)]}))
    content = bytearray(path.read_bytes())
    content[200:1200] = bytes(1000)
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"^in\.parquet: found what cannot be read"):
        survey(path, template="{{ text }}")


def test_without_pyarrow_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "in.parquet", pa.table({"text": ["a"]}))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        FileFormatError, match=r"found no pyarrow, which reads \.parquet, .*pip install 'gapless\[parquet\]'"
    ):
        survey(path, template="{{ text }}")
