"""What is dropped, how, and what becomes of it: names, writers, permissions, watches, folders that come and go."""

import json
import os
import shutil
import unicodedata
from pathlib import Path

from daemon_process import request_lines

ORDINARY_USER = Path(__file__).parents[1] / "support" / "ordinary_user.py"
ONE = request_lines(1)


def test_names_of_all_kinds_go_all_the_way(make_daemon):
    """Blanks, quotes, newlines, two forms of one letter, bytes that are no UTF-8, 200 bytes; 201 are refused with a reason."""
    raw = [
        b"with space.jsonl",
        b"quote'\".jsonl",
        b"new\nline\ttab.jsonl",
        b"UPPER.JSONL",
        b"not \xff utf-8.jsonl",
        b"%s {x} $HOME `id` \\.jsonl",
        *(unicodedata.normalize(form, "\u00e9t\u00e9 \U0001f600.jsonl").encode() for form in ("NFC", "NFD")),
        b"x" * 194 + b".jsonl",
    ]
    names = [os.fsdecode(name) for name in raw]
    too_long = "y" * 195 + ".jsonl"
    daemon = make_daemon()
    daemon.inbox.mkdir(parents=True)
    for name in (*names, too_long):
        (daemon.inbox / name).write_text(ONE)
    daemon.start("--once")
    assert daemon.process.wait(60) == 3, "the one that is too long has failed"
    assert sorted(os.listdir(daemon.root / "done")) == sorted(names)  # noqa: PTH208
    for name in names:
        assert len(daemon.results(name[: name.rindex(".")])) == 1
    (reason,) = (daemon.root / "failed").glob("*.reason.json")
    assert json.loads(reason.read_text())["file"] == too_long
    assert "201 bytes" in json.loads(reason.read_text())["message"]
    assert not os.listdir(daemon.inbox)  # noqa: PTH208
    assert "\nline" not in daemon.log.read_text(), "the log has one line a message"


def test_a_file_that_is_edited_while_it_runs_ends_as_modified(make_daemon):
    """What was finished is published, the input goes to failed/ with its reason, and other files are not concerned."""
    daemon = make_daemon("fake:step_ms=20").start()
    daemon.drop("f.jsonl", request_lines(60))
    partial = daemon.outbox / "f.output.jsonl.partial"
    daemon.until(lambda: partial.exists() and partial.stat().st_size, "first results")
    before = partial.read_bytes()
    with (daemon.root / "work" / "f.jsonl").open("a") as file:
        file.write(request_lines(61).splitlines()[-1] + "\n")
    daemon.drop("g.jsonl", ONE)
    assert daemon.wait_done("f")["status"] == "failed"
    daemon.wait_done("g")
    reason = json.loads((daemon.root / "failed" / "f.reason.json").read_text())
    assert reason["code"] == "input_modified"
    assert (daemon.root / "failed" / "f.jsonl").read_text().count("\n") == 61
    output = (daemon.outbox / "f.output.jsonl").read_bytes()
    assert output.startswith(before[: before.rindex(b"\n") + 1])
    assert (daemon.root / "done" / "g.jsonl").exists()
    assert daemon.stop() == 0
    (said,) = [
        line for line in daemon.log.read_text().splitlines() if f"f.jsonl is in failed/: {reason['message']} (" in line
    ]
    assert "[warning" in said  # who reads the log alone learns why


def test_a_file_that_may_not_be_read_is_named_tried_again_and_taken_when_it_may(make_daemon):
    """A daemon without privileges, a dropper with a strict umask: no crash, no failure, one word in the log."""
    daemon = make_daemon(program=(str(ORDINARY_USER),))
    daemon.inbox.mkdir(parents=True)
    secret = daemon.inbox / "secret.jsonl"
    secret.write_text(ONE)
    secret.chmod(0o000)
    daemon.start()
    daemon.drop("open.jsonl", ONE)
    daemon.wait_done("open")
    daemon.until(lambda: "secret.jsonl stays in the inbox" in daemon.log.read_text(), "the log says why")
    assert daemon.log.read_text().count("secret.jsonl stays in the inbox") == 1
    assert "permission denied" in daemon.log.read_text()
    daemon.until(lambda: daemon.status()["num_waiting_files"] == 1, "the status, four times a second, counts it")
    assert secret.exists()
    secret.chmod(0o644)
    daemon.wait_done("secret")
    assert daemon.stop() == 0


def test_an_inbox_that_is_made_anew_is_watched_again(make_daemon):
    """The kernel's watch ends with the folder; the next look finds the new one, and from then on events come from there."""
    daemon = make_daemon(daemon=", watch: events").start()
    daemon.drop("a.jsonl", ONE)
    daemon.wait_done("a")
    daemon.until(lambda: daemon.status()["watch"] == "events", "told of by events")
    daemon.inbox.rmdir()
    reason = daemon.wait_paused("gone")
    assert "inbox" in reason
    daemon.inbox.mkdir()
    daemon.wait_going_on()
    daemon.drop("b.jsonl", ONE)
    daemon.wait_done("b")
    daemon.until(lambda: daemon.status()["watch"] == "events", "told of by events")
    assert daemon.stop() == 0


def test_polling_alone_finds_every_file(make_daemon):
    daemon = make_daemon(daemon=", watch: poll").start()
    for number in range(20):
        daemon.drop(f"f{number}.jsonl", ONE)
    for number in range(20):
        daemon.wait_done(f"f{number}")
    daemon.until(lambda: daemon.status()["watch"].startswith("polling"), "polled")
    assert "noticed by: polling" in daemon.log.read_text()
    assert daemon.stop() == 0


def test_five_hundred_files_at_once_are_all_run_once(make_daemon):
    """More than run at once, dropped by one rename of a folder full of them, some with the stem of another."""
    daemon = make_daemon()
    full = daemon.root / "full"
    full.mkdir(parents=True)
    for number in range(250):
        (full / f"f{number}.jsonl").write_text(ONE)
        (full / f"f{number}.json").write_text('{"prompt": "x", "max_tokens": 2}')
    full.rename(daemon.inbox)
    daemon.start("--once")
    assert daemon.process.wait(100) == 0
    outputs = [path.name for path in daemon.outbox.glob("*.output.jsonl")]
    assert sorted(outputs) == sorted(f"f{number}{end}.output.jsonl" for number in range(250) for end in ("", "~2"))
    assert len(list((daemon.root / "done").iterdir())) == 500
    assert not list((daemon.root / "work").iterdir())


def test_a_pipeline_whose_folder_was_removed_makes_nothing_and_goes_on_when_it_is_back(make_daemon):
    """As with a disk that is not mounted: one reason, no new folders, no file believed to be deleted."""
    daemon = make_daemon("fake:step_ms=20").start()
    daemon.drop("f.jsonl", request_lines(60))
    partial = daemon.outbox / "f.output.jsonl.partial"
    daemon.until(lambda: partial.exists() and partial.stat().st_size, "in mid-file")
    away = daemon.folder / "away"
    daemon.root.rename(away)
    daemon.root.mkdir()
    assert "is its disk mounted?" in daemon.wait_paused("gone")
    daemon.until(lambda: not daemon.status()["files"], "its runs have ended")
    assert list(daemon.root.iterdir()) == []
    daemon.root.rmdir()
    away.rename(daemon.root)
    daemon.wait_going_on()
    assert daemon.wait_done("f")["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    assert len(daemon.results("f")) == 60
    assert daemon.stop() == 0
    shutil.rmtree(daemon.root)
