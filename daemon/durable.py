"""File operations that outlive a crash, through one seam, with what goes wrong as typed errors of one line."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from daemon.errors import AccessDeniedError, DiskFullError, ReadOnlyError, StorageError

_KINDS: Mapping[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (DiskFullError, "no space is left on its file system"),
    errno.EDQUOT: (DiskFullError, "its disk quota is used up"),
    errno.EROFS: (ReadOnlyError, "its file system is read-only"),
    errno.EACCES: (AccessDeniedError, "permission denied"),
    errno.EPERM: (AccessDeniedError, "permission denied"),
}
PUBLIC_MODE = 0o666  # for everybody whom the umask lets
PRIVATE_MODE = 0o600  # for the daemon's user alone
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})


def storage_error(error: OSError, action: str, path: Path) -> StorageError:
    """Return `error` as the class a caller can act on."""
    code = error.errno
    kind, reason = _KINDS.get(code or 0, (StorageError, error.strerror or str(error)))
    return kind(f"cannot {action} {printable(path)}: {reason}", path, code)


@contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a `StorageError`; `action` completes "cannot ..."."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, action, path) from error


def printable(path: Path | str) -> str:
    """Return a path on one line for a message: control characters and bytes that are no UTF-8 as escapes."""
    escaped = (char if char.isprintable() else ascii(char)[1:-1] for char in utf8_name(str(path)))
    return "".join(escaped)


def utf8_name(name: str) -> str:
    r"""Return a file's name as text for JSON: its bytes that are no UTF-8 stand as `\xNN`, all else as it is."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no file's name, but text of a request may hold any surrogate
        return name.encode("utf-8", "backslashreplace").decode()


def inode_of(path: Path) -> int | None:
    """Return a file's inode, links not followed; None where it is not there or cannot be looked at."""
    with suppress(OSError):
        return path.lstat().st_ino
    return None


class Storage(Protocol):
    """What the journal and the outbox ask of the file system. Every operation may raise OSError.

    Reads and writes name their offset, so that threads share a descriptor without a shared position.
    """

    def open_read(self, path: Path) -> int:
        """Return a descriptor for reading an existing file."""
        ...

    def open_write(self, path: Path, mode: int = PUBLIC_MODE) -> int:
        """Return a descriptor for reading and writing; the file is made if it is missing and kept as it is otherwise.

        A file that is made gets `mode`, less what the process's umask takes away.
        """
        ...

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write and return how many bytes were taken, maybe fewer than given."""
        ...

    def size(self, fd: int) -> int:
        """Return the file's length in bytes."""
        ...

    def truncate(self, fd: int, size: int) -> None:
        """Set the file's length."""
        ...

    def sync(self, fd: int) -> None:
        """Return when the file's data and length are durable."""
        ...

    def close(self, fd: int) -> None:
        """Give the descriptor back."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename on one file system, replacing `target` at once."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether the name is taken, by a dangling link too."""
        ...

    def names_in(self, folder: Path) -> list[str]:
        """Return the names in a folder, in order."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Return when the folder's entries are durable."""
        ...


class DiskStorage:
    """The real file system."""

    def open_read(self, path: Path) -> int:
        """As `Storage`."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_write(self, path: Path, mode: int = PUBLIC_MODE) -> int:
        """As `Storage`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """As `Storage`."""
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # one read gives at most about 2 GiB, and a network file system may give less
        while data and (missing := size - sum(map(len, parts))):
            data = os.pread(fd, missing, offset + size - missing)
            parts.append(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """As `Storage`."""
        return os.pwrite(fd, data, offset)

    def size(self, fd: int) -> int:
        """As `Storage`."""
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        """As `Storage`."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """As `Storage`."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """As `Storage`."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """As `Storage`."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """As `Storage`."""
        path.unlink()

    def exists(self, path: Path) -> bool:
        """As `Storage`."""
        return os.path.lexists(path)

    def names_in(self, folder: Path) -> list[str]:
        """As `Storage`."""
        return sorted(os.listdir(folder))  # noqa: PTH208  names are wanted

    def sync_dir(self, path: Path) -> None:
        """As `Storage`; a file system that cannot sync a folder is left to its own ways."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise
        finally:
            os.close(fd)


def write_all(storage: Storage, fd: int, data: bytes | bytearray, offset: int) -> None:
    """Write all of `data` at `offset`, however little each call takes.

    Raises:
        OSError: it stopped part way; what lies past `offset` is undefined.
    """
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            with view[done:] as rest:
                done += storage.pwrite(fd, rest, offset + done)


def file_size(storage: Storage, path: Path) -> int | None:
    """Return a file's length in bytes, None if there is none.

    Raises:
        StorageError: it cannot be looked at.
    """
    with storage_errors("read", path):
        if not storage.exists(path):
            return None
        fd = storage.open_read(path)
        try:
            return storage.size(fd)
        finally:
            storage.close(fd)


def read_small(storage: Storage, path: Path) -> bytes | None:
    """Return what a small file holds, None if there is none.

    Raises:
        StorageError: it cannot be read.
    """
    size = file_size(storage, path)
    if size is None:
        return None
    with storage_errors("read", path):
        fd = storage.open_read(path)
        try:
            return storage.pread(fd, size, 0)
        finally:
            storage.close(fd)


def fsync_file(storage: Storage, path: Path) -> None:
    """Make a file's content durable.

    Raises:
        StorageError: it is not.
    """
    with storage_errors("sync", path):
        fd = storage.open_read(path)
        try:
            storage.sync(fd)
        finally:
            storage.close(fd)


def fsync_dir(storage: Storage, path: Path) -> None:
    """Make a folder's entries durable.

    Raises:
        StorageError: they are not.
    """
    with storage_errors("sync the folder", path):
        storage.sync_dir(path)


def rename_durable(storage: Storage, source: Path, target: Path) -> None:
    """Rename within one file system and make it durable: the new name first, so that no crash leaves neither.

    Raises:
        StorageError: it did not happen, or may not outlive a crash; doing it again is right if `source` is still there.
    """
    with storage_errors(f"move {printable(source)} to", target):
        storage.rename(source, target)
    fsync_dir(storage, target.parent)
    if source.parent != target.parent:
        fsync_dir(storage, source.parent)


def unlink_durable(storage: Storage, path: Path) -> None:
    """Remove a file, which may be gone already, and make that durable.

    Raises:
        StorageError: it is still there, or may come back after a crash.
    """
    with storage_errors("remove", path), suppress(FileNotFoundError):
        storage.unlink(path)
    fsync_dir(storage, path.parent)


def atomic_write_bytes(storage: Storage, path: Path, data: bytes, *, is_durable: bool, mode: int = PUBLIC_MODE) -> None:
    """Replace a file's content at once: a reader sees the old or the new whole.

    With `is_durable` it also outlives a crash; without, a crash may leave the file old, empty or torn.
    The file written first is hidden and ends in `.tmp`, so that neither a glob of ours nor the inbox takes it.

    Raises:
        StorageError: the file is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with storage_errors("write", path):
            _write_new(storage, temporary, data, mode, is_durable=is_durable)
            storage.rename(temporary, path)
    except StorageError:
        with suppress(OSError):
            storage.unlink(temporary)
        raise
    if is_durable:
        fsync_dir(storage, path.parent)


def _write_new(storage: Storage, path: Path, data: bytes, mode: int, *, is_durable: bool) -> None:
    fd = storage.open_write(path, mode)
    try:
        storage.truncate(fd, 0)  # it may be the leftover of a crash
        write_all(storage, fd, data, 0)
        if is_durable:
            storage.sync(fd)
    finally:
        storage.close(fd)
