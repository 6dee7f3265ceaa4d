"""Reading .csv and .tsv: each row once, under the line on which it starts, whatever stands in it."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.csv_table import CsvRow, CsvTable
from daemon.errors import FileFormatError
from daemon.file_kinds import FileKind
from daemon.request_file import RequestReader
from daemon.request_record import BadLine, ParsedRequest
from daemon.survey import survey


def table(content: bytes, kind: FileKind = FileKind.CSV, **options: int) -> CsvTable:
    return CsvTable(io.BufferedReader(io.BytesIO(content)), "in.csv", kind, **options)


def requests(path: Path, content: bytes, template: str = "{{ text }}") -> list[ParsedRequest | BadLine]:
    path.write_bytes(content)
    return list(RequestReader(path, survey(path, template=template), template=template))


def test_rows_know_their_lines_and_keep_their_bytes() -> None:
    """As an editor counts them: the header is line 1, a quoted line end begins a line, blank lines are lines."""
    found = table(b'id,text\n1,"two\nlines"\n\n"2",plain\n   \n3,"say ""x"""')
    assert found.columns == ("id", "text")
    assert list(found) == [
        CsvRow(2, b'1,"two\nlines"', ("1", "two\nlines"), None, is_broken=False),
        CsvRow(5, b'"2",plain', ("2", "plain"), None, is_broken=False),
        CsvRow(7, b'3,"say ""x"""', ("3", 'say "x"'), None, is_broken=False),
    ]
    assert (found.num_lines, found.num_blank) == (7, 2)


def test_byte_order_mark_and_crlf_are_no_content() -> None:
    found = table(b"\xef\xbb\xbfid,text\r\n1,a\r\n2,b\r\n")
    assert (found.columns, found.has_mark, found.line_end) == (("id", "text"), True, b"\r\n")
    assert [row.raw for row in found] == [b"1,a", b"2,b"]


def test_tabs_are_cells_of_a_tsv_and_commas_are_not() -> None:
    found = table(b"id\ttext\n1\ta,b\n\t\n", FileKind.TSV)
    assert [row.cells for row in found] == [("1", "a,b"), ("", "")]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"1", "found 1 cell, expected 2 as in the header"),
        (b"1,a,b", "found 3 cells, expected 2 as in the header"),
        (b'1,"a"b', "found text behind a closing quotation mark, expected the next cell"),
        (b"1,a\xff", "found 0xff on line 2 (invalid start byte), expected UTF-8 text"),
        (b"1,a\rb", "found a carriage return without a line feed, expected it within quotes alone"),
        (b'1,"' + b"x" * 200, "found 204 bytes up to line 2, expected at most 100 in a row: is a quotation mark never"),
        (b"1," + b"x" * 200, "found 203 bytes up to line 2, expected at most 100 in a row"),
    ],
)
def test_a_bad_row_is_one_error_and_the_next_one_is_read(row: bytes, problem: str) -> None:
    bad, good = table(b"id,text\n" + row + b"\n2,fine\n", max_row_bytes=100)
    assert bad.line == 2
    assert bad.problem is not None
    assert bad.problem.startswith(problem)
    assert (good.line, good.cells, good.problem) == (3, ("2", "fine"), None)


def test_a_quotation_mark_that_is_never_closed_is_said_to_be_just_that() -> None:
    (bad,) = table(b'id,text\n1,"never closed\n2,x\n')
    assert (bad.line, bad.is_broken) == (2, True)
    assert bad.problem == "found the end of the file within quotes, expected a closing quotation mark"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "in.csv: found nothing, expected a header"),
        (b"\n \r\n", "in.csv: found nothing, expected a header"),
        (b'\n"a"b,c\n1,2\n', "in.csv line 2: found text behind a closing quotation mark"),
        (b"a,\xff\n1,2\n", "in.csv line 1: found 0xff on line 1"),
        (b"a,b\r1,2\r", "in.csv line 1: found a carriage return"),
    ],
)
def test_a_file_without_a_header_is_no_table(content: bytes, says: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        table(content)
    assert str(caught.value).startswith(says)


def test_rows_become_requests(tmp_path: Path) -> None:
    """One a row, with the line in id and messages; a bad one beside good ones."""
    one, bad, wide, two = requests(tmp_path / "in.csv", b'id,text\n1,"a, b"\n2,\n3,x,y\n4,z\n', "Label: {{ text }}"[7:])
    assert isinstance(one, ParsedRequest)
    assert (one.index, one.line, one.custom_id) == (0, 2, "line-2")
    assert one.messages == ({"role": "user", "content": "a, b"},)
    assert isinstance(bad, BadLine)
    assert (bad.line, bad.code, bad.param) == (3, "invalid_value", "template")
    assert bad.message == "in.csv line 3: template: found an empty prompt, expected words"
    assert isinstance(wide, BadLine)
    assert (wide.code, wide.custom_id) == ("invalid_row", "line-4")
    assert wide.message == "in.csv line 4: found 3 cells, expected 2 as in the header"
    assert isinstance(two, ParsedRequest)
    assert (two.index, two.line) == (3, 5)


def test_a_missing_column_is_an_error_of_each_row(tmp_path: Path) -> None:
    (bad,) = requests(tmp_path / "in.tsv", b"id\ttext\n1\tx\n", "{{ txet }}")
    assert isinstance(bad, BadLine)
    expected = 'in.tsv line 2: template: line 1 of the template: found "txet", which is no column'
    assert bad.message == expected + ', expected one of "id", "text"'


def test_a_header_alone_holds_no_requests(tmp_path: Path) -> None:
    assert requests(tmp_path / "in.csv", b"id,text\n") == []


def test_a_table_without_a_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"id,text\n1,x\n")
    with pytest.raises(
        FileFormatError, match=r"^in\.csv: found a table in a pipeline without a template, expected one"
    ):
        survey(tmp_path / "in.csv")


def test_skipped_rows_keep_the_indexes_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    everything = requests(path, b'id,text\n1,a\n"2"x,b\n3,c\n4,d\n')
    found = survey(path, template="{{ text }}")
    assert list(RequestReader(path, found, lambda index: index % 2 == 0, template="{{ text }}")) == everything[1::2]


CELLS = st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from('",\t\r\n\u2028\x00 '), max_size=6)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3).filter(lambda row: "".join(row).strip(" \r\n")), max_size=6))
def test_what_the_csv_module_writes_is_read_back(rows: list[list[str]]) -> None:
    """Whatever stands in the cells: one row each, the same cells, and together the same bytes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([["a", "b", "c"], *rows])
    content = text.getvalue().encode()
    found = table(content)
    read = list(found)
    assert [list(row.cells) for row in read] == rows
    assert all(row.problem is None for row in read)
    assert b"\r\n".join([found.header.raw, *(row.raw for row in read), b""]) == content


@given(
    st.lists(st.binary(max_size=4) | st.sampled_from([b'"', b",", b"\n", b"\r\n", b"\r", b"\xff", b"ab"]), max_size=30)
)
def test_any_bytes_behind_a_header_are_rows(pieces: list[bytes]) -> None:
    """Never an exception, and lines only ever go up."""
    found = table(b"a,b\n" + b"".join(pieces))
    lines = [row.line for row in found]
    assert lines == sorted(set(lines))
    assert found.num_lines >= len(lines) + found.num_blank + 1
