"""When a file is complete, and how it is claimed."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import StorageError
from daemon.inbox import MAX_NAME_BYTES, FileStabilityTracker, Inbox


class Status:
    """What `os.stat` says, as far as it matters."""

    def __init__(self, size, mtime_ns=0, inode=1):
        self.st_ino, self.st_size, self.st_mtime_ns, self.st_ctime_ns = inode, size, mtime_ns, mtime_ns


@pytest.fixture
def inbox(tmp_path):
    for name in ("inbox", "work"):
        (tmp_path / name).mkdir()
    return Inbox(tmp_path / "inbox", tmp_path / "work", lambda stem: stem, settle_s=2.0, wall_clock=lambda: 1234.5)


def claims(inbox, now_s):
    return [claimed.name for claimed in inbox.scan(now_s)]


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


def test_files_are_claimed_oldest_first_into_work(inbox):
    for name, mtime in (("b.jsonl", 2), ("a.jsonl", 3), ("c.txt", 1)):
        (inbox.folder / name).write_text("x")
        os.utime(inbox.folder / name, (mtime, mtime))
    assert claims(inbox, 0.0) == []
    assert inbox.num_settling == 3
    assert claims(inbox, 2.0) == ["c.txt", "b.jsonl", "a.jsonl"]
    assert not list(inbox.folder.iterdir())


def test_a_file_that_somebody_writes_is_left_until_it_is_closed(inbox):
    with (inbox.folder / "a.jsonl").open("w") as file:
        file.write("x")
        file.flush()
        assert claims(inbox, 0.0) == []
        assert claims(inbox, 5.0) == []
    assert claims(inbox, 5.0) == ["a.jsonl"]


@pytest.mark.parametrize(
    "name", [".a.jsonl", "a.jsonl.tmp", "a.part", "a.jsonl~", "~$a.jsonl", "a.crdownload", "a.png", "a"]
)
def test_unfinished_and_unknown_names_are_left_with_a_reason(inbox, name):
    (inbox.folder / name).write_text("x")
    assert claims(inbox, 0.0) == claims(inbox, 9.0) == []
    assert inbox.why_left(name)


def test_links_and_folders_are_left(inbox, tmp_path):
    (tmp_path / "real.jsonl").write_text("x")
    (inbox.folder / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    (inbox.folder / "folder.jsonl").mkdir()
    assert claims(inbox, 0.0) == claims(inbox, 9.0) == []


@pytest.mark.parametrize(
    "name", ["a b.jsonl", "quote'\".jsonl", "new\nline.jsonl", "\u00fcml\u00e4ut.jsonl", "UPPER.JSONL"]
)
def test_unusual_names_are_claimed_as_they_are(inbox, name):
    (inbox.folder / name).write_text("x")
    claims(inbox, 0.0)
    (claimed,) = inbox.scan(9.0)
    assert (claimed.name, claimed.refusal) == (name, None)
    assert claimed.path.name == name


def test_a_name_that_is_too_long_is_claimed_under_a_short_one_and_refused(inbox):
    name = "\u00e4" * (MAX_NAME_BYTES // 2) + ".jsonl"
    (inbox.folder / name).write_text("x")
    claims(inbox, 0.0)
    (claimed,) = inbox.scan(9.0)
    assert len(os.fsencode(claimed.stem)) <= 180
    assert "206 bytes" in claimed.refusal
    assert claimed.path.exists()


def test_a_folder_that_is_gone_is_an_error_and_not_an_empty_inbox(inbox):
    inbox.folder.rmdir()
    with pytest.raises(StorageError, match="cannot list"):
        claims(inbox, 0.0)
