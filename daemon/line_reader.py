"""Reading the bytes of a request file: hashed and measured on their way, cut into lines in flat memory."""

import codecs
import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.content_file import ContentFile, open_content, reading_errors
from daemon.durable import printable
from daemon.errors import FileFormatError, ReadCancelledError
from daemon.request_record import Unreadable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_REQUEST_BYTES = 64 << 20  # a longer line or element is refused without being held
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_TEXT = {  # first bytes -> what has them; no text begins so
    b"\x1f\x8b": "gzip data, which .jsonl.gz is called",
    b"\x28\xb5\x2f\xfd": "zstd data, which .jsonl.zst is called",
    b"PK\x03\x04": "a zip archive, as .xlsx and .docx are",
}
JSON_SPACE = b" \t\r\n"
CHUNK_BYTES = 1 << 18
# After so many blank lines or skipped requests in a row, whoever reads in pieces may do something else.
QUIET = 500


class MeteredFile(io.RawIOBase):
    """A file being read from its start, once: what `open_metered` describes."""

    def __init__(
        self,
        file: ContentFile,
        name: str,
        on_progress: Callable[[int], None] | None,
        is_cancelled: Callable[[], bool] | None,
    ) -> None:
        super().__init__()
        self._file = file
        self._name = name
        self._on_progress = on_progress
        self._is_cancelled = is_cancelled
        self._hash = hashlib.sha256()
        self.num_bytes = 0  # of content, read so far

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what was read so far, hexadecimal."""
        return self._hash.hexdigest()

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes.

        Raises:
            FileError: the file cannot be read on, not be decompressed, or is in UTF-16 or no text.
            ReadCancelledError: `is_cancelled` says so.
        """
        if self._is_cancelled is not None and self._is_cancelled():
            raise ReadCancelledError(f"reading {printable(self._name)} was cancelled at byte {self.num_bytes}")
        with reading_errors(self._name, f"read at byte {self.num_bytes}", self.num_bytes):
            size = self._file.readinto(buffer) or 0
        content = memoryview(buffer)[:size]
        if not self.num_bytes:
            self._check_encoding(bytes(content[:CHUNK_BYTES]))
        self._hash.update(content)
        self.num_bytes += size
        if self._on_progress is not None:
            self._on_progress(self.num_bytes)
        return size

    def _check_encoding(self, beginning: bytes) -> None:
        """Refuse what is no UTF-8, whole: in pieces it is as many faults as it has lines, none of which says what it is.

        Text in it has zero bytes, at the latest in its first comma or line end; a damaged line of UTF-8 has none.
        """
        mark = beginning[:2]
        for first, kind in _NO_TEXT.items():
            if beginning.startswith(first):
                raise FileFormatError(f"{printable(self._name)}: found {kind}, expected text in UTF-8")
        if mark in _UTF16_MARKS and b"\0" in beginning:
            found = f"text in UTF-16 (it begins with 0x{mark.hex()})"
            raise FileFormatError(f"{printable(self._name)}: found {found}, expected UTF-8")

    def buffered(self) -> io.BufferedReader:
        """Return the file behind a buffer; closing that closes the file."""
        return io.BufferedReader(self, CHUNK_BYTES)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_metered(
    path: Path,
    on_progress: Callable[[int], None] | None = None,
    is_cancelled: Callable[[], bool] | None = None,
    name: str | None = None,
) -> MeteredFile:
    """Open a request file, called `name` in messages; what is read, measured and hashed is its content, decompressed.

    `on_progress` is called with the bytes read so far and `is_cancelled` is asked, both once a chunk and in the thread
    that reads.

    Raises:
        FileError: it cannot be opened.
    """
    name = str(path) if name is None else name
    with reading_errors(name, "opened"):
        return MeteredFile(open_content(path), name, on_progress, is_cancelled)


class LineReader:
    """The lines of a file: cut at line feeds alone, blank ones counted and left out.

    Iterating gives (line number from 1, content). A byte order mark at the start is no content.
    """

    def __init__(self, file: io.BufferedReader, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._file = file
        self._max_bytes = max_bytes  # of one line, its end included
        self.num_lines = 0
        self.num_blank = 0

    def __iter__(self) -> Iterator[tuple[int, bytes | Unreadable]]:
        """Read to the end of the file."""
        return (piece for piece in self.in_pieces() if piece is not None)

    def in_pieces(self) -> Iterator[tuple[int, bytes | Unreadable] | None]:
        """Read to the end of the file, with None where no line has come for a while."""
        readline, limit = self._file.readline, self._max_bytes + 1
        while raw := readline(limit):
            self.num_lines += 1
            if len(raw) == limit:
                size = len(raw)
                while not raw.endswith(b"\n") and (raw := readline(CHUNK_BYTES)):
                    size += len(raw)
                    yield None
                yield self.num_lines, oversized(size, self._max_bytes)
                continue
            content = raw.rstrip(JSON_SPACE)
            if self.num_lines == 1:
                content = content.removeprefix(BYTE_ORDER_MARK)
            if content:
                yield self.num_lines, content
            else:
                self.num_blank += 1
                if not self.num_blank % QUIET:
                    yield None


def oversized(size: int, max_bytes: int) -> Unreadable:
    """Return what stands for a request of `size` bytes."""
    return Unreadable(f"found {size} bytes, expected at most {max_bytes}")
