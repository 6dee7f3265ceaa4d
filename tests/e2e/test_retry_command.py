"""`gapless retry`: a second run of what failed, beside the first."""

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
