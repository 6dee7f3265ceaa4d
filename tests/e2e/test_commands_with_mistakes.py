"""Commands that have to do with a running daemon work while its configuration's files hold mistakes, and say so."""

import json

import pytest
from commands import completions, gapless
from daemon_process import request_lines


@pytest.fixture
def daemon(make_daemon):
    started = make_daemon("fake:step_ms=5").start()
    started.until(
        lambda: json.loads(started.get("/status"))["engines"][0]["state"] == "ready", "ready, and status says so"
    )
    return started


MISTAKES = {
    "a value": lambda text: text.replace("max_num_seqs: 16", "max_num_seqs: 0"),
    "no YAML": lambda text: text[:40],
    "empty": lambda _: "",
    "gone": lambda _: None,
}


def write(daemon, text):
    daemon.config.unlink(missing_ok=True)
    if text is not None:
        daemon.config.write_text(text)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_command_goes_by_what_runs(daemon, mistake):
    before = daemon.config.read_text()
    daemon.drop("done.jsonl", request_lines(2))
    daemon.wait_done("done")
    write(daemon, MISTAKES[mistake](before))

    def run(*arguments, code=0):
        got, said = gapless(*arguments, cwd=daemon.folder)
        assert (got, "so this goes by what the daemon runs with" in said) == (code, True), said
        return said

    assert "up for" in run("status")
    daemon.until(lambda: "done.jsonl" in run("top", "--once"), "in the snapshot")
    assert "completion" in run("report", "done")
    assert "every request has its answer" in run("retry", "done")
    assert "pipeline p is paused" in run("pause", "--reason", "lunch")
    daemon.until(lambda: "lunch" in daemon.get("/status"), "noticed")
    (daemon.folder / "long.jsonl").write_text(request_lines(50, max_tokens=4000))
    assert "submitted to p" in run("submit", "long.jsonl")
    daemon.until(lambda: "lunch" in run("explain", "long.jsonl"), "complete, and waiting")
    assert "pipeline p goes on" in run("resume")
    daemon.until(lambda: daemon.batch("long"), "claimed")
    assert "asks to cancel long" in run("cancel", "long")
    assert "refused, the configuration before it holds" in run("reload", code=2)
    assert daemon.wait_done("long")["status"] == "cancelled"
    write(daemon, before)
    code, said = gapless("status", cwd=daemon.folder)
    assert (code, "WARNING" in said) == (0, False)
    assert daemon.stop() == 0


def test_a_spool_that_waits_for_a_restart_does_not_hide_the_daemon(daemon):
    """Nor does another address or token."""
    daemon.until(lambda: "ready" in gapless("status", cwd=daemon.folder)[1], "ready")
    text = daemon.config.read_text().replace("spool: ./spool", "spool: ./other")
    daemon.config.write_text(text.replace("port: 0", "port: 9, token_file: ./no-such-file"))
    code, said = gapless("status", cwd=daemon.folder)
    assert (code, "until it is restarted" in said, "ready" in said) == (0, True, True)
    code, said = gapless("reload", "--dry-run", cwd=daemon.folder)
    assert (code, "daemon.spool: found" in said) == (2, True)
    assert not (daemon.folder / "other").exists()


def test_without_a_daemon_a_mistake_is_the_answer(daemon):
    daemon.kill()
    daemon.config.write_text("nonsense")
    code, said = gapless("status", cwd=daemon.folder)
    assert (code, "found" in said, "WARNING" in said) == (2, True, False)
    daemon.config.unlink()
    code, said = gapless("status", cwd=daemon.folder)
    assert (code, "expected one here" in said) == (2, True)


def test_a_run_until_the_inbox_is_empty_is_found_too(make_daemon):
    daemon = make_daemon("fake:step_ms=20")
    daemon.drop("f.jsonl", request_lines(200, max_tokens=4000))
    daemon.start("--once")
    daemon.until(lambda: daemon.batch("f"), "claimed")
    daemon.config.write_text("nonsense")
    code, said = gapless("status", "--json", cwd=daemon.folder)
    found, _ = json.JSONDecoder().raw_decode(said)
    assert (code, found["pipelines"][0]["name"]) == (0, "p")
    gapless("cancel", "f", cwd=daemon.folder)
    assert daemon.process.wait(60) == 3


def test_completion_goes_by_what_runs(daemon):
    """A shell shows nothing but what may stand at the cursor."""
    write(daemon, None)
    assert "p" in completions("gapless pause ", daemon.folder)
