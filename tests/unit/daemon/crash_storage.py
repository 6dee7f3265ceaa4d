"""A file system in memory that dies, fills up and forgets like a real one; held to the real one by `test_durable`.

It is as forgetful as POSIX lets it be: what a file holds is durable when the file was synced, an entry of a folder when the
folder was; a rename between folders may leave the file in both, but not in neither. After a failed sync the dirty pages are
dropped: they can be read, and no later sync writes them.
"""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.durable import PUBLIC_MODE

Choose = Callable[[int], int]  # n -> 0 .. n


class KilledError(BaseException):
    """The process is dead; nothing may catch this and go on."""


def chooser(values: Iterable[int]) -> Choose:
    """Return a function that answers with these numbers, and with zero when they are used up."""
    rest = iter(values)
    return lambda limit: next(rest, 0) % (limit + 1)


@dataclass(eq=False)
class Inode:
    """A file's bytes, those that can be read and those that outlive a power cut."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    # (offset, data), or (size, None) for a truncation.
    dirty: list[tuple[int, bytes | None]] = field(default_factory=list)

    def change(self, offset: int, data: bytes | None) -> None:
        """Write, or truncate."""
        apply(self.data, offset, data)
        self.dirty.append((offset, data))

    def sync(self) -> None:
        """Make durable what is dirty."""
        for offset, data in self.dirty:
            apply(self.durable, offset, data)
        self.dirty.clear()

    def lose_power(self, choose: Choose) -> None:
        """Keep some of what is dirty: the first few changes, and of the next one a part, with or without its length."""
        kept = choose(len(self.dirty))
        rest = self.dirty[kept:]
        del self.dirty[kept:]
        self.sync()
        if rest and rest[0][1] is not None:
            offset, data = rest[0]
            torn = data[: choose(len(data))]
            apply(self.durable, offset, torn + bytes(choose(len(data) - len(torn))))
        self.data = bytearray(self.durable)


Changes = dict[str, Inode | None]  # name -> file, None for gone


def apply(target: bytearray, offset: int, data: bytes | None) -> None:
    """Write `data` at `offset`, or truncate to it."""
    if len(target) < offset:
        target += bytes(offset - len(target))
    if data is None:
        del target[offset:]
    else:
        target[offset : offset + len(data)] = data


@dataclass
class Folder:
    """A folder's entries, and the changes to them that are not durable."""

    entries: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    # (atomic changes, what goes with them).
    dirty: list[tuple[Changes, Callable[[], None]]] = field(default_factory=list)

    def change(self, changes: Changes, with_it: Callable[[], None] = lambda: None) -> None:
        """Set and remove entries in one go; `with_it` is called when that becomes durable."""
        update(self.entries, changes)
        self.dirty.append((changes, with_it))

    def sync(self) -> None:
        """Make the entries durable."""
        for changes, with_it in self.dirty:
            update(self.durable, changes)
            with_it()
        self.dirty.clear()


def update(entries: dict[str, Inode], changes: Changes) -> None:
    """Take changes in."""
    for name, inode in changes.items():
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


class CrashStorage:
    """`daemon.durable.Storage`. `fail_at` maps the number of a changing operation to what it raises."""

    def __init__(self, *folders: Path) -> None:
        self.folders = {folder: Folder() for folder in folders}
        self.fail_at: dict[int, BaseException] = {}
        self.num_operations = 0
        self.is_dead = False
        self._open: dict[int, Inode] = {}
        self._next_fd = 3

    # what a test does to it

    def kill(self) -> None:
        """Let the process die and another one start: everything written stays."""
        self._open.clear()
        self.fail_at.clear()
        self.is_dead = False

    def lose_power(self, choose: Choose) -> None:
        """Let the machine die and start: of what was not synced anything may be there."""
        self.kill()
        for folder in self.folders.values():
            kept = choose(len(folder.dirty))
            del folder.dirty[kept:]
        for folder in self.folders.values():
            folder.sync()
        for folder in self.folders.values():
            folder.entries = dict(folder.durable)
        for inode in {
            id(inode): inode for folder in self.folders.values() for inode in folder.entries.values()
        }.values():
            inode.lose_power(choose)

    def end(self, lose: Choose | None) -> None:
        """Let the process die, or where `lose` says what of the rest stays, the machine."""
        if lose is None:
            self.kill()
        else:
            self.lose_power(lose)

    def kill_at(self, operation: int, run: Callable[[], object]) -> bool:
        """Run with a death at an operation, from 1; return False where the run came to its end before."""
        self.fail_at = {self.num_operations + operation: KilledError()}
        try:
            run()
        except KilledError:
            return True
        return False

    def put(self, path: Path, data: bytes) -> None:
        """Let a durable file be there."""
        inode = Inode(bytearray(data), bytearray(data))
        self.folders[path.parent].change({path.name: inode})
        self.folders[path.parent].sync()

    def read(self, path: Path) -> bytes:
        """Return a file's content."""
        return bytes(self._inode(path).data)

    def listing(self, folder: Path) -> dict[str, bytes]:
        """Return a folder's files by name."""
        return {name: bytes(inode.data) for name, inode in sorted(self.folders[folder].entries.items())}

    # Storage

    def open_read(self, path: Path) -> int:
        self._check()
        return self._opened(self._inode(path))

    def open_write(self, path: Path, mode: int = PUBLIC_MODE) -> int:  # noqa: ARG002  modes play no part in a crash
        entries = self._folder(path).entries
        if path.name not in entries:
            self._count()
            self._folder(path).change({path.name: Inode()})
        self._check()
        return self._opened(entries[path.name])

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._check()
        return bytes(self._file(fd).data[offset : offset + size])

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        taken = bytes(data)
        self._check()
        try:
            self._count()
        except BaseException:
            self._file(fd).change(offset, taken[: len(taken) // 2])
            raise
        taken = taken[: (len(taken) + 1) // 2] if self.num_operations % 3 == 0 else taken  # a short write now and then
        self._file(fd).change(offset, taken)
        return len(taken)

    def size(self, fd: int) -> int:
        self._check()
        return len(self._file(fd).data)

    def truncate(self, fd: int, size: int) -> None:
        self._count()
        self._file(fd).change(size, None)

    def sync(self, fd: int) -> None:
        self._check()
        try:
            self._count()
        except OSError:
            self._file(fd).dirty.clear()
            raise
        self._file(fd).sync()

    def close(self, fd: int) -> None:
        self._check()
        self._file(fd)
        del self._open[fd]

    def rename(self, source: Path, target: Path) -> None:
        inode = self._inode(source)
        self._folder(target)
        self._count()
        if source.parent == target.parent:
            if source.name != target.name:
                self._folder(source).change({source.name: None, target.name: inode})
        else:
            arrival = self._folder(target)
            arrival.change({target.name: inode})
            self._folder(source).change({source.name: None}, lambda: update(arrival.durable, {target.name: inode}))

    def unlink(self, path: Path) -> None:
        self._inode(path)
        self._count()
        self._folder(path).change({path.name: None})

    def exists(self, path: Path) -> bool:
        self._check()
        return path.parent in self.folders and path.name in self.folders[path.parent].entries

    def names_in(self, folder: Path) -> list[str]:
        self._check()
        return sorted(self._folder(folder / "x").entries)

    def sync_dir(self, path: Path) -> None:
        self._count()
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.folders[path].sync()

    def _count(self) -> None:
        self._check()
        self.num_operations += 1
        if (error := self.fail_at.get(self.num_operations)) is not None:
            self.is_dead = isinstance(error, KilledError)
            raise error

    def _check(self) -> None:
        if self.is_dead:
            raise KilledError

    def _opened(self, inode: Inode) -> int:
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = inode
        return fd

    def _file(self, fd: int) -> Inode:
        if fd not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[fd]

    def _folder(self, path: Path) -> Folder:
        if path.parent not in self.folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.folders[path.parent]

    def _inode(self, path: Path) -> Inode:
        inode = self._folder(path).entries.get(path.name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return inode
