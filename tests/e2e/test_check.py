"""`gapless check FILE` as a person uses it, and held to what the run then does."""

import json
import os

import pytest
from commands import gapless
from daemon_process import request_lines


@pytest.fixture
def daemon(make_daemon):
    made = make_daemon("fake:step_ms=2")
    (made.folder / "f.jsonl").write_text(
        request_lines(20) + '{"prompt": 5}\n' + json.dumps({"prompt": "x" * 9000}) + "\n"
    )
    return made


def test_what_check_counts_is_what_the_run_has(daemon):
    """The same prompt tokens, the same refusals; afterwards the report tells a speed and check an estimate."""
    code, said = gapless("check", "f.jsonl", "--json", cwd=daemon.folder)
    assert code == 3
    found = json.loads(said)
    assert found["estimate"] is None
    daemon.drop("f.jsonl", (daemon.folder / "f.jsonl").read_bytes())
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    report = json.loads((daemon.outbox / "f.report.json").read_text())
    assert report["tokens"]["prompt"] == found["prompt_tokens"]["total"]
    assert report["requests"]["refused"] == found["requests"]["bad"] + found["requests"]["refused"] == 2
    assert report["fingerprint"] == found["fingerprint"]
    code, said = gapless("check", "f.jsonl", cwd=daemon.folder)
    assert code == 3
    assert "20 good requests, 1 bad, 1 that would be refused, 0 blank lines\n" in said
    assert "f.jsonl line 21: prompt: found 5" in said
    assert "f.jsonl line 22: this model's context is 8192 tokens: found a prompt of 9000 tokens" in said
    assert "too long  1 of the requests" in said
    assert "tokens an answer of f; at most " in said
    (daemon.folder / "f.json").write_text(json.dumps([{"prompt": "x"}, {"prompt": "x" * 9000}]))
    said = gapless("check", "f.json", cwd=daemon.folder)[1]
    assert "f.json element 2 (line 1): this model's context is 8192 tokens" in said  # as its result would say


def test_without_a_configuration_or_with_no_tokens_the_lines_are_checked(daemon, tmp_path):
    """And it says why there is no more."""
    (daemon.folder / "good.jsonl").write_text(request_lines(2))
    code, said = gapless("check", "--no-tokens", "good.jsonl", cwd=daemon.folder)
    assert (code, "--no-tokens" in said, "2 good requests, 0 bad" in said) == (0, True, True)
    code, said = gapless("check", daemon.folder / "good.jsonl", cwd=tmp_path)
    assert (code, "there is no gapless.yaml here" in said) == (0, True)


def test_the_rows_of_a_table_are_requests_by_the_pipelines_template(tmp_path):
    """Their tokens are those of the prompts that it makes."""
    (tmp_path / "t.csv").write_text("a,b\n12,x\n1234,y\nshort\n")
    config = tmp_path / "gapless.yaml"
    config.write_text("engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e, template: '{{ a }}'}}\n")
    code, said = gapless("check", "t.csv", "--json", cwd=tmp_path)
    found = json.loads(said)
    assert code == 3
    assert found["requests"] == {"total": 3, "good": 2, "bad": 1, "refused": 0}
    assert found["prompt_tokens"]["max"] - found["prompt_tokens"]["min"] == 2
    code, said = gapless("check", "--no-tokens", "t.csv", cwd=tmp_path)
    assert (code, "2 good requests, 1 bad" in said) == (3, True)


@pytest.mark.parametrize(("on_bad_line", "is_rejected"), [("reject", True), ("record", False)])
def test_a_pipeline_that_refuses_whole_files_is_said_to_do_so(tmp_path, on_bad_line, is_rejected):
    """Good requests are of no use where one bad line fails the file; without a bad line there is nothing to say."""
    (tmp_path / "gapless.yaml").write_text(
        f"engines: {{e: {{model: {{path: 'fake:'}}}}}}\npipelines: {{p: {{engine: e, on_bad_line: {on_bad_line}}}}}\n"
    )
    for bad, is_said in (("{broken\n", is_rejected), ("", False)):
        (tmp_path / "f.jsonl").write_text(request_lines(2) + bad)
        _, said = gapless("check", "f.jsonl", cwd=tmp_path)
        assert ("the whole file would be refused" in said) == is_said
        assert json.loads(gapless("check", "--json", "f.jsonl", cwd=tmp_path)[1])["is_rejected"] == is_said


def test_a_file_that_is_none_is_one_line(daemon):
    """As is one that is not there."""
    (daemon.folder / "word.json").write_text('"hello"')
    for name in ("word.json", "none.jsonl"):
        code, said = gapless("check", name, cwd=daemon.folder)
        assert (code, len(said.splitlines())) == (2, 1)
        assert name in said


def test_a_file_that_is_none_keeps_the_others_from_nothing(daemon):
    (daemon.folder / "word.json").write_text('"hello"')
    (daemon.folder / "good.jsonl").write_text(request_lines(2))
    os.mkfifo(daemon.folder / "pipe.jsonl")
    given = ["word.json", "pipe.jsonl", ".", "absent", "good.jsonl"]
    code, said = gapless("check", "--no-tokens", *given, cwd=daemon.folder)
    assert code == 2
    assert "word.json: found" in said
    assert "pipe.jsonl: it is a named pipe, not an ordinary file" in said
    assert ".: it is a folder, not an ordinary file" in said
    assert "absent: no such file or directory" in said  # and nothing of its extension
    assert "good.jsonl: 2 good requests" in said


@pytest.mark.parametrize(
    ("name", "reason"), [(".hidden.jsonl", "begins with a dot"), (f"{'n' * 220}.jsonl", "has 226 bytes, at most 200")]
)
def test_a_name_that_an_inbox_does_not_run_is_said_to_be_one(tmp_path, name, reason):
    """Its lines are right, and nothing would come of them."""
    (tmp_path / name).write_text(request_lines(2))
    code, said = gapless("check", name, cwd=tmp_path)
    assert code == 3
    assert "an inbox does not run it under this name" in said
    assert reason in said
