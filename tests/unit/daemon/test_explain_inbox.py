"""What is said of a file that still lies in an inbox: why it was not taken, and what would have it taken."""

import os
import time
from errno import EACCES
from pathlib import Path

import pytest
from explain_world import Case

from daemon.errors import NotRunningError, StorageError
from daemon.explain import explain
from daemon.hold import REMOVED
from daemon.spool_lock import lock_of_spool


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path)


@pytest.fixture
def running(case):
    """A daemon holds the spool; this process is it."""
    with lock_of_spool(case.spool):
        yield case


@pytest.fixture
def long_ago(monkeypatch):
    """Let a minute pass since every change."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("photo.png", ["extension '.png'", "stays where it is"]),
        (".hidden.jsonl", ["begins with a dot"]),
        ("copy.jsonl.part", ["unfinished copy"]),
        ("x" * 210 + ".jsonl", ["216 bytes", "failed/", "shorter name"]),
    ],
)
def test_a_name_that_is_not_taken(case, name, words):
    case.drop(name)
    said = case.say(name)
    assert [word for word in words if word not in said] == []
    assert "No daemon runs on" in said


@pytest.mark.parametrize(
    ("name", "words"), [("f.options.yaml", "taken with the file that it is for"), ("f.cancel", "asks to cancel a file")]
)
def test_what_belongs_to_another_file(case, name, words):
    case.drop(name)
    assert words in case.say(name)
    assert "stays where it is" not in case.say(name)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a named pipe"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to("/nowhere"), "a symbolic link"),
    ],
)
def test_a_thing_that_is_no_file(case, make, what):
    make(case.p.inbox / "f.jsonl")
    assert f"it is {what}, not an ordinary file" in case.say()


@pytest.mark.parametrize("name", ["f.options.yaml", "f.cancel"])
@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/nowhere")])
def test_a_thing_that_is_no_file_does_not_wait_for_one_either(case, make, name):
    """It will never be taken with a file, or end one."""
    make(case.p.inbox / name)
    said = case.say(name)
    assert "stays where it is" in said
    assert "not an ordinary file" in said


@pytest.mark.parametrize("given", ["", ".", "..", "spool/p/.."])
def test_a_folder_that_is_no_name_of_a_file(case, given):
    found = explain(case.settings, Path(given), dict)
    assert not found.is_found
    assert "found a folder, expected a file" in str(found)


def test_a_file_in_the_inbox_is_found_by_its_stem(case):
    case.drop("f.jsonl")
    case.drop("f.csv")
    case.drop("f.more.jsonl")
    case.drop("f.options.yaml")
    said = case.say("f")
    assert [str(case.p.inbox / name) in said for name in ("f.csv", "f.jsonl")] == [True, True]
    assert "more" not in said
    assert "options" not in said


def test_a_file_that_somebody_writes(case):
    with case.drop().open("a"):
        assert "open for writing" in case.say()


def test_a_file_that_was_changed_just_now(case):
    case.drop()
    said = case.say()
    assert "it was changed 0." in said
    assert "daemon.settle_s, 5 s" in said


def test_a_file_that_may_not_be_read(case, monkeypatch):
    path = case.drop()
    real_open = os.open

    def denied(opened, *rest):
        if str(opened) == str(path):
            raise PermissionError(13, "denied")
        return real_open(opened, *rest)

    monkeypatch.setattr(os, "open", denied)
    said = case.say()
    assert "permission denied" in said
    assert "tried again every 3 s" in said
    assert "chmod" in said


@pytest.mark.usefixtures("long_ago")
class TestComplete:
    """A file that is complete, and why it is not taken."""

    def test_without_a_daemon(self, case):
        case.drop()
        said = case.say()
        assert "is complete and waits for a daemon" in said
        assert "`gapless run` starts one" in said

    def test_with_a_daemon_that_says_nothing(self, running):
        running.drop()

        def silent():
            raise NotRunningError("no daemon answers: timed out")

        said = str(explain(running.settings, Path("f.jsonl"), silent))
        assert "it is complete and waits: the daemon runs, but it does not answer." in said
        assert said.endswith("\nNo daemon answers: timed out.")

    def test_with_a_daemon_whose_token_is_not_to_be_had(self, running):
        """Nothing is known of it, and so nothing is held against it."""
        running.drop()

        def locked():
            raise StorageError("cannot read token: permission denied", Path("token"), EACCES)

        said = str(explain(running.settings, Path("f.jsonl"), locked))
        assert "taken at the next look, every 3 s" in said
        assert f"(pid {os.getpid()})" in said

    def test_with_a_daemon_whose_loop_hangs(self, running):
        """What it said before that is old; a file that was taken waits for it too."""
        running.said["age_s"] = 42.0
        running.drop()
        said = running.say()
        assert "it is complete and waits: the daemon runs, but it does not answer." in said
        assert "The daemon hangs: the main loop has not come round for 42.0 s" in said
        running.journal(stem="g")
        (running.p.work / "g.jsonl").touch()
        assert "It waits: the daemon does not answer." in running.say("g.jsonl")

    def test_with_a_paused_pipeline(self, running):
        running.said["pipelines"] = [{"name": "p", "paused_because": "the disk is full", "files": []}]
        running.drop()
        said = running.say()
        assert "the pipeline is paused: the disk is full" in said
        assert "by itself" in said

    def test_with_a_pipeline_whose_engine_is_given_up(self, running):
        """Nothing ends that by itself."""
        why = "engine e is paused: it died 6 times in a row; `gapless resume` tries again"
        running.said["pipelines"] = [{"name": "p", "paused_because": why, "files": []}]
        running.drop()
        said = running.say()
        assert f"the pipeline is paused: {why}." in said
        assert "by itself" not in said

    def test_with_a_pipeline_that_the_configuration_no_longer_has(self, running):
        running.said["pipelines"] = [{"name": "p", "paused_because": REMOVED, "files": []}]
        running.drop()
        said = running.say()
        assert "Bring the pipeline back, or move the file" in said
        assert "by itself" not in said

    def test_with_a_daemon_that_may_not_read_it(self, running):
        """Whoever asks may, as root may read everything."""
        running.said["pipelines"] = [{"name": "p", "left_files": ["f.jsonl: cannot read f.jsonl: permission denied"]}]
        running.drop()
        assert "the daemon left it: cannot read f.jsonl: permission denied. It is tried again" in running.say()

    def test_with_other_files_before_it(self, running):
        running.said["pipelines"] = [{"name": "p", "paused_because": None, "files": [{}] * 128}]
        running.drop()
        assert "being run: 128 files, with room for 128 at once" in running.say()

    def test_in_two_pipelines(self, case):
        case.drop()
        case.drop(folders=case.q)
        said = case.say()
        assert str(case.p.inbox) in said
        assert str(case.q.inbox) in said
