"""`gapless report` of files that a real daemon ran."""

import json

import pytest
from commands import gapless
from daemon_process import request_lines

FAILING = request_lines(3) + request_lines(2) + '{"prompt": 5}\n{broken\n'


@pytest.fixture
def done(make_daemon):
    daemon = make_daemon("fake:", daemon=", price_per_gpu_hour: 36000")
    daemon.drop("f.jsonl", FAILING)
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    return daemon


def test_the_report_groups_errors_and_says_the_cost(done):
    """What a person reads on the terminal: each kind of error once, with the first of them; money by the device's time."""
    code, said = gapless("report", "f", cwd=done.folder)
    assert code == 0
    rows = {line[:16].strip() or "more": line[18:] for line in said.splitlines()}
    assert rows["requests"] == "7: 3 completed, 2 refused, 2 duplicate"
    assert rows["errors"].startswith("2 x duplicate_custom_id; first r0: f.jsonl line 4: ")
    assert "1 x invalid_type; first line-6: f.jsonl line 6: " in said
    assert "1 x invalid_json_line; first line-7: f.jsonl line 7: " in said
    assert " at 36000 an hour: " in rows["cost"]
    assert "% idle (" in rows["device"]


def test_json_is_the_file_itself_and_its_figures_fit_together(done):
    """The file of the outbox byte for byte; the price times the share of the device's time is the cost."""
    code, said = gapless("report", "p/f", "--json", cwd=done.folder)
    assert code == 0
    assert said == (done.outbox / "f.report.json").read_text().strip()
    report = json.loads(said)
    cost, device = report["cost"], report["device_seconds"]
    wall_s = device["busy"] + device["unproven"] + sum(device["idle"].values())
    assert cost["gpu_seconds"] == pytest.approx(cost["share_of_tokens"] * wall_s, abs=0.01)
    assert cost["total"] == pytest.approx(10 * cost["gpu_seconds"], abs=0.01)
    assert report["errors"][0]["code"] == "duplicate_custom_id"
    assert sum(group["count"] for group in report["errors"]) == 4
    assert len(report["config_hash"]) == len(report["model_hash"]) == 16


def test_a_file_is_meant_by_the_name_that_it_was_dropped_under(done):
    """As explain and cancel have it; a file that has ended is said to have."""
    said = [gapless("report", name, cwd=done.folder) for name in ("f", "f.jsonl", "p/f.jsonl", "f.output.jsonl")]
    assert said == [said[0]] * 4
    assert "found no g.report.json" in gapless("report", "g.jsonl", cwd=done.folder)[1]
    assert gapless("cancel", "f.jsonl", cwd=done.folder) == (2, "cancel: p/f is completed already")


def test_two_runs_of_one_configuration_have_one_hash_and_another_price_changes_nothing(make_daemon, done):
    """The hash is of what decides the answers, not of the rest."""
    other = make_daemon("fake:")
    other.drop("f.jsonl", request_lines(1))
    other.start("--once")
    assert other.process.wait(60) == 0
    reports = [json.loads((daemon.outbox / "f.report.json").read_text()) for daemon in (done, other)]
    assert reports[0]["config_hash"] == reports[1]["config_hash"]
    assert reports[0]["fingerprint"] != reports[1]["fingerprint"]


def test_a_report_that_is_not_there_is_explained(done):
    """One line each: no such file, still waiting, no such pipeline."""
    (done.inbox / "later.jsonl").write_text(request_lines(1))
    for stem, words in (("none", "no none.report.json in the outbox of p"), ("later", "inbox still"), ("q/f", "'q'")):
        code, said = gapless("report", stem, cwd=done.folder)
        assert (code, len(said.splitlines())) == (2, 1)
        assert words in said


def test_the_time_of_a_file_that_a_restart_interrupted_counts_both_runs(make_daemon):
    """Killed in the middle: the report says so, and its running time includes the first run."""
    daemon = make_daemon("fake:step_ms=10").start()
    daemon.drop("f.jsonl", request_lines(200))
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["request_counts"]["completed"] > 20, "first results")
    started = daemon.batch("f")["in_progress_at"]
    daemon.kill()
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    report = json.loads((daemon.outbox / "f.report.json").read_text())
    ended = daemon.batch("f")["completed_at"]
    assert report["is_resumed"]
    assert ended - started - 1 <= report["seconds"]["running"] <= ended - started + 1
    assert "restarts of the daemon included" in gapless("report", "f", cwd=daemon.folder)[1]
