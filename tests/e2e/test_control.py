"""Cancel, deadlines and time limits: what is finished is published, the rest says why it is not, and a crash changes nothing."""

import json
import re
import signal
import time

import pytest
from commands import gapless
from daemon_process import request_lines
from line_schema import line_validator
from openai.types import Batch

SLOW = "fake:step_ms=20"  # 16 tokens take a third of a second


def until_some_are_done(daemon, stem, count=1):
    path = daemon.outbox / f"{stem}.output.jsonl.partial"
    daemon.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, f"{count} requests of {stem} done")


def test_a_cancel_is_carried_out_while_the_daemon_waits_for_the_file_to_stop(make_daemon):
    """Its one request would take minutes, and the daemon would wait for it as long."""
    daemon = make_daemon("fake:step_ms=20", daemon=", drain_s: 600").start()
    daemon.drop("f.jsonl", request_lines(1, max_tokens=6000, ignore_eos=True))
    daemon.until(lambda: daemon.batch("f"), "f is taken")
    daemon.drop("g.jsonl", request_lines(1))
    daemon.wait_done("g")  # which was fed after it
    daemon.process.send_signal(signal.SIGTERM)
    daemon.until(lambda: "stopping: running requests" in daemon.log.read_text(), "stopping")
    (daemon.inbox / "f.cancel").touch()
    assert daemon.process.wait(60) == 0
    assert daemon.batch("f")["status"] == "cancelled"
    assert not (daemon.inbox / "f.cancel").exists()


def errors_by_code(daemon, stem):
    """The lines of the errors file by their code; each line of both files fits our schema."""
    codes, validator = {}, line_validator()
    for line in daemon.lines(f"{stem}.output.jsonl")[:50]:
        validator.validate(line)
    for line in daemon.lines(f"{stem}.errors.jsonl")[-1000:]:
        validator.validate(line)
    for line in daemon.lines(f"{stem}.errors.jsonl"):
        code = line["error"]["code"] if line["error"] else line["response"]["body"]["error"]["code"]
        codes.setdefault(code, []).append(line)
    return codes


def test_a_cancelled_file_publishes_what_is_finished_and_says_of_the_rest_that_it_was_cancelled(make_daemon):
    daemon = make_daemon(SLOW).start()
    daemon.drop("f.jsonl", request_lines(500) + "{broken\n")
    until_some_are_done(daemon, "f", 16)
    (daemon.inbox / "f.cancel").touch()
    batch = Batch.model_validate(daemon.wait_done("f"), strict=True)
    assert batch.status == "cancelled"
    assert batch.cancelling_at is not None
    assert batch.in_progress_at is not None
    assert batch.cancelled_at is not None
    assert batch.in_progress_at <= batch.cancelling_at <= batch.cancelled_at
    results = daemon.results("f")
    assert len(results) == 501
    codes = errors_by_code(daemon, "f")
    assert set(codes) == {"batch_cancelled", "invalid_json_line"}
    assert len(codes["batch_cancelled"]) + len(daemon.lines("f.output.jsonl")) == 500
    assert len(daemon.lines("f.output.jsonl")) >= 16
    assert all(line["response"] is None for line in codes["batch_cancelled"])
    assert (batch.request_counts.completed, batch.request_counts.failed) == (
        len(daemon.lines("f.output.jsonl")), len(daemon.lines("f.errors.jsonl")),
    )  # fmt: skip
    assert (daemon.root / "done" / "f.jsonl").exists()
    assert not (daemon.inbox / "f.cancel").exists()
    report = json.loads((daemon.outbox / "f.report.json").read_text())
    assert report["status"] == "cancelled"
    assert report["requests"]["cancelled"] == len(codes["batch_cancelled"])
    daemon.drop("g.jsonl", request_lines(3))
    assert daemon.wait_done("g")["status"] == "completed", "the engine goes on with others"
    assert daemon.stop() == 0


def test_running_requests_are_cut_and_not_waited_for(make_daemon):
    """An answer of 7,000 steps of 20 ms would take over two minutes."""
    daemon = make_daemon(SLOW).start()
    daemon.drop("long.jsonl", request_lines(4, max_tokens=7000))
    daemon.until(lambda: 'num_running": 4' in daemon.get("/status").replace('":4', '": 4'), "running")
    started_s = time.monotonic()
    code, said = gapless("cancel", "p/long.jsonl", cwd=daemon.folder)
    assert (code, said) == (0, f"{daemon.inbox / 'long.jsonl.cancel'} asks to cancel long.jsonl")
    assert daemon.wait_done("long")["request_counts"] == {"total": 4, "completed": 0, "failed": 4}
    assert time.monotonic() - started_s < 30
    daemon.until(lambda: 'num_running": 0' in daemon.get("/status").replace('":0', '": 0'), "the engine dropped them")
    code, said = gapless("cancel", "long", cwd=daemon.folder)
    assert (code, said) == (2, "cancel: p/long is cancelled already")
    code, said = gapless("cancel", "nowhere", cwd=daemon.folder)
    assert (code, said) == (2, "cancel: no file nowhere is being run or waits in an inbox of p")
    assert daemon.stop() == 0


def test_a_kill_in_the_middle_of_a_cancel_goes_on_cancelling(make_daemon):
    """The record is durable before the order is removed; finished results stay as they are."""
    daemon = make_daemon(SLOW).start()
    daemon.drop("f.jsonl", request_lines(12_000))
    until_some_are_done(daemon, "f")
    (daemon.inbox / "f.cancel").touch()
    daemon.until(lambda: not (daemon.inbox / "f.cancel").exists(), "recorded")
    daemon.kill()
    assert (daemon.root / "work" / "f.jsonl").exists(), "it was killed before it was through"
    first = daemon.batch("f")
    daemon.start("--once")
    assert daemon.process.wait(90) == 3
    batch = daemon.batch("f")
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] is not None
    if first["cancelling_at"] is not None:
        assert batch["cancelling_at"] == first["cancelling_at"]
    results = daemon.results("f")
    assert len(results) == 12_000
    assert set(errors_by_code(daemon, "f")) == {"batch_cancelled"}


def test_a_cancel_is_seen_before_its_end(make_daemon):
    """Also where so little is left that it is over at once: the last steps come when the disk lets them."""
    daemon = make_daemon(SLOW).start()
    daemon.drop("f.jsonl", request_lines(100))
    until_some_are_done(daemon, "f")
    blocker = daemon.outbox / "f.errors.jsonl"
    blocker.mkdir()  # so that it cannot be published
    (daemon.inbox / "f.cancel").touch()
    daemon.until(lambda: daemon.batch("f")["status"] == "cancelling", "on its way")
    assert daemon.batch("f")["request_counts"]["total"] == 100
    blocker.rmdir()
    assert daemon.wait_done("f")["status"] == "cancelled"


def test_an_order_for_a_file_that_is_not_there_goes_to_failed_with_its_reason(make_daemon):
    """Left in the inbox it would end a later file of that name."""
    daemon = make_daemon().start()
    daemon.inbox.mkdir(exist_ok=True, parents=True)
    (daemon.inbox / "nobody.cancel").touch()
    (daemon.inbox / "loud.cancel").write_text("please")
    for name in ("nobody", "loud"):
        reason = daemon.root / "failed" / f"{name}.cancel.reason.json"
        daemon.until(reason.exists, "refused")
        assert json.loads(reason.read_text())["code"] == "invalid_cancel"
        daemon.until((daemon.root / "failed" / f"{name}.cancel").exists, "moved")
    daemon.drop("nobody.jsonl", request_lines(2))
    assert daemon.wait_done("nobody")["status"] == "completed"
    assert daemon.log.read_text().count("nobody.cancel: no file nobody is being run or waits in the inbox") == 1
    assert "found 6 bytes in it, expected an empty file" in daemon.log.read_text()
    assert daemon.stop() == 0


def test_an_order_for_a_file_that_is_still_written_waits_for_it_and_says_so(make_daemon):
    daemon = make_daemon().start()
    daemon.inbox.mkdir(parents=True, exist_ok=True)
    with (daemon.inbox / "slow.jsonl").open("w") as file:
        file.write(request_lines(2))
        file.flush()
        (daemon.inbox / "slow.cancel").touch()
        daemon.until(lambda: "slow.cancel: it waits" in daemon.get("/status"), "explained")
        file.write(request_lines(4).split("\n", 2)[2])
    assert daemon.wait_done("slow")["status"] == "cancelled"
    assert daemon.stop() == 0


def test_a_deadline_expires_what_is_not_finished(make_daemon):
    daemon = make_daemon(SLOW).start()
    daemon.drop("warm.jsonl", request_lines(1))
    daemon.wait_done("warm")
    daemon.drop("f.options.yaml", "limits: {deadline_s: 5}\n")
    daemon.drop("f.jsonl", request_lines(3000, max_tokens=32))
    batch = daemon.until(lambda: daemon.batch("f"), "claimed")
    assert batch["expires_at"] == batch["created_at"] + 5
    batch = Batch.model_validate(daemon.wait_done("f"), strict=True)
    assert (batch.status, batch.completion_window) == ("expired", "5s")
    assert batch.finalizing_at is not None
    assert batch.expired_at is not None
    assert batch.expires_at <= batch.finalizing_at <= batch.expired_at
    codes = errors_by_code(daemon, "f")
    assert set(codes) == {"batch_expired"}
    assert len(daemon.results("f")) == 3000
    assert daemon.lines("f.output.jsonl"), "what was finished in time is published"
    assert (daemon.root / "done" / "f.jsonl").exists()
    assert daemon.stop() == 0


def test_a_deadline_counts_from_the_claim_also_while_no_daemon_runs_and_needs_no_engine(make_daemon):
    daemon = make_daemon("fake:load_ms=100000", pipeline=", limits: {deadline_s: 3}").start()
    daemon.drop("f.jsonl", request_lines(2000))
    expires_at = daemon.until(lambda: daemon.batch("f"), "claimed")["expires_at"]
    daemon.kill()
    while time.time() < expires_at:
        time.sleep(0.05)
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    batch = daemon.batch("f")
    assert (batch["status"], batch["expires_at"]) == ("expired", expires_at)
    assert batch["request_counts"] == {"total": 2000, "completed": 0, "failed": 2000}
    assert len(errors_by_code(daemon, "f")["batch_expired"]) == 2000


def test_a_request_that_takes_too_long_fails_alone(make_daemon):
    daemon = make_daemon(SLOW, pipeline=", limits: {request_timeout_s: 4}")
    daemon.drop("f.jsonl", request_lines(3) + request_lines(1, max_tokens=7000).replace('"r0"', '"long"'))
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    assert daemon.batch("f")["status"] == "completed"
    assert daemon.batch("f")["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    (line,) = daemon.lines("f.errors.jsonl")
    assert (line["custom_id"], line["response"], line["error"]["code"]) == ("long", None, "request_timeout")
    assert line["error"]["message"] == (
        "f.jsonl line 4: not finished within limits.request_timeout_s (4 s) of reaching the engine"
    )
    report = json.loads((daemon.outbox / "f.report.json").read_text())
    assert report["requests"]["timed_out"] == 1


def test_once_that_is_stopped_before_all_is_done_says_so(make_daemon):
    """Its exit code, too: a job that goes by it would take what there is for all. The next one runs the rest."""
    daemon = make_daemon(SLOW, daemon=", drain_s: 0.1")
    daemon.drop("f.jsonl", request_lines(20, max_tokens=500))
    daemon.start("--once")
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["status"] == "in_progress", "running")
    daemon.drop("late.part.jsonl", request_lines(1))
    assert daemon.stop() == 3
    log = daemon.log.read_text()
    assert "stopping: running requests get up to 0.1 s" in log
    assert re.search(r"left for the next start: files begun: [12], in inboxes: [01]\n", log)
    daemon.drop("f.cancel", "")
    daemon.start("--once")
    assert daemon.process.wait(90) == 3
    assert daemon.batch("late.part")["status"] == "completed"
    daemon.start("--once")
    assert daemon.process.wait(90) == 0, "nothing is left"


def test_a_cancel_without_a_daemon_says_when_it_comes_to_that(make_daemon):
    """As a pause does."""
    daemon = make_daemon()
    daemon.drop("f.jsonl", request_lines(3))
    code, said = gapless("cancel", "f", "--config", daemon.config, cwd=daemon.folder)
    assert (code, said.splitlines()[1:]) == (
        0,
        ["no daemon runs now: it is ended at the next start, and what is finished is published"],
    )


@pytest.mark.parametrize("order", ["f.cancel", "f.jsonl.cancel"])
def test_once_ends_with_three_when_a_file_was_cancelled(make_daemon, order):
    daemon = make_daemon("fake:step_ms=20,load_ms=1500")
    daemon.drop("f.jsonl", request_lines(3))
    daemon.drop("g.jsonl", request_lines(3))
    (daemon.inbox / order).touch()
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    assert daemon.batch("f")["status"] == "cancelled"
    assert daemon.batch("f")["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
    assert daemon.batch("f")["in_progress_at"] is None, "it was cancelled before it ran"
    assert daemon.batch("g")["status"] == "completed"


def test_a_small_file_is_done_soon_beside_a_huge_one_of_long_answers(make_daemon):
    """The huge one has taken all credits and all seats; it would run for half a minute."""
    daemon = make_daemon("fake:step_ms=5").start()
    daemon.drop("huge.jsonl", request_lines(300, max_tokens=300))
    until_some_are_done(daemon, "huge")
    daemon.drop("small.jsonl", request_lines(1))
    daemon.wait_done("small")
    counts = daemon.batch("huge")["request_counts"]
    assert counts["completed"] < 150
    (daemon.inbox / "huge.cancel").touch()
    assert daemon.wait_done("huge")["status"] == "cancelled"
    assert daemon.stop() == 0
