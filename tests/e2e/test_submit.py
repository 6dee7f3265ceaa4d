"""`gapless submit`, with and without waiting, with and without a daemon."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from commands import gapless, start_gapless
from daemon_process import request_lines


def written(daemon, name, content):
    path = daemon.folder / name
    path.write_text(content)
    return path


def test_waiting_shows_the_results_and_the_exit_code_tells_of_errors(make_daemon):
    """Two files at once, one with a bad line: where everything is, and code 3; the good one alone: code 0."""
    daemon = make_daemon().start()
    written(daemon, "good.jsonl", request_lines(5))
    written(daemon, "bad.jsonl", request_lines(3) + "{broken\n")
    code, said = gapless("submit", "--wait", "good.jsonl", "bad.jsonl", cwd=daemon.folder)
    assert code == 3
    assert "good.jsonl: completed, 5 of 5 requests answered\n" in said
    assert "bad.jsonl: completed, 3 of 4 requests answered, 1 in the errors file\n" in said
    assert f"  {daemon.outbox / 'bad.errors.jsonl'}" in said
    written(daemon, "fine.txt", "Say something.")
    code, said = gapless("submit", "--wait", "fine.txt", cwd=daemon.folder)
    assert code == 0
    assert f"  {daemon.outbox / 'fine.output.txt'}" in said
    assert not [path for path in daemon.inbox.iterdir() if path.name.endswith(".tmp")]


def test_a_file_is_followed_to_the_name_that_it_gets(make_daemon):
    """A name that is in use in the outbox, and one that is taken in the very moment."""
    daemon = make_daemon().start()
    written(daemon, "f.jsonl", request_lines(2))
    assert gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)[0] == 0
    written(daemon, "f.jsonl", request_lines(7))
    code, said = gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    assert code == 0
    assert "f.jsonl: submitted to p as f~2.jsonl, since another has its name\n" in said
    assert "f~2.jsonl: completed, 7 of 7" in said
    assert f"  {daemon.outbox / 'f~2.output.jsonl'}" in said
    assert len(daemon.results("f~2")) == 7


def test_a_submitted_file_does_not_settle(make_daemon):
    """It gets its name when it is whole. Options are no reason to wait either, and neither is a name that is taken."""
    daemon = make_daemon()
    daemon.config.write_text(daemon.config.read_text().replace("settle_s: 0.05", "settle_s: 3600"))
    daemon.start().until(lambda: "noticed by: events" in daemon.log.read_text(), "watched")
    written(daemon, "f.jsonl", request_lines(2))
    written(daemon, "f.options.yaml", "priority: 5")
    for _ in range(2):
        code, _ = gapless("submit", "--wait", "--options", "f.options.yaml", "f.jsonl", cwd=daemon.folder)
        assert code == 0
    assert [len(daemon.results(stem)) for stem in ("f", "f~2")] == [2, 2]


def test_without_a_daemon_it_says_so_and_goes_on_when_one_starts(make_daemon):
    """Waiting begins before there is anybody to wait for."""
    daemon = make_daemon()
    written(daemon, "f.jsonl", request_lines(4))
    code, said = gapless("submit", "f.jsonl", cwd=daemon.folder)
    assert code == 0
    assert "no daemon runs on" in said
    assert (
        f"{daemon.folder / 'spool'} was not there and is made now: if it belongs on a disk of its own, is that" in said
    )
    waiting = start_gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    lines = []
    while not any("waiting for it" in line for line in lines):
        lines.append(waiting.stdout.readline())
    assert not daemon.batch("f")
    daemon.start()
    rest, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "f~2.jsonl: completed, 4 of 4" in rest
    assert len(daemon.results("f")) == 4


def test_a_pipeline_that_a_fault_pauses_is_said_to_be(make_daemon):
    """Its outbox is away: who waits is told why nothing goes on, and of the end once it is back."""
    daemon = make_daemon().start()
    daemon.until(daemon.port, "up")
    written(daemon, "f.jsonl", request_lines(2))
    daemon.outbox.rename(daemon.outbox.with_name("away"))
    waiting = start_gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    lines = []
    while not any("pipeline p is paused and " in line for line in lines):
        lines.append(waiting.stdout.readline())
        assert lines[-1], lines
    assert f"cannot write {daemon.outbox}" in lines[-1]
    daemon.outbox.with_name("away").rename(daemon.outbox)
    said, _ = waiting.communicate(timeout=60)
    assert "f.jsonl: completed, 2 of 2" in said


def test_a_daemon_that_hangs_is_said_to_and_waited_for(make_daemon):
    """Once, within seconds, by everything that asks it; the results are shown when it goes on."""
    daemon = make_daemon().start()
    daemon.until(daemon.port, "up")
    written(daemon, "f.jsonl", request_lines(2))
    daemon.process.send_signal(signal.SIGSTOP)
    waiting = start_gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    lines = []
    while not any(" hangs: " in line for line in lines):
        lines.append(waiting.stdout.readline())
        assert lines[-1], lines
    assert (
        f"the daemon on {daemon.folder / 'spool'} (pid {daemon.process.pid}) hangs: no daemon answers at " in lines[-1]
    )
    code, said = gapless("status", cwd=daemon.folder)
    assert (code, f"; pid {daemon.process.pid} runs on {daemon.folder / 'spool'}: `gapless doctor`" in said) == (
        4,
        True,
    )
    code, said = gapless("explain", "f.jsonl", cwd=daemon.folder)
    assert (code, "it is complete and waits: the daemon runs, but it does not answer." in said) == (0, True)
    daemon.process.send_signal(signal.SIGCONT)
    rest, _ = waiting.communicate(timeout=60)
    assert " hangs: " not in rest
    assert "f.jsonl: completed, 2 of 2" in rest


def test_what_was_submitted_is_said_before_the_waiting(make_daemon):
    """Also where standard output is a file or a pipe, as in a job at night that somebody ends before it is over."""
    daemon = make_daemon()
    written(daemon, "f.jsonl", request_lines(1))
    with (daemon.folder / "out").open("wb") as out:
        waiting = subprocess.Popen(
            [sys.executable, "-m", "daemon.cli", "submit", "--wait", "f.jsonl"],
            cwd=daemon.folder, stdout=out, stderr=subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        )  # fmt: skip
    while b"waiting for it" not in (line := waiting.stderr.readline()):
        assert line
    assert (daemon.folder / "out").read_text() == "f.jsonl: submitted to p\n"
    waiting.kill()
    waiting.communicate()


def test_of_a_file_that_is_rejected_what_is_known_is_said(make_daemon):
    """All of its requests where they were counted, nothing of counts where they were not; why, and where the input is."""
    daemon = make_daemon(pipeline=", on_bad_line: reject").start()
    written(daemon, "rejected.jsonl", request_lines(2) + "{broken\n")
    written(daemon, "table.csv", "a,b\n1,2\n")
    written(daemon, "empty.jsonl", "")
    code, said = gapless("submit", "--wait", "rejected.jsonl", "table.csv", "empty.jsonl", cwd=daemon.folder)
    assert code == 3
    assert "rejected.jsonl: failed, 0 of 3 requests answered\n  bad: 1 of 3 lines, and on_bad_line is reject; " in said
    assert "table.csv: failed\n  table.csv: found a table in a pipeline without a template" in said
    assert f"\n  the input is in {daemon.root / 'failed'}\n" in said
    assert "empty.jsonl: completed, it has no requests\n" in said
    counts = {"total": 3, "completed": 0, "failed": 0}
    assert daemon.batch("rejected")["request_counts"] == counts
    totals = [
        json.loads((daemon.outbox / f"{stem}.report.json").read_text())["requests"]["total"]
        for stem in ("rejected", "table", "empty")
    ]
    assert totals == [3, None, 0]
    assert "0 requests answered, 0 in" not in daemon.log.read_text()
    assert "empty.jsonl is done: it has no requests" in daemon.log.read_text()
    assert (
        "it is done: it has no requests. Results: "
        in gapless("explain", daemon.root / "done" / "empty.jsonl", cwd=daemon.folder)[1]
    )


def test_results_of_a_longer_name_are_not_taken_for_its_own(make_daemon):
    """f.v2 is another file than f."""
    daemon = make_daemon().start()
    for name in ("f.v2.jsonl", "f.jsonl"):
        written(daemon, name, request_lines(1))
        code, said = gapless("submit", "--wait", name, cwd=daemon.folder)
        assert code == 0
    assert "f.output.jsonl" in said
    assert "f.v2" not in said


def test_ctrl_c_leaves_the_file_to_the_daemon(make_daemon):
    """The waiting ends with a word about what goes on; the file is run to its end."""
    daemon = make_daemon("fake:step_ms=20").start()
    written(daemon, "f.jsonl", request_lines(100))
    waiting = start_gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["request_counts"]["completed"], "running")
    waiting.send_signal(signal.SIGINT)
    said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert "stopped waiting; the daemon goes on with f.jsonl" in said
    assert "Traceback" not in said
    daemon.wait_done("f")
    assert len(daemon.results("f")) == 100


def test_a_terminal_sees_requests_tokens_and_the_time_left(make_daemon):
    """On one line that is overwritten."""
    daemon = make_daemon("fake:step_ms=30,eos_every=100000").start()
    written(daemon, "f.jsonl", request_lines(200))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "daemon.cli", "submit", "--wait", "f.jsonl"],
        cwd=daemon.folder, stdout=subprocess.DEVNULL, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while b" left" not in seen:
        seen += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(master)
    last = seen.decode().split("\r")[-1]
    assert "f.jsonl: " in last
    assert " of 200 requests, " in last
    assert " tokens/s, " in last


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("photo.png", "extension '.png'"),
        (".hidden.jsonl", "begins with a dot"),
        ("copy.jsonl.part", "unfinished copy"),
        ("none.jsonl", "no such file"),
        ("folder.jsonl", "it is a folder, not an ordinary file"),
        (f"{'x' * 200}.jsonl", "206 bytes"),
    ],
)
def test_what_the_inbox_would_not_run_is_refused_with_the_reason(tmp_path, name, words):
    """Nothing is copied, not even the good file beside it."""
    (tmp_path / "gapless.yaml").write_text("engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n")
    (tmp_path / "good.jsonl").write_text(request_lines(1))
    if name == "folder.jsonl":
        (tmp_path / name).mkdir()
    elif name != "none.jsonl":
        (tmp_path / name).write_text("x")
    code, said = gapless("submit", "good.jsonl", name, cwd=tmp_path)
    assert (code, len(said.splitlines())) == (2, 1)
    assert words in said
    assert not (tmp_path / "spool").exists()


def test_a_file_that_somebody_takes_out_of_the_inbox_ends_the_waiting(make_daemon):
    """It does not hang for ever."""
    daemon = make_daemon()
    written(daemon, "f.jsonl", request_lines(1))
    waiting = start_gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    daemon.until(lambda: daemon.inbox.exists() and (daemon.inbox / "f.jsonl").exists(), "submitted")
    (daemon.inbox / "f.jsonl").unlink()
    said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 3
    assert "took it" in said


def test_several_pipelines_need_a_name(tmp_path):
    """One line names them."""
    (tmp_path / "gapless.yaml").write_text(
        "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}, q: {engine: e}}\n"
    )
    (tmp_path / "f.jsonl").write_text(request_lines(1))
    code, said = gapless("submit", "f.jsonl", cwd=tmp_path)
    assert (code, said) == (2, "--pipeline: found none, expected one of p, q")
    assert gapless("submit", "f.jsonl", "--pipeline", "q", cwd=tmp_path)[0] == 0
    assert (tmp_path / "spool" / "q" / "inbox" / "f.jsonl").read_text() == request_lines(1)


def test_options_are_there_before_their_file_and_hold_for_it_alone(make_daemon):
    """Each file gets them under its own name; a mistake in them is found before anything is copied."""
    daemon = make_daemon("fake:").start()
    written(daemon, "short.yaml", "sampling: {max_tokens: 3}\n")
    written(daemon, "f.jsonl", request_lines(2))
    assert gapless("submit", "--wait", "--options", "short.yaml", "f.jsonl", cwd=daemon.folder)[0] == 0
    assert gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)[0] == 0

    def tokens(stem):
        return [line["response"]["body"]["usage"]["completion_tokens"] for line in daemon.lines(f"{stem}.output.jsonl")]

    assert (tokens("f"), tokens("f~2")) == ([3, 3], [16, 16])
    written(daemon, "wrong.yaml", "sampling: {max_token: 3}\n")
    code, said = gapless("submit", "--options", "wrong.yaml", "f.jsonl", cwd=daemon.folder)
    assert (code, "wrong.yaml:1:12: sampling.max_token: found an unknown key" in said) == (2, True)
    assert [path.name for path in daemon.inbox.iterdir() if not path.name.startswith(".gapless")] == []
