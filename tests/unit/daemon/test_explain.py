"""What is said of a file that was taken: while it runs, when it has ended, and where nothing of it is found."""

from pathlib import Path

import pytest
from explain_world import Case

from daemon.batch_object import BatchStatus
from daemon.dropped_name import note_dropped_name
from daemon.durable import DiskStorage
from daemon.explain import explain
from daemon.folders import Folders
from daemon.journal_records import Sealed
from daemon.spool_lock import lock_of_spool


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path)


@pytest.fixture
def running(case):
    """A daemon holds the spool; this process is it."""
    with lock_of_spool(case.spool):
        yield case


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
    assert said.startswith(f"{running.p.work / 'f.jsonl'}: it is being run: 2 of 1,200 requests ended")
    assert "engine e is restarting (the engine process killed by SIGKILL)" in said
    assert "f.output.jsonl.partial" in said
    assert "next start" not in said
    assert path.read_bytes() == content


def test_a_file_that_is_being_cancelled(running):
    """Of a large file the lines of what was cut take a while to be written."""
    (running.p.work / "f.jsonl").write_text("x")
    running.journal(num_requests=1200, num_lines=2).close()
    running.batch("cancelling", completed=2, failed=0)
    assert "it is being cancelled: 2 of 1,200 requests ended" in running.say()


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


@pytest.mark.parametrize("order", ["f.cancel", "f.jsonl.cancel"])
def test_a_file_that_somebody_wants_ended_is_not_said_to_go_on(case, order):
    """The daemon's next start ends it."""
    case.journal()
    (case.p.work / "f.jsonl").touch()
    assert "It goes on at the daemon's next start." in case.say()
    (case.p.inbox / order).touch()
    said = case.say()
    assert f"It is to be cancelled at the daemon's next start, as {order} in the inbox asks." in said
    assert "goes on" not in said


def test_a_reason_that_asks_ends_with_its_own_mark(case):
    case.batch(BatchStatus.FAILED)
    (case.p.failed / "f.jsonl").write_text("x")
    (case.p.failed / "f.reason.json").write_text('{"message": "cut off: was it copied whole?"}')
    assert "was it copied whole? Mend it" in case.say()


def test_a_file_that_failed(case):
    case.batch(BatchStatus.FAILED)
    (case.p.failed / "f.jsonl").write_text("x")
    (case.p.failed / "f.reason.json").write_text('{"message": "found nothing, expected a request"}')
    said = case.say()
    assert "it could not be run: found nothing, expected a request. Mend it" in said
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
