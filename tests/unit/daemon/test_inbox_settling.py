"""When a file is complete: it no longer changes, and nobody holds it open for writing."""

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inbox_looks import claims, settled

from daemon.durable import DiskStorage
from daemon.inbox import FileStabilityTracker, FileUse, held, look_closely, signature_of


class Status:
    """What `os.stat` says, as far as it matters."""

    def __init__(self, size, mtime_ns=0, inode=1):
        self.st_ino, self.st_size, self.st_mtime_ns, self.st_ctime_ns = inode, size, mtime_ns, mtime_ns


def test_a_file_is_complete_when_two_looks_find_it_the_same():
    tracker = FileStabilityTracker(2.0)
    assert not tracker.observe("a", Status(5), 0.0)
    assert not tracker.observe("a", Status(5), 1.9)
    assert tracker.observe("a", Status(5), 2.0)


@pytest.mark.parametrize("changed", [Status(6), Status(5, mtime_ns=1), Status(5, inode=2)])
def test_any_change_starts_the_wait_anew(changed):
    tracker = FileStabilityTracker(2.0)
    tracker.observe("a", Status(5), 0.0)
    assert not tracker.observe("a", changed, 3.0)
    assert not tracker.observe("a", changed, 4.9)
    assert tracker.observe("a", changed, 5.0)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 3)), max_size=30))
def test_a_file_is_never_complete_sooner_than_it_settled(looks):
    """Whatever the looks, complete means: unchanged for the whole of `settle_s`."""
    tracker = FileStabilityTracker(2.0)
    now_s, since_s, last = 0.0, 0.0, None
    for wait_s, size in looks:
        now_s += wait_s
        if size != last:
            since_s, last = now_s, size
        assert tracker.observe("a", Status(size), now_s) == (now_s - since_s >= 2.0)


def test_a_file_that_came_whole_needs_no_second_look():
    tracker = FileStabilityTracker(2.0)
    assert tracker.observe("a", Status(5), 0.0, came_whole=True)
    assert tracker.observe("a", Status(5), 0.1), "it may not have been claimed then"
    assert not tracker.observe("b", Status(5), 1.0), "seen before its event came"
    assert tracker.observe("b", Status(5), 1.1, came_whole=True)
    assert tracker.oldest_age_s(1.5) == 1.5


def test_a_file_that_came_whole_and_changed_settles_like_any_other():
    tracker = FileStabilityTracker(2.0)
    tracker.observe("a", Status(5), 0.0, came_whole=True)
    assert not tracker.observe("a", Status(6), 3.0)
    assert not tracker.observe("a", Status(6), 4.9)
    assert tracker.observe("a", Status(6), 5.0)


def test_a_file_that_came_whole_and_is_still_written_is_left_until_it_is_closed(inbox):
    with (inbox.folder / ".a.tmp").open("w") as file:
        file.write("x")
        file.flush()
        (inbox.folder / ".a.tmp").rename(inbox.folder / "a.jsonl")
        inbox.look(0.0, {"a.jsonl"})
        assert inbox.num_complete == 1
        assert inbox.claim(1, ()) == []
        file.write("y")
    assert claims(inbox, 0.1) == [], "it has changed"
    assert claims(inbox, 2.1) == ["a.jsonl"]


def test_options_that_came_whole_hold_no_file_back_and_others_do(inbox):
    (inbox.folder / "a.options.yaml").write_text("priority: 5")
    (inbox.folder / "a.jsonl").write_text("x")
    inbox.look(0.0, {"a.jsonl"})
    assert inbox.claim(1, ()) == [], "its options may not be complete"
    inbox.look(0.1, {"a.options.yaml"})
    assert [file.name for file in inbox.claim(1, ())] == ["a.jsonl"]


def test_a_file_that_somebody_writes_is_left_until_it_is_closed(inbox):
    with (inbox.folder / "a.jsonl").open("w") as file:
        file.write("x")
        file.flush()
        assert claims(inbox, 0.0) == []
        assert claims(inbox, 5.0) == []
    assert claims(inbox, 5.0) == ["a.jsonl"]


def test_a_slow_copy_is_taken_when_it_no_longer_grows(inbox):
    """A writer that opens, appends and closes again and again, and sets the times at the end as `cp -p` does."""
    path = inbox.folder / "a.jsonl"
    for second in range(6):
        with path.open("a") as file:
            file.write("line\n")
        assert claims(inbox, float(second)) == []
    os.utime(path, (1, 1))
    assert claims(inbox, 6.0) == []
    assert claims(inbox, 7.9) == []
    assert claims(inbox, 8.0) == ["a.jsonl"]


def test_a_file_that_shrinks_or_vanishes_waits_or_is_forgotten(inbox):
    path = inbox.folder / "a.jsonl"
    path.write_text("long content")
    assert claims(inbox, 0.0) == []
    path.write_text("x")
    assert claims(inbox, 5.0) == []
    path.unlink()
    assert claims(inbox, 8.0) == []
    assert inbox.num_waiting == 0
    path.write_text("x")
    assert claims(inbox, 9.0) == [], "it starts anew"


@pytest.mark.parametrize("change", ["append", "replace", "remove", "touch"])
def test_a_change_between_the_look_and_the_claim_is_seen(inbox, change):
    """What a look found complete is not believed at the claim."""
    path = inbox.folder / "a.jsonl"
    path.write_text("x")
    inbox.look(0.0)
    inbox.look(2.0)
    assert inbox.num_complete == 1
    match change:
        case "append":
            with path.open("a") as file:
                file.write("y")
        case "replace":
            (inbox.folder / "other.tmp").write_text("z")
            (inbox.folder / "other.tmp").rename(path)
        case "remove":
            path.unlink()
        case "touch":
            os.utime(path, (5, 5))
    assert inbox.claim(1, ()) == []
    assert path.exists() == (change != "remove")
    assert claims(inbox, 3.0) == []
    assert claims(inbox, 5.0) == (["a.jsonl"] if change != "remove" else [])


def test_a_renamed_file_settles_under_its_new_name(inbox):
    (inbox.folder / "a.jsonl").write_text("x")
    claims(inbox, 0.0)
    (inbox.folder / "a.jsonl").rename(inbox.folder / "b.jsonl")
    assert claims(inbox, 2.0) == []
    assert claims(inbox, 4.0) == ["b.jsonl"]


def test_nobody_can_begin_to_write_while_a_file_is_claimed(inbox, monkeypatch):
    """Whoever opens a file for writing between the last look and the rename waits, and then writes into a claimed file."""
    (inbox.folder / "a.jsonl").write_text("x")
    rename, seen, order = DiskStorage.rename, [], []

    def write_late(path):
        with path.open("a") as file:
            order.append("opened")
            file.write("late")

    def rename_with_a_writer_at_the_door(storage, source, target):
        seen.append(threading.Thread(target=write_late, args=(source,)))
        seen[0].start()
        deadline_s = time.monotonic() + 20
        while "BREAKING" not in Path("/proc/locks").read_text():
            assert time.monotonic() < deadline_s
        rename(storage, source, target)
        order.append("renamed")

    monkeypatch.setattr(DiskStorage, "rename", rename_with_a_writer_at_the_door)
    (claimed,) = settled(inbox)
    seen[0].join(60)
    assert order == ["renamed", "opened"]
    assert claimed.path.read_text() == "xlate"


def test_the_signal_of_a_broken_lease_is_one_that_is_ignored(inbox):
    """By default it would end the daemon: a writer comes while the lease is held, in a process of its own."""
    path = inbox.folder / "a.jsonl"
    path.write_text("x")
    with held(path, signature_of(path.stat())) as state:
        assert state is FileUse.FREE
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    assert look_closely(path, signature_of(path.stat())) is FileUse.FREE


def test_without_leases_the_settle_time_decides(inbox, monkeypatch):
    """A network file system, or a file of another user: F_SETLEASE is refused, and the file is taken all the same."""

    def refuse(_fd, command, _argument):
        raise OSError(errno.EINVAL if command == fcntl.F_SETLEASE else errno.EACCES, "no leases")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with (inbox.folder / "a.jsonl").open("w") as file:
        file.write("x")
        file.flush()
        assert [claimed.name for claimed in settled(inbox)] == ["a.jsonl"]
