"""What is said of a file, wherever it is, with a daemon and without."""

import json
import os
import time
from pathlib import Path

import pytest

from daemon.batch_object import BatchInfo, BatchObject, BatchStatus
from daemon.dropped_name import note_dropped_name
from daemon.durable import DiskStorage
from daemon.errors import NotRunningError
from daemon.explain import explain
from daemon.folders import Folders
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Sealed
from daemon.settings import load_settings
from daemon.spool_lock import lock_of_spool

CONFIG = """
daemon: {spool: ./spool, settle_s: 5, rescan_s: 3}
engines: {e: {model: {path: 'fake:'}}}
pipelines: {p: {engine: e}, q: {engine: e}}
"""


class Case:
    """A spool with the folders of two pipelines, and what a daemon there would say."""

    def __init__(self, root):
        (root / "gapless.yaml").write_text(CONFIG)
        self.settings = load_settings([root / "gapless.yaml"])
        self.spool = root / "spool"
        self.p, self.q = Folders(self.spool / "p"), Folders(self.spool / "q")
        self.p.make()
        self.q.make()
        self.said = {"engines": [], "pipelines": []}

    def drop(self, name="f.jsonl", age_s=60.0, folders=None):
        path = (folders or self.p).inbox / name
        path.write_text("x")
        self.age(path, age_s)
        return path

    def age(self, path, age_s):
        """Let it be changed so long ago, as far as a person can make it: what the kernel notes is now."""
        os.utime(path, (time.time() - age_s, time.time() - age_s))

    def say(self, given="f.jsonl"):
        return str(explain(self.settings, Path(given), lambda: self.said))

    def journal(self, stem="f", num_requests=3, num_lines=0, source="f.jsonl"):
        journal = Journal.create(self.p.work / f"{stem}.journal", Header("f" * 64, 1, source, 1, 1, "m", {}))
        if num_requests is not None:
            journal.append_started(1, num_requests)
        for index in range(num_lines):
            journal.append_result(index, b"{}\n", LineNumbers())
        journal.sync()
        return journal

    def batch(self, status, stem="f", source="f.jsonl", completed=2, failed=1):
        batch = BatchObject(BatchInfo(stem, source, "p", "m", "/v1/completions", 1), time.time).as_dict()
        batch |= {
            "status": status,
            "request_counts": {"total": completed + failed, "completed": completed, "failed": failed},
        }
        (self.p.outbox / f"{stem}.batch.json").write_text(json.dumps(batch))


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
            raise NotRunningError("no answer")

        said = str(explain(running.settings, Path("f.jsonl"), silent))
        assert "taken at the next look, every 3 s" in said
        assert f"(pid {os.getpid()})" in said

    def test_with_a_paused_pipeline(self, running):
        running.said["pipelines"] = [{"name": "p", "paused_because": "the disk is full", "files": []}]
        running.drop()
        said = running.say()
        assert "the pipeline is paused: the disk is full" in said
        assert "by itself" in said

    def test_with_a_daemon_that_may_not_read_it(self, running):
        """Whoever asks may, as root may read everything."""
        running.said["pipelines"] = [{"name": "p", "left_files": ["f.jsonl: cannot read f.jsonl: permission denied"]}]
        running.drop()
        assert "the daemon left it: cannot read f.jsonl: permission denied. It is tried again" in running.say()

    def test_with_other_files_before_it(self, running):
        running.said["pipelines"] = [{"name": "p", "paused_because": None, "files": [{}] * 128}]
        running.drop()
        assert "128 files are being run" in running.say()

    def test_in_two_pipelines(self, case):
        case.drop()
        case.drop(folders=case.q)
        said = case.say()
        assert str(case.p.inbox) in said
        assert str(case.q.inbox) in said


def test_a_file_that_was_taken_and_is_looked_through(case):
    (case.p.work / "f.jsonl").write_text("x")
    said = case.say()
    assert "its lines are being counted and checked" in said
    assert "goes on at the daemon's next start" in said


def test_a_file_that_cannot_be_looked_through_for_now(running):
    (running.p.work / "f.jsonl").write_text("x")
    running.said["pipelines"] = [{"name": "p", "paused_because": "cannot write f.batch.json: permission denied"}]
    assert "It waits: the pipeline is paused: cannot write f.batch.json" in running.say()


def test_a_file_that_runs(running):
    """The journal says how far it is, its torn end is no matter, and it is left as it is."""
    (running.p.work / "f.jsonl").write_text("x")
    running.journal(num_requests=1200, num_lines=2).close()
    path = running.p.work / "f.journal"
    with path.open("ab") as file:
        file.write(b"torn")
    content = path.read_bytes()
    (running.p.outbox / "f.output.jsonl.partial").write_text("{}\n")
    running.said["engines"] = [{"name": "e", "state": "restarting", "detail": "the engine process killed by SIGKILL"}]
    said = running.say()
    assert said.startswith(f"{running.p.work / 'f.jsonl'}: it is being run: 2 of 1,200 requests have ended")
    assert "engine e is restarting (the engine process killed by SIGKILL)" in said
    assert "f.output.jsonl.partial" in said
    assert "next start" not in said
    assert path.read_bytes() == content


def test_a_file_that_is_being_cancelled(running):
    """Of a large file the lines of what was cut take a while to be written."""
    (running.p.work / "f.jsonl").write_text("x")
    running.journal(num_requests=1200, num_lines=2).close()
    (running.p.outbox / "f.batch.json").write_text('{"status": "cancelling"}')
    assert "it is being cancelled: 2 of 1,200 requests have ended" in running.say()


def test_a_file_that_is_published(case):
    (case.p.work / "f.jsonl").write_text("x")
    journal = case.journal(num_requests=0)
    journal.append_sealed(Sealed("{}", "{}"))
    journal.sync()
    journal.close()
    assert "its results are being published" in case.say()
    (case.p.work / "f.jsonl").unlink()
    assert "Only its journal is left" in case.say()


def test_a_journal_that_cannot_be_used(case):
    (case.p.work / "f.jsonl").write_text("x")
    (case.p.work / "f.journal").write_text("not a journal at all, whoever wrote it")
    said = case.say()
    assert "its journal cannot be used" in said
    assert "drop the file again" in said


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (BatchStatus.COMPLETED, "it is done: 2 answered, 1 in the errors file"),
        (BatchStatus.CANCELLED, "it was cancelled"),
        (BatchStatus.EXPIRED, "its deadline passed"),
        (BatchStatus.FAILED, "could not be run to its end"),
    ],
)
@pytest.mark.parametrize("given", ["f.jsonl", "f", "spool/p/inbox/f.jsonl", "/somewhere/else/f.jsonl"])
def test_a_file_that_has_ended(case, status, words, given):
    case.batch(status)
    (case.p.outbox / "f.output.jsonl").write_text("{}\n")
    (case.p.done / "f.jsonl").write_text("x")
    said = case.say(given)
    assert words in said
    assert str(case.p.outbox / "f.output.jsonl") in said
    assert said.startswith(str(case.p.done / "f.jsonl"))


def test_a_file_whose_results_were_taken_away(case):
    (case.p.done / "f.jsonl").write_text("x")
    assert "no longer in the outbox" in case.say()


@pytest.mark.parametrize("folder", ["work", "done", "failed", "outbox"])
def test_a_file_whose_name_only_begins_like_it_says_nothing_of_it(case, folder):
    """f.part1 is another stem than f."""
    for name in ("f.part1.jsonl", "f.part1.batch.json", "f.part1.output.jsonl", "f.part1.journal"):
        (getattr(case.p, folder) / name).write_text("{}")
    assert "found in no folder" in case.say("f.jsonl")


@pytest.mark.parametrize("folder", ["inbox", "work", "done", "failed"])
def test_a_result_that_was_dropped_as_an_input_is_a_file_of_its_own(case, folder):
    """f.output.jsonl in an inbox has nothing to do with f, and neither have its results with those of f."""
    (getattr(case.p, folder) / "f.output.jsonl").write_text("x")
    assert "found in no folder" in case.say("f")
    case.batch(BatchStatus.COMPLETED)
    (case.p.outbox / "f.output.jsonl").write_text("{}")
    assert f"Results: {case.p.outbox / 'f.batch.json'}, {case.p.outbox / 'f.output.jsonl'}." in case.say("f")
    assert str(case.p.outbox / "f.output.jsonl") not in case.say("f.output")


def test_a_file_that_got_a_number_is_found_by_its_own_name_before_its_journal_too(case):
    """While its lines are counted nothing but the note of its claim knows how it was called."""
    (case.p.work / "f~2.jsonl").write_text("x")
    note_dropped_name(DiskStorage(), case.p.work, "f~2", "f.jsonl")
    said = case.say("f.jsonl")
    assert said.startswith(f"{case.p.work / 'f~2.jsonl'}: it was taken and its lines are being counted")
    assert "has a number" in said


def test_a_file_that_failed(case):
    case.batch(BatchStatus.FAILED)
    (case.p.failed / "f.jsonl").write_text("x")
    (case.p.failed / "f.reason.json").write_text('{"message": "found nothing, expected a request"}')
    said = case.say()
    assert "it could not be run: found nothing, expected a request" in said
    assert "drop it again" in said


def test_a_file_that_was_dropped_a_second_time(case):
    case.batch(BatchStatus.COMPLETED)
    (case.p.work / "f~2.jsonl").write_text("x")
    case.journal("f~2").close()
    case.batch(BatchStatus.COMPLETED, stem="f~3")
    case.batch(BatchStatus.COMPLETED, stem="other~2", source="other.jsonl")
    said = case.say()
    assert said.count("Its name has a number") == 2
    assert "0 of 3 requests" in said
    assert "other" not in said
    assert case.say("f~2.jsonl").count("Its name has a number") == 0


def test_a_file_that_runs_again_what_failed_of_another(case):
    case.batch(BatchStatus.COMPLETED)
    for stem in ("f~retry", "f~mine"):
        (case.p.work / f"{stem}.jsonl").write_text("x")
        case.journal(stem).close()
    said = case.say("f")
    assert "f~retry.jsonl" in said
    assert "It runs again what failed of that file." in said
    assert "has a number" not in said
    assert "f~mine" not in said, "a name that somebody gave"


def test_a_file_of_a_pipeline_that_is_in_no_configuration_any_more(case):
    old = Folders(case.spool / "old")
    old.make()
    path = case.drop(folders=old)
    assert f"{path}: it waits: {old.root} has files (begun: 0, in the inbox: 1)" in case.say("f")
    assert f"{path}: it waits: " in case.say("f.jsonl")
    assert "found in no folder" in case.say("g")


def test_a_file_that_is_nowhere(case, tmp_path):
    found = explain(case.settings, Path("none.jsonl"), dict)
    assert not found.is_found
    assert "found in no folder of the pipelines p, q" in str(found)
    (tmp_path / "mine.jsonl").write_text("x")
    found = explain(case.settings, tmp_path / "mine.jsonl", dict)
    assert "outside of the spool" in str(found)
    assert str(case.p.inbox) in str(found)


def test_names_are_said_on_one_line(case):
    case.drop("two\nlines.png")
    assert len(case.say("two\nlines.png").splitlines()) == 2


@pytest.mark.parametrize("suffix", ["output.jsonl", "output.txt", "errors.jsonl", "batch.json", "output.jsonl.partial"])
def test_a_result_is_told_as_its_file(case, suffix):
    """A person looks into the outbox and asks about what lies there."""
    case.batch(BatchStatus.COMPLETED)
    assert case.say(f"spool/p/outbox/f.{suffix}") == case.say("f.jsonl")
    assert "found in no folder" not in case.say(f"f.{suffix}")
    assert "found in no folder" in case.say(f"g.{suffix}")
