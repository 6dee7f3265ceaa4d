"""Requests that end the engine are found by halving what was in flight; they alone fail, whatever else is killed meanwhile."""

import json
import re

import pytest

POISON = 77  # a token id; prompts are given as token ids


def prompts(count, poison=(), first=0):
    lines = []
    for number in range(count):
        ids = [POISON] if number in poison else [1, 2]
        lines.append(json.dumps({"id": f"q{first + number}", "prompt": ids, "max_tokens": 4}) + "\n")
    return "".join(lines)


def num_deaths(daemon):
    return daemon.log.read_text().count("run apart from others now")


def engine_errors(daemon, stem):
    lines = daemon.lines(f"{stem}.errors.jsonl")
    assert all(line["error"]["code"] == "engine_error" and line["response"] is None for line in lines)
    return sorted(line["custom_id"] for line in lines)


def test_one_poison_among_two_hundred_fails_alone_and_the_rest_is_answered(make_daemon):
    """With a single restart allowed: deaths that take the search on do not count. About log2 of 64 in flight."""
    daemon = make_daemon(f"fake:poison={POISON}", engine=", max_restarts: 1")
    daemon.drop("f.jsonl", prompts(200, {99}))
    daemon.start("--once")
    assert daemon.process.wait(90) == 3
    assert daemon.batch("f")["request_counts"] == {"total": 200, "completed": 199, "failed": 1}
    assert engine_errors(daemon, "f") == ["q99"]
    assert len(daemon.results("f")) == 200
    assert num_deaths(daemon) <= 10
    assert re.search(r"line 100 \(req_\w+\) gets no answer after [0-9.]+ s \(engine_error\)", daemon.log.read_text())
    report = json.loads((daemon.outbox / "f.report.json").read_text())
    assert report["requests"]["engine_error"] == 1
    assert report["requests"]["resent"] > 64


@pytest.mark.timeout(240)
def test_two_poisons_in_two_files_fail_in_theirs(make_daemon):
    daemon = make_daemon(f"fake:poison={POISON}")
    daemon.drop("f.jsonl", prompts(30, {7}))
    daemon.drop("g.jsonl", prompts(30, {20}))
    daemon.drop("h.jsonl", prompts(30))
    daemon.start("--once")
    assert daemon.process.wait(200) == 3
    assert (engine_errors(daemon, "f"), engine_errors(daemon, "g")) == (["q7"], ["q20"])
    for stem, num_failed in (("f", 1), ("g", 1), ("h", 0)):
        counts = {"total": 30, "completed": 30 - num_failed, "failed": num_failed}
        assert daemon.batch(stem)["request_counts"] == counts
    assert num_deaths(daemon) <= 2 * 10


def test_a_kill_of_the_daemon_in_the_middle_of_the_search_goes_on_with_it(make_daemon):
    daemon = make_daemon(f"fake:poison={POISON}").start()
    daemon.drop("f.jsonl", prompts(60, {41}))
    daemon.until(lambda: num_deaths(daemon) >= 3, "in the middle")
    daemon.kill()
    daemon.start("--once")
    assert daemon.process.wait(90) == 3
    assert engine_errors(daemon, "f") == ["q41"]
    assert daemon.batch("f")["request_counts"] == {"total": 60, "completed": 59, "failed": 1}
    assert len(daemon.results("f")) == 60
    assert num_deaths(daemon) <= 12, "it did not begin again"
