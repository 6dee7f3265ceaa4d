"""`gapless pause` and `resume` on a real daemon: nothing new is begun, what runs finishes, restarts change nothing."""

import json

from commands import gapless, start_gapless
from daemon_process import request_lines


def counts(daemon, stem):
    return (daemon.batch(stem) or {"request_counts": {"completed": 0}})["request_counts"]


def test_a_paused_pipeline_takes_nothing_and_feeds_nothing_until_it_is_resumed(make_daemon):
    """In the middle of a file: its running requests end, the rest waits, across a restart too; then all of it is done."""
    daemon = make_daemon("fake:step_ms=10,eos_every=100000").start()
    daemon.drop("f.jsonl", request_lines(3000))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    code, said = gapless("pause", "p", "--reason", "the GPU is needed", cwd=daemon.folder)
    assert (code, "pipeline p is paused" in said, "no daemon" in said) == (0, True, False)
    daemon.until(lambda: "paused by hand" in daemon.log.read_text(), "noticed")

    def status():
        return json.loads(daemon.get("/status"))

    daemon.until(lambda: not status()["engines"][0]["num_running"], "running requests have ended")
    daemon.until(lambda: "the GPU is needed" in (status()["pipelines"][0]["paused_because"] or ""), "status says why")
    assert 'gapless_pipeline_paused{cause="by_hand",pipeline="p"} 1.0' in daemon.get("/metrics")
    daemon.drop("later.jsonl", request_lines(1))
    words = "paused by hand: the GPU is needed"
    daemon.until(lambda: words in gapless("explain", "later.jsonl", cwd=daemon.folder)[1], "complete, and waiting")
    assert daemon.stop() == 0
    before = len(daemon.lines("f.output.jsonl.partial"))
    assert 0 < before < 3000
    daemon.start()
    daemon.until(lambda: daemon.log.read_text().count("metrics and status: ") == 2, "its new port")
    daemon.until(lambda: "3000" in json.dumps(status()["pipelines"][0]["files"]), "taken up again")
    assert status()["engines"][0]["num_running"] == 0
    assert (daemon.inbox / "later.jsonl").exists()
    code, said = gapless("resume", cwd=daemon.folder)
    assert (code, "pipeline p goes on" in said) == (0, True)
    daemon.wait_done("later")
    daemon.until(lambda: counts(daemon, "f")["completed"] > before, "fed again")
    free = 'gapless_pipeline_paused{cause="by_hand",pipeline="p"} 0.0'
    daemon.until(lambda: free in daemon.get("/metrics"), "metrics say so")


def test_other_pipelines_of_the_same_engine_go_on(make_daemon):
    """A pause is of one pipeline; the file of the other is done meanwhile."""
    daemon = make_daemon()
    daemon.config.write_text(daemon.config.read_text().replace("pipelines: {p:", "pipelines: {q: {engine: e}, p:"))
    gapless("pause", "p", cwd=daemon.folder)
    daemon.drop("f.jsonl", request_lines(2))
    daemon.start()
    (daemon.folder / "g.jsonl").write_text(request_lines(2))
    code, said = gapless("submit", "--wait", "--pipeline", "q", "g.jsonl", cwd=daemon.folder)
    assert (code, "completed, 2 of 2" in said) == (0, True)
    assert (daemon.inbox / "f.jsonl").exists()


def test_once_leaves_what_is_paused_and_says_so(make_daemon):
    """It neither waits for ever nor calls that done: exit code 3."""
    daemon = make_daemon()
    daemon.drop("f.jsonl", request_lines(2))
    assert gapless("pause", "--reason", "not yet", cwd=daemon.folder)[0] == 0
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    assert "pipeline p is paused by hand, running requests finish: not yet" in daemon.log.read_text()
    assert (daemon.inbox / "f.jsonl").exists()


def test_waiting_for_a_paused_pipeline_says_why_nothing_happens(make_daemon):
    """The person who waits learns what another one has paused."""
    daemon = make_daemon().start()
    daemon.port()
    gapless("pause", "--reason", "maintenance", cwd=daemon.folder)
    (daemon.folder / "f.jsonl").write_text(request_lines(2))
    waiting = start_gapless("submit", "--wait", "f.jsonl", cwd=daemon.folder)
    while "pipeline p is paused and takes no files: maintenance" not in (line := waiting.stdout.readline()):
        assert line
    gapless("resume", "p", cwd=daemon.folder)
    assert "completed, 2 of 2" in waiting.communicate(timeout=60)[0]


def test_names_and_states_that_do_not_fit_are_said(make_daemon):
    """An unknown pipeline is a mistake, resuming what runs is none."""
    daemon = make_daemon()
    code, said = gapless("pause", "q", cwd=daemon.folder)
    assert (code, said) == (2, "found no pipeline 'q', expected one of p")
    code, said = gapless("resume", cwd=daemon.folder)
    assert code == 0
    assert said.splitlines() == ["pipeline p was not paused by hand", "no daemon runs now: `gapless run` starts one"]


def test_a_paused_file_can_be_cancelled_and_retried_later(make_daemon):
    """A pause does not hold up its end; what was cut is what a retry runs."""
    daemon = make_daemon("fake:step_ms=10").start()
    daemon.drop("f.jsonl", request_lines(3000))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    gapless("pause", cwd=daemon.folder)
    daemon.until(lambda: "paused by hand" in daemon.log.read_text(), "noticed")
    assert gapless("cancel", "f", cwd=daemon.folder)[0] == 0
    daemon.wait_done("f")
    cut = [line["custom_id"] for line in daemon.lines("f.errors.jsonl")]
    assert 0 < len(cut) < 3000
    code, said = gapless("retry", "f", cwd=daemon.folder)
    assert (code, f"{len(cut):,} requests of f again: {len(cut):,} batch_cancelled" in said) == (0, True)
    retried = [json.loads(line)["custom_id"] for line in (daemon.inbox / "f~retry.jsonl").read_text().splitlines()]
    assert retried == cut


def test_resume_has_an_engine_tried_again_that_was_given_up(make_daemon):
    """Its processes died too often; a person mends the cause and says go on, without restarting the daemon."""
    daemon = make_daemon(engine=", max_restarts: 0").start()
    daemon.until(lambda: "engine e is ready" in daemon.log.read_text(), "ready")
    daemon.kill_child("engine")
    daemon.until(lambda: "`gapless resume` tries again" in daemon.log.read_text(), "given up")
    daemon.drop("f.jsonl", request_lines(3))
    code, said = gapless("resume", cwd=daemon.folder)
    assert (code, "its engine is tried again" in said) == (0, True)
    daemon.wait_done("f")
    assert len(daemon.results("f")) == 3
