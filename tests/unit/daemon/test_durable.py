"""Durable file operations, their typed errors, and the file system of the crash tests held to the real one."""

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crash_storage import CrashStorage
from hypothesis import given
from hypothesis import strategies as st

from daemon.durable import (
    DiskStorage,
    Storage,
    atomic_write_bytes,
    file_size,
    fsync_dir,
    fsync_file,
    printable,
    rename_durable,
    storage_errors,
    unlink_durable,
    utf8_name,
    write_all,
)
from daemon.errors import AccessDeniedError, DiskFullError, ExitCode, ReadOnlyError, StorageError

FOLDER, OTHER = Path("/a"), Path("/b")


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (errno.ENOSPC, DiskFullError, "no space is left on its file system"),
        (errno.EDQUOT, DiskFullError, "its disk quota is used up"),
        (errno.EROFS, ReadOnlyError, "its file system is read-only"),
        (errno.EACCES, AccessDeniedError, "permission denied"),
        (errno.EPERM, AccessDeniedError, "permission denied"),
        (errno.EIO, StorageError, os.strerror(errno.EIO)),
    ],
)
def test_an_os_error_becomes_one_line_that_says_what_where_and_why(
    code: int, kind: type[StorageError], reason: str
) -> None:
    """Each errno a caller acts on has its class; the line holds the path, even one with a newline in it."""
    with pytest.raises(StorageError) as caught, storage_errors("write", Path("/x/a\nb")):
        raise OSError(code, os.strerror(code))
    assert type(caught.value) is kind
    assert str(caught.value) == f"cannot write /x/a\\nb: {reason}"
    assert caught.value.code == code
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_names_that_are_no_text_are_shown_with_escapes() -> None:
    """A message stays on one line, JSON stays valid, and what is readable stays readable."""
    name = os.fsdecode(b"caf\xc3\xa9 \xff\n\x1b.jsonl")
    assert printable(name) == "caf\u00e9 \\xff\\n\\x1b.jsonl"
    assert utf8_name(name) == "caf\u00e9 \\xff\n\x1b.jsonl"
    assert utf8_name("\ud800") == "\\ud800"


def test_atomic_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    """The new content is there, no temporary file is, and the mode is an ordinary file's."""
    path = tmp_path / "x.json"
    path.write_bytes(b"old and longer")
    for is_durable in (True, False):
        atomic_write_bytes(DiskStorage(), path, b"new", is_durable=is_durable)
        assert path.read_bytes() == b"new"
        assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    """A full disk at any operation up to the rename changes nothing; behind it the caller still learns that it may not last."""
    seen = []
    for operation in range(1, 8):  # open, truncate, write, the rest of a short write, sync, rename, sync of the folder
        storage = CrashStorage(tmp_path)
        storage.put(tmp_path / "x", b"old")
        storage.fail_at = {operation: OSError(errno.ENOSPC, "full")}
        with pytest.raises(DiskFullError):
            atomic_write_bytes(storage, tmp_path / "x", b"new", is_durable=True)
        assert list(storage.listing(tmp_path)) == ["x"]
        seen.append(storage.read(tmp_path / "x"))
    assert seen == [b"old"] * 6 + [b"new"]


def test_a_missing_folder_is_a_typed_error(tmp_path: Path) -> None:
    """Somebody removed the outbox: the error says so, on both file systems."""
    for storage in (DiskStorage(), CrashStorage(tmp_path)):
        with pytest.raises(StorageError, match="No such file or directory"):
            atomic_write_bytes(storage, tmp_path / "gone" / "x", b"", is_durable=True)
        with pytest.raises(StorageError, match="No such file or directory"):
            fsync_dir(storage, tmp_path / "gone")


def test_helpers_on_the_real_disk(tmp_path: Path) -> None:
    """Each helper does what its name says."""
    storage, path = DiskStorage(), tmp_path / "x"
    (tmp_path / "sub").mkdir()
    assert file_size(storage, path) is None
    path.write_bytes(b"12345")
    fsync_file(storage, path)
    assert file_size(storage, path) == 5
    rename_durable(storage, path, tmp_path / "sub" / "y")
    assert (tmp_path / "sub" / "y").read_bytes() == b"12345"
    for _ in range(2):
        unlink_durable(storage, tmp_path / "sub" / "y")
    with pytest.raises(StorageError, match=r"cannot move .*x to .*z: No such file"):
        rename_durable(storage, path, tmp_path / "z")


def test_a_file_system_that_cannot_sync_folders_is_lived_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL from a folder's fsync is no error; any other one is."""

    def refuse(code: int) -> Callable[[int], None]:
        def fsync(_: int) -> None:
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", refuse(errno.EINVAL))
    fsync_dir(DiskStorage(), tmp_path)
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(StorageError):
        fsync_dir(DiskStorage(), tmp_path)


def test_an_atomic_write_outlives_a_power_cut_whole() -> None:
    """At whichever operation the power goes, and whatever of the unsynced survives, the file is the old or the new whole."""
    contents = set()
    for operation in range(1, 20):
        for choice in (lambda _: 0, lambda n: n, lambda n: n // 2):
            storage = CrashStorage(FOLDER)
            storage.put(FOLDER / "x", b"old")
            write = partial(atomic_write_bytes, storage, FOLDER / "x", b"the new one", is_durable=True)
            is_killed = storage.kill_at(operation, write)
            storage.lose_power(choice)
            content = storage.read(FOLDER / "x")
            assert content in ({b"old", b"the new one"} if is_killed else {b"the new one"})
            contents.add(content)
    assert contents == {b"old", b"the new one"}


def test_a_durable_rename_outlives_a_power_cut() -> None:
    """In both folders: the file is in its new place, and not in the old one too."""
    storage = CrashStorage(FOLDER, OTHER)
    storage.put(FOLDER / "x", b"1")
    rename_durable(storage, FOLDER / "x", OTHER / "x")
    storage.lose_power(lambda _: 0)
    assert (storage.listing(FOLDER), storage.listing(OTHER)) == ({}, {"x": b"1"})


def test_a_durable_removal_outlives_a_power_cut() -> None:
    """The file does not come back."""
    storage = CrashStorage(FOLDER)
    storage.put(FOLDER / "x", b"1")
    unlink_durable(storage, FOLDER / "x")
    storage.lose_power(lambda _: 0)
    assert storage.listing(FOLDER) == {}


NAMES = st.sampled_from([FOLDER / "x", FOLDER / "y", OTHER / "x", Path("/none/x")])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.binary(max_size=6), st.integers(0, 8)),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 8)),
        st.tuples(st.just("read"), NAMES, st.integers(0, 8), st.integers(0, 8)),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.just("exists"), NAMES),
        st.tuples(st.just("sync_dir"), st.sampled_from([FOLDER, OTHER, Path("/none")])),
    ),
    max_size=30,
)


def outcome(storage: Storage, root: Path, operation: tuple[object, ...]) -> object:
    """Do one operation; return what a caller can see of it."""
    name, *arguments = operation
    paths = [root / str(value).lstrip("/") if isinstance(value, Path) else value for value in arguments]
    try:
        match name:
            case "write":
                fd = storage.open_write(paths[0])
                write_all(storage, fd, paths[1], paths[2])
                storage.sync(fd)
                storage.close(fd)
            case "truncate":
                fd = storage.open_write(paths[0])
                storage.truncate(fd, paths[1])
                storage.close(fd)
            case "read":
                fd = storage.open_read(paths[0])
                seen = storage.pread(fd, paths[1], paths[2]), storage.size(fd)
                storage.close(fd)
                return seen
            case _:
                return getattr(storage, str(name))(*paths)
    except OSError as error:
        return error.errno
    return None


@given(OPERATIONS)
def test_the_storage_of_the_crash_tests_behaves_as_the_real_one(operations: list[tuple[object, ...]]) -> None:
    """Conformance: the same operations give the same answers, errors and files."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folders = [root / "a", root / "b"]
        for folder in folders:
            folder.mkdir()
        double = CrashStorage(*folders)
        for operation in operations:
            assert outcome(DiskStorage(), root, operation) == outcome(double, root, operation)
        for folder in folders:
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
            assert files == double.listing(folder)
