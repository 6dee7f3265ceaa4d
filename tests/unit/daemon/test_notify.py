"""What a supervisor is told, and when."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor import Supervisor

from daemon.notify import Notifier, describe
from daemon.status import EngineState, EngineStatus, FileState, FileStatus, PipelineStatus, StatusSnapshot

IDLE = StatusSnapshot(0.0, 0.0, (), ())


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path / "notify")
    yield made
    made.close()


def notifier(supervisor: Supervisor, clock: Clock, **environment: str) -> Notifier:
    return Notifier.of_environment({"NOTIFY_SOCKET": supervisor.address} | environment, clock)


def test_readiness_and_the_end_are_said(supervisor: Supervisor) -> None:
    """The end with the time that it may take, so that the unit's own limit need not follow `drain_s`."""
    told = notifier(supervisor, Clock())
    told.ready()
    told.stopping(90.5)
    assert supervisor.receive() == ["READY=1", "STOPPING=1\nEXTEND_TIMEOUT_USEC=90500000"]


def test_an_abstract_name_is_reached_too() -> None:
    """Containers hand such a socket on."""
    supervisor = Supervisor(f"@gapless-test-{os.getpid()}")
    notifier(supervisor, Clock()).ready()
    assert supervisor.receive() == ["READY=1"]
    supervisor.close()


def test_the_watchdog_is_told_three_times_in_its_time(supervisor: Supervisor) -> None:
    """Neither at each look, of which there are four a second, nor so seldom that one lost message would be a hang."""
    clock = Clock()
    told = notifier(supervisor, clock, WATCHDOG_USEC="3000000")
    for _ in range(31):
        told.look(IDLE)
        clock.now_s += 0.1
    assert supervisor.receive().count("WATCHDOG=1") in {3, 4}


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid() + 1)}, {"WATCHDOG_USEC": "0"}],
    ids=["none asked for", "another process is meant", "zero"],
)
def test_no_watchdog_is_told_where_none_asks(supervisor: Supervisor, environment: dict[str, str]) -> None:
    """A child that inherits the environment is not the service."""
    told = notifier(supervisor, Clock(), **environment)
    told.look(IDLE)
    assert "WATCHDOG=1" not in supervisor.receive()


def test_this_process_is_meant_if_its_number_is_named(supervisor: Supervisor) -> None:
    """As systemd does it."""
    notifier(supervisor, Clock(), WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid())).look(IDLE)
    assert "WATCHDOG=1" in supervisor.receive()


def test_a_pipeline_that_hangs_silences_the_watchdog(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    """And is named in the log, once; when it gets on again, so does the watchdog."""
    clock = Clock()
    told = notifier(supervisor, clock, WATCHDOG_USEC="3000000")
    for _ in range(50):
        told.look(IDLE, hanging=("chat",))
        clock.now_s += 0.1
    assert "WATCHDOG=1" not in supervisor.receive()
    assert [record.getMessage() for record in caplog.records] == [
        "no progress in pipeline chat: the watchdog is not told that all is well"
    ]
    told.look(IDLE)
    assert "WATCHDOG=1" in supervisor.receive()


def test_the_status_is_said_when_it_changes(supervisor: Supervisor) -> None:
    """Each state once, however often the daemon looks."""
    told = notifier(supervisor, Clock())
    starting = StatusSnapshot(0, 0, (EngineStatus("main", EngineState.STARTING, "loading weights"),), ())
    ready = StatusSnapshot(0, 0, (EngineStatus("main", EngineState.READY, "a model"),), ())
    for snapshot in (starting, starting, ready, ready):
        told.look(snapshot)
    assert supervisor.receive() == [
        "STATUS=engine main starting (loading weights)",
        "STATUS=engine main ready",
    ]


def test_the_status_is_one_line_that_says_what_runs_and_why_not() -> None:
    """In the words of the status page, cut where it gets long."""
    files = (FileStatus("a.jsonl", FileState.IN_PROGRESS, 1, 0, 2),)
    pipelines = (
        PipelineStatus("chat", "main", num_waiting_files=3, files=files),
        PipelineStatus("night", "main", paused_because="the disk\nis full"),
    )
    engines = (EngineStatus("main", EngineState.READY, "x" * 400),)
    text = describe(StatusSnapshot(0, 0, engines, pipelines, is_draining=True))
    assert text == (
        "draining; engine main ready; pipeline chat: files run: 1, waiting: 3; "
        "pipeline night: files run: 0, waiting: 0, paused: the disk is full"
    )
    long = describe(StatusSnapshot(0, 0, (EngineStatus("main", EngineState.DOWN, "x" * 400),), ()))
    assert len(long) == 300
    assert long.endswith("...")


def test_nobody_there_is_no_trouble(tmp_path: Path) -> None:
    """Without a supervisor, or with one that has gone, the daemon goes on."""
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "3000000"}):
        told = Notifier.of_environment(environment, Clock())
        told.ready()
        told.look(IDLE)
        told.stopping(1)


def test_what_was_not_received_is_said_again(tmp_path: Path) -> None:
    """A message into a full or missing socket is not taken for said."""
    address = tmp_path / "late"
    told = Notifier.of_environment({"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "3000000"}, Clock())
    snapshot = StatusSnapshot(0, 0, (EngineStatus("main", EngineState.READY),), ())
    told.look(snapshot)
    supervisor = Supervisor(address)
    told.look(snapshot)
    assert supervisor.receive() == ["STATUS=engine main ready", "WATCHDOG=1"]
    supervisor.close()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NOTIFY_SOCKET": "vsock:2:1"}, "NOTIFY_SOCKET: found 'vsock:2:1', expected a path or @NAME"),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC: found 'soon', expected microseconds"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(
    environment: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is sent on its account."""
    Notifier.of_environment(environment, Clock()).look(IDLE)
    assert words in caplog.text
