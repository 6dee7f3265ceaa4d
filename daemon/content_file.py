"""Opening a request file for reading, decompressed on the way where its extension says so.

The content comes in pieces of whatever size is asked for, so memory stays flat however far a file expands: of gzip 32 KiB
are looked back at, of zstd at most `2**MAX_WINDOW_LOG` bytes, which is what the program zstd allows too unless told otherwise.
"""

import errno
import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backports import zstd

from daemon.durable import printable
from daemon.errors import FileError, FileFormatError
from pipelines.counted import counted

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_WINDOW_LOG = 27  # 128 MiB


class ContentFile(Protocol):
    """A file open for reading its content once, from the start."""

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        """Read the next bytes; 0 at the end."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


def open_content(path: Path) -> ContentFile:
    """Open a request file; what reading it raises is for `reading_errors` to translate.

    Raises:
        OSError: it cannot be opened, or is no ordinary file: opening a named pipe would wait for its writer.
        EOFError: it is empty where compressed data should be.
    """
    status = path.stat()
    can_open = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)  # which says itself that it is a folder
    if not can_open:
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    match path.suffix.lower():
        case ".gz":
            if not status.st_size:
                raise EOFError  # the module gzip takes this for the end of its content
            return gzip.GzipFile(path, "rb")
        case ".zst":
            return zstd.ZstdFile(path, options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})
        case _:
            return io.FileIO(path)


@contextmanager
def reading_errors(name: str, action: str, num_bytes: int = 0) -> Iterator[None]:
    """Turn what goes wrong in the block into an error that names the file; at least `num_bytes` of content came before.

    Raises:
        FileFormatError: its compressed data is cut off or damaged.
        FileError: it cannot be read.
    """
    shown = printable(name)
    place = f", behind {counted(num_bytes, 'byte')} of content or more" if num_bytes else ""
    try:
        yield
    except EOFError as error:
        found = f"the end of the file within its compressed data{place}"
        raise FileFormatError(f"{shown}: found {found}, expected all of it: was it copied whole?") from error
    except (zlib.error, zstd.ZstdError, gzip.BadGzipFile) as error:
        found = f"damaged compressed data{place} ({printable(str(error))})"
        raise FileFormatError(f"{shown}: found {found}, expected what its extension says") from error
    except OSError as error:
        raise FileError(f"{shown} cannot be {action}: {error.strerror}") from error
