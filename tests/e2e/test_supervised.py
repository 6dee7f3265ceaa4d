"""The daemon under a supervisor: what systemd would be told of a real one."""

import re
import signal
from pathlib import Path

import pytest
from daemon_process import request_lines
from supervisor import Supervisor


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    made = Supervisor(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", made.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    yield made
    made.close()


def test_a_supervisor_hears_of_readiness_of_progress_and_of_the_end(make_daemon, supervisor):
    """READY=1 when files are taken and HTTP answers, WATCHDOG=1 while the loop runs, STOPPING=1 before the drain."""
    daemon = make_daemon(daemon=", drain_s: 7").start()
    supervisor.wait_for(lambda messages: "READY=1" in messages, "ready")
    assert daemon.inbox.is_dir()
    assert "gapless_build_info" in daemon.get("/metrics")
    daemon.drop("f.jsonl", request_lines(4))
    daemon.wait_done("f")
    supervisor.wait_for(lambda messages: messages.count("WATCHDOG=1") >= 3, "watchdog")
    supervisor.wait_for(lambda messages: any("engine e ready" in message for message in messages), "status")
    assert daemon.stop() == 0
    messages = supervisor.receive()
    assert messages.count("READY=1") == 1
    (stopping,) = [message for message in messages if message.startswith("STOPPING=1")]
    assert int(re.search(r"EXTEND_TIMEOUT_USEC=(\d+)", stopping)[1]) > 7_000_000
    assert messages.index(stopping) > messages.index("READY=1")


def test_a_daemon_that_stands_still_tells_the_watchdog_nothing(make_daemon, supervisor):
    """Its messages come from the loop, not from a thread that would go on without it."""
    daemon = make_daemon().start()
    supervisor.wait_for(lambda messages: "WATCHDOG=1" in messages, "watchdog")
    daemon.process.send_signal(signal.SIGSTOP)
    daemon.until(lambda: _state(daemon.process.pid) == "T", "stopped")
    supervisor.receive()
    supervisor.messages.clear()
    with pytest.raises(AssertionError, match="not within"):
        supervisor.wait_for(lambda messages: "WATCHDOG=1" in messages, "watchdog", deadline_s=1.5)
    daemon.process.send_signal(signal.SIGCONT)
    supervisor.wait_for(lambda messages: "WATCHDOG=1" in messages, "watchdog again")
    assert daemon.stop() == 0


def test_a_daemon_that_cannot_start_is_never_called_ready(make_daemon, supervisor):
    """What is wrong with the environment is found before READY=1."""
    daemon = make_daemon()
    daemon.root.mkdir(parents=True)
    daemon.root.joinpath("outbox").write_text("a file where a folder should be")
    daemon.start()
    assert daemon.process.wait(60) == 4
    assert "READY=1" not in supervisor.receive()


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
