"""kill -9 of daemon, engine and text process in the middle of a file: each request ends with exactly one result.

More than 20 real kills in all.
"""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from commands import gapless
from daemon_process import Daemon, request_lines

from daemon.outbox import PublishStep

COUNT = 300
DYING_DAEMON = Path(__file__).parents[1] / "support" / "dying_daemon.py"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The output of an undisturbed run, without the time of the claim."""
    daemon = Daemon(tmp_path_factory.mktemp("undisturbed"), "fake:step_ms=2", is_forked=True)
    daemon.drop("f.jsonl", request_lines(COUNT, temperature=0.7))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    return _texts(daemon)


def _texts(daemon):
    return {key: line["response"]["body"]["choices"] for key, line in daemon.results("f").items()}


def _run_until(daemon, num_completed):
    daemon.drop("f.jsonl", request_lines(COUNT, temperature=0.7))
    daemon.start()
    _wait_until(daemon, num_completed)


def _wait_until(daemon, num_completed):
    def has_come_so_far():
        paths = list(daemon.outbox.glob("f.output.jsonl*"))
        return any(path.exists() and path.read_bytes().count(b"\n") >= num_completed for path in paths)

    daemon.until(has_come_so_far, "in mid-file")


@pytest.mark.parametrize("role", ["engine", "text"])
def test_a_child_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled(make_daemon, undisturbed, role):
    daemon = make_daemon("fake:step_ms=2")
    _run_until(daemon, 60)
    daemon.kill_child(role)
    batch = daemon.wait_done("f")
    assert batch["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0}
    assert _texts(daemon) == undisturbed
    assert f"the {role} process" in daemon.log.read_text()
    assert daemon.stop() == 0


@pytest.mark.parametrize("when", [1, 100, 250])
def test_a_daemon_that_is_killed_goes_on_where_it_was(make_daemon, undisturbed, when):
    daemon = make_daemon("fake:step_ms=2")
    daemon.start()
    children = daemon.until(lambda: len(daemon.children()) == 2 and daemon.children(), "children up")
    daemon.drop("f.jsonl", request_lines(COUNT, temperature=0.7))
    _wait_until(daemon, when)
    daemon.kill()
    daemon.until(lambda: not any(_is_alive(pid) for pid in children.values()), "the children ended with it")
    (path,) = daemon.outbox.glob("f.output.jsonl*")  # on a busy machine it may be the whole by now
    before = path.read_bytes()
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert _texts(daemon) == undisturbed
    kept = before[: before.rindex(b"\n") + 1]
    assert (daemon.outbox / "f.output.jsonl").read_bytes().startswith(kept), "finished results are unchanged"


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_kills_of_everything_again_and_again(make_daemon, undisturbed):
    """Six kills at different moments of one file."""
    daemon = make_daemon("fake:step_ms=2")
    _run_until(daemon, 10)
    for number, role in enumerate(["engine", "daemon", "text", "engine", "daemon", "text"]):
        done = 20 + 40 * number
        path = daemon.outbox / "f.output.jsonl.partial"
        daemon.until(
            lambda path=path, done=done: not path.exists() or path.read_bytes().count(b"\n") >= done, "progress"
        )
        if role == "daemon":
            daemon.kill()
            daemon.start()
        else:
            daemon.kill_child(role)
    daemon.wait_done("f")
    assert _texts(daemon) == undisturbed


def test_kills_of_all_processes_at_once_and_torn_journals(make_daemon, undisturbed):
    """Three times everything dies within a moment; twice the journal then ends in a record that was not written whole."""
    daemon = make_daemon("fake:step_ms=2")
    _run_until(daemon, 10)
    for done in (40, 120, 200):
        _wait_until(daemon, done)
        daemon.until(lambda: len(daemon.children()) == 2, "children up")
        assert daemon.kill_all() == 3
        if done > 40:
            daemon.tear_journals(random.Random(done))
        daemon.start()
    assert daemon.wait_done("f")["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0}
    assert _texts(daemon) == undisturbed
    assert daemon.stop() == 0


def test_kills_between_each_two_steps_of_publishing(make_daemon):
    """The daemon dies behind each step, by its name; what it had published stays, and the rest follows, byte for byte."""
    content = request_lines(3) + "{broken\n"
    daemon = make_daemon()
    daemon.drop("reference.jsonl", content)
    seen = {}
    for step in PublishStep:
        daemon.program = (str(DYING_DAEMON), step, f"f-{step}")
        daemon.drop(f"f-{step}.jsonl", content)
        daemon.start()
        assert daemon.process.wait(60) == -signal.SIGKILL
        outbox = {path.name: path.read_bytes() for path in daemon.outbox.iterdir()}
        seen |= {name: data for name, data in outbox.items() if not name.endswith((".partial", ".tmp", ".batch.json"))}
    daemon.program = ("-m", "daemon.cli")
    daemon.start("--once")
    assert daemon.process.wait(60) == 0, "nothing was left but the journal, and that had gone"
    expected = _lines(daemon, "reference")
    for step in PublishStep:
        assert _lines(daemon, f"f-{step}") == expected
        assert daemon.batch(f"f-{step}")["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    assert not list((daemon.root / "work").iterdir())
    assert len(list((daemon.root / "done").iterdir())) == len(PublishStep) + 1
    after = {path.name: path.read_bytes() for path in daemon.outbox.iterdir()}
    assert seen.items() <= after.items(), "what was published is unchanged"


def _lines(daemon, stem):
    """Output and errors without the time of the claim."""
    paths = [daemon.outbox / f"{stem}{suffix}" for suffix in (".output.jsonl", ".errors.jsonl")]
    return [re.sub(rb'"created":\d+', b"", path.read_bytes()).replace(stem.encode(), b"STEM") for path in paths]


def test_a_spool_is_free_at_once_when_its_daemon_was_killed(make_daemon):
    daemon = make_daemon().start()
    daemon.port()
    daemon.kill()
    daemon.drop("f.jsonl", request_lines(1))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert len(daemon.results("f")) == 1


def test_an_engine_that_dies_without_requests_is_paused_with_its_reason_instead_of_a_crash_loop(make_daemon):
    daemon = make_daemon("fake:load_ms=300", engine=", max_restarts: 1").start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    for _ in range(2):
        pid = daemon.children()["engine"]
        daemon.kill_child("engine")
        daemon.until(
            lambda pid=pid: daemon.children().get("engine", pid) != pid or "is paused" in daemon.log.read_text(), "seen"
        )
    daemon.until(lambda: "is paused: it died 2 times" in daemon.log.read_text(), "paused")
    daemon.drop("f.jsonl", request_lines(3))
    assert "engine e is paused: it died 2 times" in daemon.wait_paused("engine")
    gapless("resume", cwd=daemon.folder)
    daemon.wait_going_on()
    daemon.wait_done("f")
    for _ in range(2):
        pid = daemon.children()["engine"]
        daemon.kill_child("engine")
        daemon.until(
            lambda pid=pid: daemon.children().get("engine", pid) != pid or daemon.status()["paused_because"], "seen"
        )
    daemon.wait_paused("engine")
    daemon.drop("f.jsonl", request_lines(3))
    started_s = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - started_s < 15, "nothing will come of a paused engine, so nothing is waited for"
    assert (daemon.inbox / "f.jsonl").exists()


def test_once_ends_when_the_engine_is_paused_and_the_next_start_does_the_rest(make_daemon):
    """Nobody is there to resume it; what is left stays in work/."""
    daemon = make_daemon("fake:step_ms=20,load_ms=1000", engine=", max_restarts: 0")
    daemon.drop("f.jsonl", request_lines(200, max_tokens=200))
    daemon.start("--once")
    daemon.until(lambda: (batch := daemon.batch("f")) and batch["status"] == "in_progress", "running")
    daemon.kill_child("engine")  # with requests in flight: it does not count
    daemon.until(lambda: "run apart from others now" in daemon.log.read_text(), "seen")
    daemon.kill_child("engine")  # while it starts
    assert daemon.process.wait(60) == 3
    assert "is paused" in daemon.log.read_text()
    assert (daemon.root / "work" / "f.jsonl").exists()
    daemon.config.write_text(daemon.config.read_text().replace("step_ms=20,load_ms=1000", ""))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert len(daemon.results("f")) == 200
