"""A file of a `Storage` in the shape in which Python's libraries want files."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.durable import Storage, storage_errors, write_all

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class StorageFile(io.RawIOBase):
    """A file of a `Storage` as Python's libraries want files; its errors are StorageErrors."""

    def __init__(self, storage: Storage, path: Path, fd: int) -> None:
        super().__init__()
        self._storage = storage
        self._path = path
        self._fd = fd
        self._position = 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def writable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read from the position on."""
        view = memoryview(buffer)
        with storage_errors("read", self._path):
            data = self._storage.pread(self._fd, len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: "ReadableBuffer") -> int:
        """Write all of `data` at the position."""
        return self.write_all(bytes(data))

    def write_all(self, data: bytes | bytearray) -> int:
        """Write all of `data` at the position."""
        with storage_errors("write", self._path):
            write_all(self._storage, self._fd, data, self._position)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        match whence:
            case io.SEEK_CUR:
                offset += self._position
            case io.SEEK_END:
                with storage_errors("read", self._path):
                    offset += self._storage.size(self._fd)
            case _:
                pass
        self._position = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Set the length."""
        size = self._position if size is None else size
        with storage_errors("write", self._path):
            self._storage.truncate(self._fd, size)
        return size

    def sync(self) -> None:
        """Make the content durable."""
        with storage_errors("sync", self._path):
            self._storage.sync(self._fd)

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            try:
                self._storage.close(self._fd)
            finally:
                super().close()


def open_storage_file(storage: Storage, path: Path, *, is_new: bool = False) -> StorageFile:
    """Open an existing file for reading, or a new one, in the place of what is there, for writing.

    Raises:
        StorageError: it cannot be opened.
    """
    with storage_errors("open", path):
        if not is_new:
            return StorageFile(storage, path, storage.open_read(path))
        file = StorageFile(storage, path, storage.open_write(path))
    file.truncate(0)
    return file
