"""A rename that replaces nothing, by whichever of its ways."""

import errno
import os
from pathlib import Path

import pytest

from daemon import exclusive_rename
from daemon.exclusive_rename import rename_to_free_name


@pytest.fixture(params=["rename", "link", "look"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in turn; those before it are not to be had."""
    if request.param != "rename":
        monkeypatch.setattr(exclusive_rename, "_rename_exclusively", lambda *_: errno.ENOSYS)
    if request.param == "look":
        monkeypatch.setattr(os, "link", refuse_links)
    return str(request.param)


def refuse_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "no links here")


@pytest.mark.usefixtures("way")
def test_a_file_gets_a_free_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert rename_to_free_name(tmp_path / "a", tmp_path / "b")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "a"}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_name_that_is_taken_stays_what_it_is(tmp_path: Path, make) -> None:
    (tmp_path / "a").write_text("a")
    make(tmp_path / "b")
    before = (tmp_path / "b").lstat()
    assert not rename_to_free_name(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").read_text() == "a"
    assert (tmp_path / "b").lstat() == before


@pytest.mark.usefixtures("way")
def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        rename_to_free_name(tmp_path / "a", tmp_path / "b")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "a"), str(tmp_path / "b"))


def test_this_system_does_it_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a watcher would see no rename, and every submitted file would settle."""
    monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr(Path, "rename", refuse_links)
    (tmp_path / "a").touch()
    assert rename_to_free_name(tmp_path / "a", tmp_path / "b")
