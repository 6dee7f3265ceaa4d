"""A retry of a table is a table: the rows that failed, as they were written, under the same header and with the same types."""

import csv
import datetime as dt
import decimal
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.csv_table import CsvTable
from daemon.file_kinds import FileKind
from daemon.result_line import LineBuilder, LineError, LineFormat
from daemon.retry import UNANSWERED, FailedLines, Selection, Unanswered, content_fingerprint
from daemon.retry_file import new_suffix, write_chosen
from daemon.survey import survey

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def retried(path, kind, failing, codes=None):
    """What goes into the new file if the rows with these indexes have a line in the errors file."""
    fingerprint = survey(path, template="x").fingerprint
    assert content_fingerprint(path) == fingerprint
    builder = LineBuilder(fingerprint, 1, "m", LineFormat.TABLE)
    lines = [builder.failed(index, f"line-{index}", LineError.EXPIRED, "too late") for index in failing]
    choice = Selection(FailedLines.read(lines, fingerprint), codes)
    target = path.with_name("new")
    write_chosen(path, kind, target, choice.takes)
    return choice, target


@pytest.mark.parametrize(("kind", "cut"), [(FileKind.CSV, b","), (FileKind.TSV, b"\t")])
def test_rows_keep_their_bytes_and_the_table_its_form(tmp_path, kind, cut):
    """Byte order mark, line ends, quoting, cells of several lines, blank lines gone, the last row without its end."""
    path = tmp_path / f"t.{kind}"
    rows = [b"1,plain", b'"2","say ""x"""', b'3,"two\r\nlines, really"', b"4,  spaced ", b'5,"caf\xc3\xa9"']
    rows = [row.replace(b",", cut, 1) for row in rows]
    path.write_bytes(b"\xef\xbb\xbfid" + cut + b"text\r\n" + b"\r\n\r\n".join(rows))
    choice, target = retried(path, kind, [1, 2, 4])
    expected = [b"\xef\xbb\xbfid" + cut + b"text", rows[1], rows[2], rows[4], b""]
    assert target.read_bytes() == b"\r\n".join(expected)
    assert choice.counts == {"batch_expired": 3}


def problems_of(path):
    with path.open("rb") as file:
        return [row.problem for row in CsvTable(file, "t", FileKind.CSV)]


def without_lines(problems):
    return [re.sub(r"line \d+", "line", problem) if problem else None for problem in problems]


def test_a_broken_row_stays_broken_and_the_rows_behind_it_whole(tmp_path):
    """Text behind a closing quote, a carriage return alone, too few and too many cells, bytes that are no UTF-8, open quotes."""
    path = tmp_path / "t.csv"
    bad = [b'1,"a"b', b"2,c\rd", b"3", b"4,e,f", b"5,\xff", b'6,"ends\nnever']
    path.write_bytes(b"id,text\n" + b"".join(row + b"\nx,fine\n" for row in bad[:5]) + bad[5])
    _, target = retried(path, FileKind.CSV, [0, 2, 4, 6, 8, 10])
    assert target.read_bytes() == b"id,text\n" + b"\n".join(bad) + b"\n"
    assert without_lines(problems_of(target)) == without_lines(problem for problem in problems_of(path) if problem)


def test_a_row_that_is_too_large_to_be_kept_is_left_out_and_counted(tmp_path, monkeypatch):
    """It would fail again; the others do not wait for it."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"id\n" + b"a" * 100 + b"\nb\n")
    monkeypatch.setattr("daemon.csv_table.CsvTable.__init__.__defaults__", (50,))
    choice, target = retried(path, FileKind.CSV, [0, 1])
    assert (target.read_bytes(), choice.num_left_out) == (b"id\nb\n", 1)


@given(st.data())
def test_any_rows_of_any_table_come_back_as_they_were(tmp_path_factory, data):
    """Read by Python's own csv module; whatever the cells hold."""
    path = tmp_path_factory.mktemp("retry") / "t.csv"
    cell = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
    rows = data.draw(st.lists(st.tuples(cell, cell), min_size=1, max_size=6))
    failing = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    path.write_bytes(text.getvalue().encode())
    _, target = retried(path, FileKind.CSV, failing)
    found = list(csv.reader(io.StringIO(target.read_bytes().decode(), newline="")))
    assert found == [["id", "text"], *(list(rows[index]) for index in failing)]


def all_types():
    """A table with a column of about each type that Parquet and Arrow have, some with nulls, and words about itself."""
    moment = dt.datetime(2026, 11, 30, 12, 0, 0, 123456)  # noqa: DTZ001  a column without a zone
    fields = {
        "text": (pa.string(), ["a", None, "c", "d", "e", "f"]),
        "large": (pa.large_string(), list("abcdef")),
        "category": (pa.dictionary(pa.int32(), pa.string()), ["x", "y", "x", None, "z", "z"]),
        "nanoseconds": (pa.timestamp("ns", "UTC"), [1, 2, 3, None, 5, 6]),
        "moment": (pa.timestamp("us"), [moment] * 6),
        "day": (pa.date32(), [dt.date(2026, 11, 30)] * 6),
        "price": (pa.decimal128(20, 3), [decimal.Decimal("1.250")] * 6),
        "small": (pa.uint8(), [0, 255, 3, 4, 5, None]),
        "half": (pa.float32(), [0.1, float("inf"), 3, 4, 5, 6]),
        "bytes": (pa.binary(3), [b"abc"] * 6),
        "list": (pa.list_(pa.int16()), [[1], [], None, [1, 2], [3], [4]]),
        "record": (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, None] * 3),
        "pairs": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], [], None] * 2),
        "nothing": (pa.null(), [None] * 6),
    }
    schema = pa.schema(
        [pa.field(name, kind, metadata={"unit": name}) for name, (kind, _) in fields.items()]
        + [pa.field("sure", pa.bool_(), nullable=False)],
        metadata={"made_by": "a test"},
    )
    columns = [pa.array(values, kind) for kind, values in fields.values()] + [pa.array([True] * 6)]
    return pa.Table.from_arrays(columns, schema=schema)


def test_parquet_keeps_types_values_and_what_it_says_of_itself(tmp_path):
    """Rows from several row groups, which become one table with nothing added."""
    path = tmp_path / "t.parquet"
    table = all_types()
    parquet.write_table(table, path, row_group_size=2)
    choice, target = retried(path, FileKind.PARQUET, [1, 2, 5])
    found = parquet.read_table(target)
    original = parquet.read_table(path)
    assert found.schema.equals(original.schema, check_metadata=True)
    assert found.equals(original.take([1, 2, 5]))
    assert choice.counts == {"batch_expired": 3}


def test_of_a_table_that_was_changed_while_it_ran_no_place_is_trusted(tmp_path):
    """Its rows may have moved: an answer for row 2 says nothing of what is row 2 now. Unchanged, it does."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"id\na\nb\n")
    answered = [b'{"id":"line-2","text":"x"}\n']
    for is_as_run, expected in ((True, b"id\nb\n"), (False, b"id\na\nb\n")):
        choice = Selection(Unanswered.read(answered, is_as_run=is_as_run))
        write_chosen(path, FileKind.CSV, tmp_path / "new", choice.takes)
        assert (tmp_path / "new").read_bytes() == expected
        assert set(choice.counts) == {UNANSWERED}


def test_a_prompt_of_its_own_is_retried_whole(tmp_path):
    """To the byte, under the extension that it has."""
    path = tmp_path / "t.MD"
    path.write_bytes(b"Hello\r\n")
    _, target = retried(path, FileKind.TEXT, [0])
    assert target.read_bytes() == b"Hello\r\n"
    assert new_suffix(path, FileKind.TEXT) == ".MD"
    assert new_suffix(tmp_path / "t.jsonl.gz", FileKind.LINES) == ".jsonl"
