"""Which files are claimed from an inbox, under which names, and what becomes of the others."""

import errno
import json
import os
import socket
import stat
import unicodedata
from pathlib import Path

import pytest
from inbox_looks import claims, settled, take

from daemon.durable import DiskStorage
from daemon.errors import DiskFullError, StorageError
from daemon.file_rules import why_kind_is_left, why_name_is_left
from daemon.folders import Folders
from daemon.inbox import Inbox, RefusedFile


def test_a_claim_says_what_was_claimed(inbox, folders):
    """As it lies in work/: whatever is different there later was changed since."""
    (folders.inbox / "f.jsonl").write_text("three")
    (claimed,) = settled(inbox)
    status = claimed.path.stat()
    assert claimed.content == (status.st_size, status.st_mtime_ns) == (5, status.st_mtime_ns)


def test_files_are_claimed_oldest_first_into_work(inbox):
    for name, mtime in (("b.jsonl", 2), ("a.jsonl", 3), ("c.txt", 1)):
        (inbox.folder / name).write_text("x")
        os.utime(inbox.folder / name, (mtime, mtime))
    assert claims(inbox, 0.0) == []
    assert inbox.num_settling == 3
    assert claims(inbox, 2.0) == ["c.txt", "b.jsonl", "a.jsonl"]
    assert not list(inbox.folder.iterdir())
    assert inbox.num_waiting == 0


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


def test_hard_links_are_taken_one_by_one(inbox, tmp_path):
    """A link is a way to drop a file without a copy; two in the inbox are two files of the same content."""
    (tmp_path / "mine").write_text("x")
    for name in ("a.jsonl", "b.jsonl"):
        os.link(tmp_path / "mine", inbox.folder / name)
    found = claims(inbox, 0.0) + claims(inbox, 2.0) + claims(inbox, 4.0) + claims(inbox, 6.0)
    assert sorted(found) == ["a.jsonl", "b.jsonl"]
    assert (tmp_path / "mine").read_text() == "x"


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
    inbox.sync_claims()
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
