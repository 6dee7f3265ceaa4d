"""When a file is complete, and how it is claimed."""

import errno
import fcntl
import json
import os
import socket
import stat
import threading
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.durable import DiskStorage
from daemon.errors import DiskFullError, StorageError
from daemon.file_rules import why_kind_is_left, why_name_is_left
from daemon.folders import Folders
from daemon.inbox import FileStabilityTracker, FileState, Inbox, RefusedFile, held, look_closely, signature_of


class Status:
    """What `os.stat` says, as far as it matters."""

    def __init__(self, size, mtime_ns=0, inode=1):
        self.st_ino, self.st_size, self.st_mtime_ns, self.st_ctime_ns = inode, size, mtime_ns, mtime_ns


def take(inbox, now_s, max_files=1000):
    inbox.look(now_s)
    return inbox.claim(max_files, ())


def claims(inbox, now_s):
    return [claimed.name for claimed in take(inbox, now_s)]


def settled(inbox):
    """Look twice, as far apart as it takes, and claim."""
    inbox.look(0.0)
    return take(inbox, 9.0)


def test_a_claim_says_what_was_claimed(inbox, folders):
    """As it lies in work/: whatever is different there later was changed since."""
    (folders.inbox / "f.jsonl").write_text("three")
    (claimed,) = settled(inbox)
    status = claimed.path.stat()
    assert claimed.content == (status.st_size, status.st_mtime_ns) == (5, status.st_mtime_ns)


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
    assert inbox.num_waiting == 0


def test_a_file_that_somebody_writes_is_left_until_it_is_closed(inbox):
    with (inbox.folder / "a.jsonl").open("w") as file:
        file.write("x")
        file.flush()
        assert claims(inbox, 0.0) == []
        assert claims(inbox, 5.0) == []
    assert claims(inbox, 5.0) == ["a.jsonl"]


@pytest.mark.parametrize(
    "name",
    [
        ".a.jsonl",
        "a.jsonl.tmp",
        "a.part",
        "a.jsonl~",
        "~$a.jsonl",
        "a.crdownload",
        "A.JSONL.PART",
        "a.png",
        "a",
        "a.jsonl.",
    ],
)
def test_unfinished_and_unknown_names_are_left_with_a_reason(inbox, name):
    (inbox.folder / name).write_text("x")
    assert settled(inbox) == []
    assert inbox.num_waiting == 0
    assert why_name_is_left(name)


def test_what_will_never_be_taken_is_told_and_what_is_unfinished_is_not(inbox):
    """A file would run without the options that lie beside it under a name, or as a thing, that is not theirs."""
    for name in ("a.png", "a.options.yml", ".a.png", "a.png.part", "a.jsonl", "a.cancel", "a.options.yaml"):
        (inbox.folder / name).write_text("x")
    (inbox.folder / "b.options.yaml").mkdir()
    (inbox.folder / "b.cancel").symlink_to("nowhere")
    inbox.look(0.0)
    assert sorted(inbox.strangers) == ["a.options.yml", "a.png", "b.cancel", "b.options.yaml"]
    assert "extension '.png' is none of .jsonl" in inbox.strangers["a.png"]
    assert inbox.strangers["a.options.yml"] == "options are taken from .options.yaml alone"
    assert inbox.strangers["b.options.yaml"] == "it is a folder, not an ordinary file"
    (inbox.folder / "a.png").unlink()
    inbox.look(1.0)
    assert "a.png" not in inbox.strangers


def test_what_is_no_ordinary_file_is_left_and_never_opened(inbox, tmp_path, monkeypatch):
    """A pipe's open would wait for ever, a device's may do anything, and a link may lead anywhere."""
    (tmp_path / "real.jsonl").write_text("x")
    (inbox.folder / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    (inbox.folder / "dangling.jsonl").symlink_to("nowhere")
    (inbox.folder / "folder.jsonl").mkdir()
    os.mkfifo(inbox.folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(inbox.folder)  # a socket's path is short
        sock.bind("socket.jsonl")
        if os.geteuid() == 0:
            os.mknod(inbox.folder / "device.jsonl", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
        assert settled(inbox) == []
    kinds = {path.name: why_kind_is_left(path.lstat().st_mode) for path in inbox.folder.iterdir()}
    assert kinds["link.jsonl"] == kinds["dangling.jsonl"] == "it is a symbolic link, not an ordinary file"
    assert kinds["folder.jsonl"] == "it is a folder, not an ordinary file"
    assert kinds["pipe.jsonl"] == "it is a named pipe, not an ordinary file"
    assert kinds["socket.jsonl"] == "it is a socket, not an ordinary file"
    assert kinds.get("device.jsonl", "it is a device, not an ordinary file") == "it is a device, not an ordinary file"


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_takes_the_place_of_a_complete_file_is_left(inbox, make):
    """Between the listing and the claim somebody puts a pipe, a folder or a link there: nothing hangs, nothing is taken."""
    path = inbox.folder / "a.jsonl"
    path.write_text("x")
    inbox.look(0.0)
    inbox.look(9.0)
    path.unlink()
    make(path)
    assert inbox.claim(9, ()) == []
    assert os.path.lexists(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"a b.jsonl",
        b"quote'\".jsonl",
        b"new\nline\r\t.jsonl",
        b"UPPER.JSONL",
        b"-rf.txt",
        b"100% {x} $HOME `id` \\.md",
        b"not \xff utf-8.jsonl",
        "\u00fcml\u00e4ut \u65e5\u672c\U0001f600.jsonl".encode(),
        "a\u0308 decomposed.jsonl".encode(),
        b"x" * 194 + b".jsonl",
    ],
)
def test_unusual_names_are_claimed_as_they_are(inbox, raw):
    name = os.fsdecode(raw)
    (inbox.folder / name).write_text("x")
    (claimed,) = settled(inbox)
    assert (claimed.name, claimed.path.name, claimed.stem, claimed.claimed_s) == (name, name, Path(name).stem, 1234)
    assert claimed.path.read_text() == "x"


def test_composed_and_decomposed_names_are_two_files(inbox):
    """No name is normalised: what looks the same may be two files, and each keeps its bytes."""
    names = [unicodedata.normalize(form, "\u00e9t\u00e9.jsonl") for form in ("NFC", "NFD")]
    for name in names:
        (inbox.folder / name).write_text(name)
    assert sorted(claimed.stem + ".jsonl" for claimed in settled(inbox)) == sorted(names)


def test_names_that_share_a_stem_get_numbers(inbox, folders):
    """Other extension, other case, work/ and outbox/: each claim has a stem that nothing else uses."""
    (folders.work / "a.journal").touch()
    (folders.outbox / "a~2.batch.json").touch()
    for number, name in enumerate(("a.jsonl", "a.txt", "a.JSONL", "a.md")):
        (inbox.folder / name).write_text(name)
        os.utime(inbox.folder / name, (number, number))
    found = settled(inbox)
    assert [claimed.path.name for claimed in found] == ["a~3.jsonl", "a~4.txt", "a~5.JSONL", "a~6.md"]
    assert [claimed.name for claimed in found] == [claimed.path.read_text() for claimed in found]


def test_a_stem_in_use_is_not_given_again(inbox):
    """A run whose files in work/ have a name in another case holds its stem too."""
    (inbox.folder / "a.jsonl").write_text("x")
    inbox.look(0.0)
    inbox.look(9.0)
    (claimed,) = inbox.claim(1, ["a", "a~2"])
    assert claimed.stem == "a~3"


@pytest.mark.parametrize("num_bytes", [201, 255])
def test_a_name_that_is_too_long_goes_to_failed_under_a_short_one(inbox, folders, num_bytes):
    name = "\u00e4" * ((num_bytes - 6) // 2) + "x" * (num_bytes % 2 == 1) + ".jsonl"
    assert len(os.fsencode(name)) == num_bytes
    (inbox.folder / name).write_text("x")
    (refused,) = settled(inbox)
    assert isinstance(refused, RefusedFile)
    assert refused.path.parent == folders.failed
    assert refused.path.read_text() == "x"
    assert len(os.fsencode(refused.path.stem)) <= 180
    reason = json.loads(refused.path.with_suffix(".reason.json").read_text())
    assert (reason["code"], reason["file"]) == ("invalid_file_name", name)
    assert f"{num_bytes} bytes" in reason["message"]
    assert not list(folders.work.iterdir())


def test_two_names_that_are_too_long_and_begin_alike_are_both_kept(inbox, folders):
    for end in "ab":
        (inbox.folder / ("x" * 240 + end + ".jsonl")).write_text(end)
    settled(inbox)
    kept = sorted(path.read_text() for path in folders.failed.glob("*.jsonl"))
    assert kept == ["a", "b"]
    assert len(list(folders.failed.glob("*.reason.json"))) == 2


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


def test_hard_links_are_taken_one_by_one(inbox, tmp_path):
    """A link is a way to drop a file without a copy; two in the inbox are two files of the same content."""
    (tmp_path / "mine").write_text("x")
    for name in ("a.jsonl", "b.jsonl"):
        os.link(tmp_path / "mine", inbox.folder / name)
    found = claims(inbox, 0.0) + claims(inbox, 2.0) + claims(inbox, 4.0) + claims(inbox, 6.0)
    assert sorted(found) == ["a.jsonl", "b.jsonl"]
    assert (tmp_path / "mine").read_text() == "x"


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
        assert state is FileState.FREE
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    assert look_closely(path, signature_of(path.stat())) is FileState.FREE


def test_without_leases_the_settle_time_decides(inbox, monkeypatch):
    """A network file system, or a file of another user: F_SETLEASE is refused, and the file is taken all the same."""

    def refuse(_fd, command, _argument):
        raise OSError(errno.EINVAL if command == fcntl.F_SETLEASE else errno.EACCES, "no leases")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with (inbox.folder / "a.jsonl").open("w") as file:
        file.write("x")
        file.flush()
        assert [claimed.name for claimed in settled(inbox)] == ["a.jsonl"]


def test_a_file_that_may_not_be_read_stays_is_explained_and_tried_again(inbox, monkeypatch):
    """Its neighbours are taken, and so is it once somebody has changed its mode."""
    for name in ("a.jsonl", "b.jsonl"):
        (inbox.folder / name).write_text("x")
    real_open = os.open

    def denied(path, *rest):
        if str(path).endswith("a.jsonl"):
            raise PermissionError(errno.EACCES, "denied")
        return real_open(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        assert [claimed.name for claimed in settled(inbox)] == ["b.jsonl"]
        assert list(inbox.unusable) == ["a.jsonl"]
        assert "permission denied" in inbox.unusable["a.jsonl"]
        assert inbox.num_waiting == 1
    assert claims(inbox, 10.0) == ["a.jsonl"]
    assert inbox.unusable == {}


def test_a_file_that_may_not_be_moved_stays_and_its_neighbours_are_taken(inbox, monkeypatch):
    """A sticky inbox lets nobody move files of others; that is no reason to stop for all."""
    for name in ("a.jsonl", "b.jsonl"):
        (inbox.folder / name).write_text("x")
    rename = DiskStorage.rename

    def sticky(storage, source, target):
        if source.name == "a.jsonl":
            raise PermissionError(errno.EPERM, "sticky")
        rename(storage, source, target)

    monkeypatch.setattr(DiskStorage, "rename", sticky)
    assert [claimed.name for claimed in settled(inbox)] == ["b.jsonl"]
    assert "permission denied" in inbox.unusable["a.jsonl"]


def test_an_error_in_the_middle_keeps_what_was_claimed(inbox, monkeypatch):
    """The files that were moved are run; the error is met again by the next call."""
    for number in range(3):
        (inbox.folder / f"{number}.jsonl").write_text("x")
        os.utime(inbox.folder / f"{number}.jsonl", (number, number))
    rename = DiskStorage.rename

    def full(storage, source, target):
        if source.name == "1.jsonl":
            raise OSError(errno.ENOSPC, "full")
        rename(storage, source, target)

    monkeypatch.setattr(DiskStorage, "rename", full)
    assert [claimed.name for claimed in settled(inbox)] == ["0.jsonl"]
    with pytest.raises(DiskFullError, match=r"1\.jsonl"):
        take(inbox, 10.0)
    monkeypatch.undo()
    assert claims(inbox, 11.0) == ["1.jsonl", "2.jsonl"]


def test_a_power_cut_does_not_bring_back_what_was_claimed_and_kept(tmp_path):
    """Unless that is asked for, it may: a claim alone syncs nothing, so that its run has something to do meanwhile."""
    folders = Folders(tmp_path / "p")
    folders.make()
    synced = []

    class Storage(DiskStorage):
        def sync_dir(self, path):
            synced.append(path)

    inbox = Inbox(folders, 2.0, Storage())
    (inbox.folder / "a.jsonl").write_text("x")
    assert [claimed.name for claimed in settled(inbox)] == ["a.jsonl"]
    assert synced == []
    inbox.keep_claims()
    assert synced == [folders.work, folders.inbox], "the new name first, so that no cut leaves neither"


def test_a_work_folder_that_is_gone_is_an_error_and_not_a_vanished_file(inbox, folders):
    (inbox.folder / "a.jsonl").write_text("x")
    folders.work.rmdir()
    with pytest.raises(StorageError, match="cannot move"):
        settled(inbox)
    assert (inbox.folder / "a.jsonl").exists()


def test_of_ten_thousand_files_at_once_none_is_lost(inbox, folders):
    """A listing takes them all in, claims go on from it without another one, and what is not claimed yet stays."""
    names = {f"{number}.jsonl" for number in range(10_000)}
    for name in names:
        (inbox.folder / name).touch()
    inbox.look(0.0)
    assert inbox.num_settling == 10_000
    inbox.look(5.0)
    claimed = [claimed.name for _ in range(8) for claimed in inbox.claim(128, ())]
    assert len(set(claimed)) == len(claimed) == 1024
    assert inbox.num_complete == inbox.num_waiting == 10_000 - 1024
    assert set(os.listdir(inbox.folder)) | set(os.listdir(folders.work)) == names  # noqa: PTH208


def test_a_folder_that_is_gone_is_an_error_and_not_an_empty_inbox(inbox):
    inbox.folder.rmdir()
    with pytest.raises(StorageError, match="cannot list"):
        claims(inbox, 0.0)
