"""What keeps a file from going on, as whoever waits for it is told."""

import os

import pytest

from daemon import command_submit
from daemon.command_wait import Obstacle, Said
from daemon.folders import Folders
from daemon.spool_lock import lock_of_spool


class Clock:
    """A time that stands still until it is put on."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Case:
    """A pipeline, and a daemon that says what a test wants it to say, after a while if that is wanted."""

    def __init__(self, spool):
        self.clock = Clock()
        self.said, self.takes_s, self.num_asked, self.by_hand = Said(), 0.0, 0, None
        self.obstacle = Obstacle(Folders(spool / "p"), lambda: self.by_hand, self._ask, self.clock)

    def _ask(self):
        self.num_asked += 1
        self.clock.now_s += self.takes_s
        return self.said

    def after(self, seconds):
        """Look four times a second, and return the texts without those that were the same before."""
        end_s, texts = self.clock.now_s + seconds, [self.obstacle.text(is_waiting=True)]
        while self.clock.now_s < end_s:
            self.clock.now_s += 0.25
            texts += [text] if (text := self.obstacle.text(is_waiting=True)) != texts[-1] else []
        return texts


@pytest.fixture
def case(tmp_path):
    with lock_of_spool(tmp_path):
        yield Case(tmp_path)


def test_a_daemon_that_says_that_it_runs_is_no_obstacle(case):
    """And it is asked seldom."""
    assert case.after(60) == [None]
    assert 20 <= case.num_asked <= 31


def test_a_daemon_that_hangs_is_said_to_once(case):
    """Within seconds, however the numbers in its reason change, and no longer once it goes on."""
    case.takes_s, case.said = 5.0, Said(silent="no daemon answers: timed out")
    text = f" (pid {os.getpid()}) hangs: no daemon answers: timed out; waiting for it, `gapless doctor` says what to do"
    nothing, hangs = case.after(8)
    assert (nothing, hangs.endswith(text)) == (None, True)
    case.said = Said(silent="the main loop has not come round for 12.3 s")
    assert case.after(60) == [hangs]
    case.takes_s, case.said = 0.0, Said()
    assert case.after(3) == [hangs, None]


def test_a_daemon_that_does_not_listen_yet_is_no_obstacle(case):
    """It holds the spool a moment before it answers, and refuses until then."""
    case.said = Said(silent="no daemon answers: connection refused")
    assert case.after(4) == [None]
    case.said = Said()
    assert case.after(20) == [None]
    case.said = Said(silent="no daemon answers: connection refused")
    assert case.after(4) == [None], "another silence, which begins now"
    assert "hangs: no daemon answers: connection refused" in case.after(6)[-1]


def test_a_pause_by_hand_is_said_at_once_and_one_for_a_fault_when_the_daemon_tells(case):
    """What is done by hand stands in the folder."""
    case.said = Said(paused="the disk is full")
    assert case.after(3) == [None, "pipeline p is paused and takes no files: the disk is full"]
    case.by_hand = "lunch"
    assert case.after(0) == ["pipeline p is paused and takes no files: lunch"]
    case.by_hand, case.said = None, Said()
    assert case.after(3)[-1] is None


def test_without_a_daemon_nobody_is_asked(tmp_path):
    """It is said which spool has none."""
    case = Case(tmp_path)
    assert case.after(10) == [f"no daemon runs on {tmp_path}: `gapless run` starts one; waiting for it"]
    assert case.num_asked == 0


@pytest.mark.parametrize(
    ("because", "said"),
    [("the disk is full", Said(paused="the disk is full")), ("paused by hand: lunch", Said()), (None, Said())],
)
def test_the_daemon_is_not_asked_for_what_its_folder_knows_sooner(monkeypatch, because, said):
    """Else a pause that was just ended by hand is said once more, as the daemon had it a moment ago."""
    entries = [("q", "other"), ("p", because)]
    pipelines = [{"name": name, "engine": "e", "paused_because": reason} for name, reason in entries]
    status = {"engines": [{"name": "e", "state": "ready"}], "pipelines": pipelines}
    monkeypatch.setattr(command_submit, "why_silent", lambda _: None)
    monkeypatch.setattr(command_submit, "fetch_status", lambda _: status)
    assert command_submit._ask_daemon(None, "p") == said


@pytest.mark.parametrize(("state", "engine"), [("starting", "engine e is starting"), ("unloaded", None)])
def test_an_engine_that_comes_up_is_what_is_waited_for(monkeypatch, case, state, engine):
    """A large model takes minutes; one that is not needed yet is no obstacle."""
    status = {
        "engines": [{"name": "e", "state": state}],
        "pipelines": [{"name": "p", "engine": "e", "paused_because": None}],
    }
    monkeypatch.setattr(command_submit, "why_silent", lambda _: None)
    monkeypatch.setattr(command_submit, "fetch_status", lambda _: status)
    case.said = command_submit._ask_daemon(None, "p")
    assert case.said == Said(engine=engine)
    assert case.after(3)[-1] == (engine and f"waits: {engine}")
