"""The main job with the fake engine: files dropped into the inbox, results in the outbox."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from daemon_process import request_lines

CASES = Path(__file__).parent.parent / "data" / "cases"


def test_files_of_all_kinds_run_together_and_move_to_done(make_daemon):
    daemon = make_daemon("fake:")
    daemon.drop("batch.jsonl", request_lines(20))
    daemon.drop("plain.jsonl", '{"prompt": "a"}\n{"id": "x", "messages": [{"role": "user", "content": "b"}]}\n')
    daemon.drop("one.json", '{"prompt": "c", "max_tokens": 3}')
    daemon.drop("note.txt", "Write a line.\n")
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert sorted(daemon.results("batch")) == sorted(f"r{n}" for n in range(20))
    assert list(daemon.results("plain")) == ["line-1", "x"]
    assert daemon.lines("one.output.jsonl")[0]["response"]["body"]["usage"]["completion_tokens"] == 3
    assert (daemon.outbox / "note.output.txt").read_text().strip()
    assert sorted(path.name for path in (daemon.root / "done").iterdir()) == [
        "batch.jsonl", "note.txt", "one.json", "plain.jsonl",
    ]  # fmt: skip
    assert not list((daemon.root / "work").iterdir())
    assert daemon.batch("batch")["status"] == "completed"
    assert daemon.batch("batch")["request_counts"] == {"total": 20, "completed": 20, "failed": 0}


def test_output_is_in_input_order_and_the_same_each_time(make_daemon):
    first, second = make_daemon(), make_daemon()
    content = request_lines(60, temperature=1.0)
    for daemon in (first, second):
        daemon.drop("f.jsonl", content)
        daemon.start("--once")
        assert daemon.process.wait(60) == 0
    lines = [first.lines("f.output.jsonl"), second.lines("f.output.jsonl")]
    assert [line["custom_id"] for line in lines[0]] == [f"r{n}" for n in range(60)]
    for line in lines[0] + lines[1]:
        line["response"]["body"].pop("created")
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("good.jsonl", 5, 0),
        ("bad-lines.jsonl", 3, 16),
        ("bom-crlf.jsonl", 5, 0),
        ("plain.jsonl", 3, 0),
        ("array.json", 2, 0),
    ],
)
def test_each_request_of_the_hard_cases_has_one_line_in_the_right_file(make_daemon, name, good, bad):
    daemon = make_daemon()
    daemon.drop(name, (CASES / name).read_bytes())
    daemon.start("--once")
    assert daemon.process.wait(60) == (3 if bad else 0)
    stem = Path(name).stem
    assert len(daemon.lines(f"{stem}.output.jsonl")) == good
    errors = daemon.lines(f"{stem}.errors.jsonl")
    assert len(errors) == bad
    assert all(line["response"]["status_code"] == 400 and line["error"] is None for line in errors)
    assert (daemon.outbox / f"{stem}.errors.jsonl").exists() == bool(bad)
    assert daemon.batch(stem)["request_counts"] == {"total": good + bad, "completed": good, "failed": bad}


def test_a_duplicate_id_is_an_error_line_that_names_the_first(make_daemon):
    daemon = make_daemon()
    daemon.drop("d.jsonl", request_lines(3) + request_lines(1))
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    (line,) = daemon.lines("d.errors.jsonl")
    error = line["response"]["body"]["error"]
    assert error["code"] == "duplicate_custom_id"
    assert "line 4" in error["message"]
    assert "line 1" in error["message"]


def test_a_file_that_is_no_request_file_fails_with_its_reason(make_daemon):
    daemon = make_daemon()
    daemon.drop("word.json", '"hello"')
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    reason = json.loads((daemon.root / "failed" / "word.reason.json").read_text())
    assert reason["code"] == "invalid_file"
    assert "word.json" in reason["message"]
    assert (daemon.root / "failed" / "word.json").read_text() == '"hello"'
    assert daemon.batch("word")["status"] == "failed"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("word.json", b'\n\n"hello"', 3),
        ("two.json", b'{"prompt": "a"}\n{"prompt": "b"}\n', 1),
        ("wide.csv", b'\nid,"te"xt\n1,a\n', 2),
        ("bytes.txt", b"fine\ncaf\xe9\n", 2),
        ("empty.csv", b"", None),
    ],
)
def test_what_fails_a_file_as_a_whole_is_an_error_with_its_line(make_daemon, name, content, line):
    """In errors.data of the Batch object and in the reason, where one line is at fault."""
    daemon = make_daemon("fake:", pipeline=", template: x").start()
    daemon.drop(name, content)
    stem = name.partition(".")[0]
    batch = daemon.wait_done(stem)
    assert batch["status"] == "failed"
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [("invalid_file", line)]
    assert json.loads((daemon.root / "failed" / f"{stem}.reason.json").read_text())["errors"] == batch["errors"]


def test_reject_fails_the_whole_file_for_one_bad_line(make_daemon):
    daemon = make_daemon(pipeline=", on_bad_line: reject")
    daemon.drop("f.jsonl", request_lines(3) + "{broken\n")
    daemon.drop("g.jsonl", request_lines(3))
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    assert daemon.lines("f.output.jsonl") == []
    assert daemon.batch("f")["errors"]["data"][0]["line"] == 4
    assert (daemon.root / "failed" / "f.jsonl").exists()
    assert len(daemon.results("g")) == 3


def test_a_stem_that_is_taken_gets_a_number(make_daemon):
    daemon = make_daemon().start()
    daemon.drop("f.jsonl", request_lines(1))
    daemon.wait_done("f")
    daemon.drop("f.jsonl", request_lines(2))
    daemon.wait_done("f~2")
    assert (len(daemon.results("f")), len(daemon.results("f~2"))) == (1, 2)
    assert daemon.stop() == 0


def test_what_is_not_a_request_file_stays_and_explain_says_why(make_daemon):
    daemon = make_daemon()
    daemon.inbox.mkdir(parents=True)
    for name in (".hidden.jsonl", "copy.jsonl.part", "~$x.jsonl", "photo.png"):
        (daemon.inbox / name).write_text("x")
    (daemon.inbox / "folder.jsonl").mkdir()
    (daemon.inbox / "link.jsonl").symlink_to(CASES / "good.jsonl")
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert len(list(daemon.inbox.iterdir())) == 6


def test_a_file_that_is_still_written_is_not_taken(make_daemon):
    daemon = make_daemon().start()
    daemon.inbox.mkdir(parents=True, exist_ok=True)
    with (daemon.inbox / "slow.jsonl").open("w") as file:
        file.write(request_lines(2))
        file.flush()
        daemon.drop("other.jsonl", request_lines(1))
        daemon.wait_done("other")
        assert (daemon.inbox / "slow.jsonl").exists()
        file.write(request_lines(4).split("\n", 2)[2])
    daemon.wait_done("slow")
    assert len(daemon.results("slow")) == 4


def test_metrics_health_and_readiness_are_served(make_daemon):
    daemon = make_daemon().start()
    daemon.drop("f.jsonl", request_lines(30))
    daemon.wait_done("f")
    daemon.until(
        lambda: 'gapless_generation_tokens_total{engine="e"} 0.0' not in daemon.get("/metrics"), "tokens counted"
    )
    metrics = daemon.get("/metrics")
    assert 'gapless_requests_total{outcome="completed",pipeline="p"} 30.0' in metrics
    assert daemon.get("/healthz").strip() == "ok"
    daemon.until(
        lambda: json.loads(daemon.get("/readyz"))["ready"], "ready, by a snapshot that is taken four times a second"
    )
    samples = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    parts = [
        float(value)
        for name, value in samples.items()
        if name.startswith("gapless_gpu_") and name.split("{")[0].endswith("_total")
    ]
    uptime_s = json.loads(daemon.get("/status"))["uptime_s"]
    assert sum(parts) == pytest.approx(uptime_s, abs=1.0), "busy, unproven and idle add up to the wall time"
    assert daemon.stop() == 0


def test_sigterm_lets_running_requests_finish_and_the_rest_for_the_next_start(make_daemon):
    daemon = make_daemon("fake:step_ms=5").start()
    daemon.drop("f.jsonl", request_lines(400))
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["request_counts"]["completed"] > 0, "first results")
    assert daemon.stop() == 0
    assert (daemon.root / "work" / "f.jsonl").exists()
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert len(daemon.results("f")) == 400


def test_a_second_signal_stops_at_once(make_daemon):
    daemon = make_daemon("fake:step_ms=3000").start()
    daemon.drop("f.jsonl", request_lines(8))
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["status"] == "in_progress", "running")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.until(lambda: "stopping" in daemon.log.read_text(), "draining")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0


def test_the_processes_that_were_started_early_are_the_ones_that_work(make_daemon):
    """There are no others beside them."""
    daemon = make_daemon().start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    assert sorted(role for role, _ in daemon.workers()) == ["engine", "text"]


def test_a_second_daemon_on_the_spool_is_refused(make_daemon):
    daemon = make_daemon().start()
    daemon.port()
    twin = make_daemon()
    shutil.copy(daemon.config, twin.config)
    twin.config.write_text(twin.config.read_text().replace("./spool", str(daemon.folder / "spool")))
    twin.start()
    assert twin.process.wait(20) == 4
    assert "another gapless runs on" in twin.log.read_text()


def test_two_files_whose_names_differ_in_case_alone_have_stems_of_their_own(make_daemon):
    daemon = make_daemon("fake:step_ms=20")
    daemon.drop("f.jsonl", request_lines(5))
    daemon.drop("f.JSONL", request_lines(3))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert sorted([len(daemon.results("f")), len(daemon.results("f~2"))]) == [3, 5]
