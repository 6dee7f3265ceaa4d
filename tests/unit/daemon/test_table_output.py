"""The output of tables: all rows, their own cells as they were, and what became of each; the same bytes each time."""

import csv
import io
import logging
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from daemon.durable import DiskStorage
from daemon.errors import InputModifiedError
from daemon.file_kinds import kind_of
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Outcome
from daemon.made_with import MadeWith
from daemon.request_file import RequestReader
from daemon.request_record import BadLine, Url
from daemon.result_line import LineBuilder, LineError, LineFormat, Refusal
from daemon.survey import survey
from daemon.table_output import added_names, write_table
from pipelines.core.request import Choice, FinishReason, RequestOutput

ADDED = "output,finish_reason,error_code,error_message,prompt_tokens,completion_tokens,model"
TEMPLATE = "{{ text }}"


def run(path: Path, journals: list[Journal], answers: dict[int, str] | None = None) -> Journal:
    """Answer each row of a table as an engine would: with its text backwards, or as `answers` say by index."""
    found = survey(path, template=TEMPLATE)
    journal_path = path.with_name(f"{len(journals)}.journal")
    journal = Journal.create(journal_path, Header(found.fingerprint, 1, path.name, 1, 1, "m", {}))
    journals.append(journal)
    journal.append_started(1, found.num_requests)
    lines = LineBuilder(found.fingerprint, 1, MadeWith("m", "1"), LineFormat.TABLE)
    for item in RequestReader(path, found, template=TEMPLATE):
        if isinstance(item, BadLine):
            line = lines.refused(item.index, item.custom_id, Refusal(item.code, item.message, item.param))
            journal.append_refused(item.index, Outcome.REFUSED, line)
            continue
        text = (answers or {}).get(item.index, item.messages[0]["content"][::-1])
        if text == "CANCELLED":
            line = lines.failed(item.index, item.custom_id, LineError.CANCELLED, "it was cancelled")
            journal.append_refused(item.index, Outcome.CANCELLED, line)
            continue
        output = RequestOutput(1, (Choice(text, FinishReason.STOP, len(text)),), 3, 0)
        line = lines.result(item.index, item.custom_id, Url.CHAT, output)
        journal.append_result(item.index, line, LineNumbers.of_output(output))
    journal.sync()
    return journal


def written(path: Path, journal: Journal) -> bytes:
    target = path.with_name("out")
    kind = kind_of(path.name)
    assert kind is not None
    write_table(journal, path, kind, target, DiskStorage())
    return target.read_bytes()


def output_of(path: Path, content: bytes, journals: list[Journal], answers: dict[int, str] | None = None) -> str:
    path.write_bytes(content)
    return written(path, run(path, journals, answers)).decode()


def test_each_row_keeps_its_place_and_its_bytes(tmp_path: Path, journals: list[Journal]) -> None:
    """Quoted or not, as they were dropped; what became of a row stands behind it."""
    content = b'id,text\n1,"ab"\n2,\n"3",c d\n\n4,e\n'
    found = output_of(tmp_path / "in.csv", content, journals, {2: 'with, "quotes"\nand lines', 3: "CANCELLED"})
    assert found == (
        f"id,text,{ADDED}\n"
        '1,"ab",ba,stop,,,3,2,m\n'
        '2,,,,invalid_value,"in.csv line 3: template: found an empty prompt, expected words",,,\n'
        '"3",c d,"with, ""quotes""\nand lines",stop,,,3,24,m\n'
        "4,e,,,batch_cancelled,it was cancelled,,,\n"
    )


def test_rows_that_are_none_have_as_many_cells_as_the_header(tmp_path: Path, journals: list[Journal]) -> None:
    """So the output is a table whatever the input was: cells are filled up or cut, and the reason stands beside."""
    content = b'id,text\n1\n2,b,more\n3,"x"y\n4,d\n5,"never closed\n'
    rows = list(csv.reader(io.StringIO(output_of(tmp_path / "in.csv", content, journals), newline="")))
    assert [row[:2] for row in rows] == [["id", "text"], ["1", ""], ["2", "b"], ["", ""], ["4", "d"], ["", ""]]
    assert {len(row) for row in rows} == {9}
    assert [row[4] for row in rows[1:]] == ["invalid_row", "invalid_row", "invalid_row", "", "invalid_row"]
    assert "found 3 cells, expected 2" in rows[2][5]


def test_byte_order_mark_line_ends_tabs_and_bad_bytes_are_kept(tmp_path: Path, journals: list[Journal]) -> None:
    """What a spreadsheet has written it can read again."""
    path = tmp_path / "in.tsv"
    path.write_bytes(b"\xef\xbb\xbfid\ttext\r\n1\ta,b\r\n2\t\xff")
    found = written(path, run(path, journals))
    header, first, second = found.removesuffix(b"\r\n").split(b"\r\n")
    assert header == b"\xef\xbb\xbfid\ttext\t" + ADDED.replace(",", "\t").encode()
    assert first == b"1\ta,b\tb,a\tstop\t\t\t3\t3\tm"
    assert second.startswith(b"2\t\xff\t\t\tinvalid_row\tin.tsv line 3: found 0xff on line 3")


def test_a_table_without_rows_is_its_header(tmp_path: Path, journals: list[Journal]) -> None:
    assert output_of(tmp_path / "in.csv", b"text\r\n", journals) == f"text,{ADDED}\r\n"


def test_a_column_that_has_our_name_keeps_it(
    tmp_path: Path, journals: list[Journal], caplog: pytest.LogCaptureFixture
) -> None:
    """Ours gets a prefix, and the log says so: an output can be dropped again as an input."""
    caplog.set_level(logging.INFO)
    found = output_of(tmp_path / "in.csv", b"text,output\na,b\n", journals)
    assert found.startswith("text,output,gapless_output,finish_reason,")
    assert "in.csv: has a column output of its own; ours is gapless_output" in caplog.text
    assert added_names(["output", "gapless_output"])[0] == "gapless_gapless_output"


def test_an_answer_without_a_utf8_form_is_written_as_its_escape(tmp_path: Path, journals: list[Journal]) -> None:
    assert "\\ud800" in output_of(tmp_path / "in.csv", b"text\na\n", journals, {0: "\ud800"})


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_an_input_that_is_another_one_by_now_gets_no_results(
    tmp_path: Path, journals: list[Journal], name: str
) -> None:
    """Neither changed cells, nor more rows, nor fewer are joined with results that are not theirs."""
    path = tmp_path / name

    def put(rows: list[str]) -> None:
        if name == "in.csv":
            path.write_bytes("\n".join(["text", *rows, ""]).encode())
        else:
            parquet.write_table(pa.table({"text": rows}), path)

    put(["a", "b", "c"])
    journal = run(path, journals)
    for rows in (["a", "x", "c"], ["a", "b"], ["a", "b", "c", "d"]):
        put(rows)
        with pytest.raises(InputModifiedError, match=rf"{name} was changed after it was run"):
            written(path, journal)


CELL = st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from('",\r\n\x00 '), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(CELL, CELL).filter(lambda row: "".join(row).strip(" \r\n")), max_size=5), answer=CELL)
def test_whatever_stands_in_cells_and_answers_comes_out_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], answer: str
) -> None:
    """The output, read by Python's csv module, holds the rows that went in and the answers that were given."""
    text = io.StringIO()
    csv.writer(text).writerows([("text", "other"), *rows])
    journals: list[Journal] = []
    path = tmp_path_factory.mktemp("t") / "in.csv"
    found = output_of(path, text.getvalue().encode(), journals, dict.fromkeys(range(5), answer or "x"))
    journals[0].close()
    read = list(csv.reader(io.StringIO(found, newline=""), strict=True))
    assert [tuple(row[:2]) for row in read[1:]] == rows
    for row in read[1:]:
        assert row[2] == (answer or "x") if row[0].strip() else row[4] == "invalid_value"


def test_parquet_keeps_its_schema_and_gets_columns_that_may_be_null(tmp_path: Path, journals: list[Journal]) -> None:
    """Types, nulls and notes of the columns are kept; the new ones have one type each, whatever is in them."""
    path = tmp_path / "in.parquet"
    schema = pa.schema(
        [
            pa.field("text", pa.string(), metadata={"note": "kept"}),
            pa.field("vector", pa.list_(pa.float32())),
            pa.field("when", pa.timestamp("ns", "UTC")),
            pa.field("image", pa.binary()),
        ],
        metadata={"owner": "someone"},
    )
    rows = [
        {"text": "ab", "vector": [1.0, 2.0], "when": 1, "image": b"\xff"},
        {"text": None, "vector": None, "when": None, "image": None},
        {"text": "c", "vector": [], "when": 3, "image": b""},
    ]
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    written(path, run(path, journals, {2: "CANCELLED"}))
    found = parquet.read_table(path.with_name("out"))
    assert found.select(schema.names).equals(parquet.read_table(path))
    assert found.schema.metadata == {b"owner": b"someone"}
    assert found.schema.field("text").metadata[b"note"] == b"kept"
    assert [(field.name, str(field.type), field.nullable) for field in found.schema][4:] == [
        ("output", "string", True),
        ("finish_reason", "string", True),
        ("error_code", "string", True),
        ("error_message", "string", True),
        ("prompt_tokens", "int64", True),
        ("completion_tokens", "int64", True),
        ("model", "string", True),
    ]
    assert found["output"].to_pylist() == ["ba", None, None]
    assert found["error_code"].to_pylist() == [None, "invalid_value", "batch_cancelled"]
    assert found["error_message"].to_pylist()[1].startswith("in.parquet row 2: template: found an empty prompt")
    assert found["completion_tokens"].to_pylist() == [2, None, None]


def test_parquet_output_has_row_groups_of_a_bounded_size_and_the_same_bytes_each_time(
    tmp_path: Path, journals: list[Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.parquet_table._GROUP_ROWS", 1024)
    path = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"text": [f"row {n}" for n in range(5000)]}), path, row_group_size=700)
    journal = run(path, journals)
    first = written(path, journal)
    assert written(path, journal) == first
    metadata = parquet.read_metadata(path.with_name("out"))
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(sizes) == 5000
    assert max(sizes) <= 2 * 1024
    column = parquet.read_table(path.with_name("out"), columns=["output"])["output"]
    assert column[4999].as_py() == "9994 wor"
