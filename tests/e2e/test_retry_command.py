"""`gapless retry`: a second run of what failed, beside the first."""

import io
import json

import pytest
from commands import gapless
from daemon_process import request_lines

MIXED = request_lines(3) + request_lines(1, max_tokens=100_000).replace("r0", "long") + "{broken\n"


@pytest.fixture
def daemon(make_daemon):
    made = make_daemon("fake:").start()
    made.drop("f.jsonl", MIXED)
    made.wait_done("f")
    return made


def test_only_what_failed_runs_again_under_its_own_name(daemon):
    """The errors of the first run are the requests of the second; the first's results are untouched."""
    before = {path.name: path.read_bytes() for path in daemon.outbox.iterdir()}
    code, said = gapless("retry", "f", "--wait", cwd=daemon.folder)
    assert code == 3
    assert "2 requests of f again: 1 context_length_exceeded, 1 invalid_json_line\n" in said
    assert f"  {daemon.outbox / 'f~retry.errors.jsonl'}" in said
    assert list(daemon.results("f~retry")) == ["long", "line-2"]
    assert {name: (daemon.outbox / name).read_bytes() for name in before} == before


def test_a_second_retry_says_where_the_first_is_and_again_makes_another(daemon):
    """It can be called twice by mistake without running anything twice."""
    assert gapless("retry", "f", "--code", "context_length_exceeded", cwd=daemon.folder)[0] == 0
    code, said = gapless("retry", "f", cwd=daemon.folder)
    assert (code, len(said.splitlines())) == (2, 1)
    assert "f was retried already: f~retry is in " in said
    daemon.wait_done("f~retry")
    assert list(daemon.results("f~retry")) == ["long"]
    code, said = gapless("retry", "f", "--again", "--wait", cwd=daemon.folder)
    assert code == 3
    assert list(daemon.results("f~retry2")) == ["long", "line-2"]


def test_what_cannot_be_retried_is_explained(daemon):
    """One line each, and nothing is put into the inbox."""
    daemon.drop("good.jsonl", request_lines(2))
    daemon.wait_done("good")
    daemon.drop("word.json", '"hello"')
    daemon.wait_done("word")
    for arguments, code, words in (
        (["good"], 0, "every request has its answer"),
        (["none"], 2, "found no none.batch.json"),
        (["f", "--code", "engine_error"], 2, "found no request with the code engine_error"),
        (["word"], 2, "word.json"),
    ):
        assert gapless("retry", *arguments, cwd=daemon.folder)[0] == code
        said = gapless("retry", *arguments, cwd=daemon.folder)[1]
        assert len(said.splitlines()) == 1
        assert words in said
    (daemon.outbox / "f.errors.jsonl").unlink()
    code, said = gapless("retry", "f", cwd=daemon.folder)
    assert (code, "f.errors.jsonl" in said) == (2, True)
    assert not [path for path in daemon.inbox.iterdir() if not path.name.startswith(".gapless")]


def test_a_rejected_file_is_retried_whole(make_daemon):
    """Nothing of it was run; its input lies in failed/."""
    daemon = make_daemon("fake:", pipeline=", on_bad_line: reject").start()
    daemon.drop("f.jsonl", request_lines(2) + "{broken\n")
    daemon.wait_done("f")
    code, said = gapless("retry", "f", cwd=daemon.folder)
    assert code == 0
    assert "3 requests of f again: 3 unanswered" in said
    daemon.wait_done("f~retry")
    assert json.loads((daemon.root / "failed" / "f~retry.reason.json").read_text())["code"] == "invalid_request_file"


TABLE = "id,text\n1,fine\n2,\n3,also fine\n4,\n"
ADDED = ",output,finish_reason,error_code,error_message,prompt_tokens,completion_tokens,model"


def test_of_a_table_the_rows_that_failed_are_one_again(make_daemon):
    """Under the template of its own options, which come along; each row's answer beside it."""
    daemon = make_daemon("fake:", pipeline=", template: '{{ text }}'").start()
    for stem, options in (("t", None), ("own", "template: '{{ text }}{{ id if id == \"2\" }}'\n")):
        if options:
            daemon.drop(f"{stem}.options.yaml", options)
        daemon.drop(f"{stem}.csv", TABLE)
        daemon.wait_done(stem)
    code, said = gapless("retry", "t.output.csv", "--wait", cwd=daemon.folder)
    assert code == 3
    assert "2 requests of t again: 2 invalid_value\n" in said
    lines = (daemon.outbox / "t~retry.output.csv").read_text().splitlines()
    assert lines[0] == f"id,text{ADDED}"
    assert [line.split(",")[:5] for line in lines[1:]] == [[row, "", "", "", "invalid_value"] for row in ("2", "4")]
    assert (daemon.root / "done" / "t~retry.csv").read_text() == "id,text\n2,\n4,\n"
    assert gapless("retry", "own", "--wait", cwd=daemon.folder)[0] == 3
    assert (daemon.root / "done" / "own~retry.csv").read_text() == "id,text\n4,\n"
    assert (daemon.root / "done" / "own~retry.options.yaml").exists()


def test_a_parquet_table_too(make_daemon):
    """With its own types."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    daemon = make_daemon("fake:", pipeline=", template: '{{ text }}'").start()
    table, content = pa.table({"id": pa.array([1, 2, 3], pa.int8()), "text": ["", "b", None]}), io.BytesIO()
    parquet.write_table(table, content)
    daemon.drop("t.parquet", content.getvalue())
    daemon.wait_done("t")
    code, said = gapless("retry", "t", "--wait", cwd=daemon.folder)
    assert (code, "2 requests of t again: 2 invalid_value\n" in said) == (3, True)
    found = parquet.read_table(daemon.outbox / "t~retry.output.parquet")
    assert found.select(["id", "text"]).equals(table.take([0, 2]))
    assert found["error_code"].to_pylist() == ["invalid_value"] * 2


def test_an_input_that_was_changed_since_cannot_be_told_apart(daemon):
    """Its errors are known by content and place: one clear line, and nothing is run by mistake."""
    source = daemon.root / "done" / "f.jsonl"
    source.write_text("\n" + request_lines(3))
    code, said = gapless("retry", "f", cwd=daemon.folder)
    assert (code, len(said.splitlines())) == (2, 1)
    assert "f.jsonl: found another content than the one that was run" in said


def test_another_file_that_got_the_inode_of_an_input_is_not_taken_for_it(daemon):
    """Inodes are used again: the input was taken out of done/, and what has its inode now has another name."""
    source = daemon.root / "done" / "f.jsonl"
    source.rename(source.with_name("other.jsonl"))
    code, said = gapless("retry", "f", cwd=daemon.folder)
    assert (code, len(said.splitlines())) == (2, 1)
    assert "f: its input is neither in done/ nor in failed/" in said
