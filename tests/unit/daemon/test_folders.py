"""A pipeline's folders: made once, known again, and never believed to be empty when they are away."""

import os

import pytest

from daemon.errors import AccessDeniedError, FoldersGoneError
from daemon.folders import MARK, Folders


def test_folders_are_made_and_nothing_but_the_mark_lies_in_them(folders):
    assert sorted(path.name for path in folders.root.iterdir()) == [MARK, "done", "failed", "inbox", "outbox", "work"]
    assert not any(list(path.iterdir()) for path in folders.root.iterdir() if path.is_dir())
    folders.check()


def test_a_second_start_keeps_the_mark(folders):
    before = (folders.root / MARK).read_text()
    Folders(folders.root).make()
    assert (folders.root / MARK).read_text() == before


def test_folders_that_are_away_are_gone_until_they_are_back(folders, tmp_path):
    folders.root.rename(tmp_path / "away")
    with pytest.raises(FoldersGoneError, match=r"/p is gone: is its disk mounted\?"):
        folders.check()
    assert not folders.root.exists()
    (tmp_path / "away").rename(folders.root)
    folders.check()


def test_another_folder_in_their_place_is_not_taken_for_them(folders, tmp_path):
    """An empty mount point, or one under which somebody ran a daemon before the disk was mounted."""
    folders.root.rename(tmp_path / "away")
    folders.root.mkdir()
    with pytest.raises(FoldersGoneError, match="is gone"):
        folders.check()
    assert list(folders.root.iterdir()) == []
    Folders(folders.root).make()
    with pytest.raises(FoldersGoneError, match="is another folder than at start"):
        folders.check()


def test_the_same_disk_under_another_number_is_known_by_its_mark(folders, tmp_path):
    """A network mount has another device number each time."""
    mark = (folders.root / MARK).read_text()
    folders.root.rename(tmp_path / "away")
    Folders(folders.root).make()
    (folders.root / MARK).write_text(mark)
    folders.check()


def test_a_folder_on_another_device_is_refused_by_name(tmp_path):
    """Also where the device's number is the same, as with a bind mount: a rename is tried."""
    other = next((path for path in ("/dev/shm", "/tmp") if os.stat(path).st_dev != tmp_path.stat().st_dev), None)  # noqa: PTH116, S108
    if other is None or not os.access(other, os.W_OK):
        pytest.skip("this machine has one file system only")
    root = tmp_path / "p"
    root.mkdir()
    there = os.path.join(other, f"gapless-test-{os.getpid()}")  # noqa: PTH118
    os.mkdir(there)  # noqa: PTH102
    try:
        (root / "outbox").symlink_to(there)
        with pytest.raises(AccessDeniedError, match=r"outbox lies on another device than .*inbox"):
            Folders(root).make()
        assert os.listdir(there) == []  # noqa: PTH208
    finally:
        os.rmdir(there)  # noqa: PTH106
