"""What Gapless itself put into done/ and outbox/: one line a finished file, in `finished.jsonl` of the pipeline's folder.

Retention removes by it and by nothing else. A line that is lost (it is not synced) means a file that is never removed; a file
that a person put there, or put in the place of one of ours, is not in it.
"""

import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes, storage_errors

_NAME = "finished.jsonl"


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input in done/, known by what it keeps when somebody renames it."""

    inode: int
    size: int  # bytes
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "InputFile":
        """Return what a file is known by."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished file."""

    finished: int  # Unix seconds
    stem: str
    batch_id: str  # of STEM.batch.json, as long as that is ours
    outputs: tuple[str, ...]  # names in outbox/, the Batch object's last
    input: InputFile | None  # None: it is not in done/


class Ledger:
    """The lines of one pipeline. Used from any thread."""

    def __init__(self, root: Path) -> None:
        self._path = root / _NAME
        self._lock = threading.Lock()

    def add(self, finished: Finished) -> None:
        """Note a file.

        Raises:
            StorageError: it is not noted.
        """
        with self._lock, storage_errors("write", self._path), self._path.open("ab") as file:
            file.write(_line(finished))

    def read(self) -> list[Finished]:
        """Return all; what cannot be read, as the torn end of a crash, is left out.

        Raises:
            StorageError: the file cannot be read.
        """
        with self._lock:
            return self._read()

    def drop(self, gone: Iterable[Finished]) -> None:
        """Forget files of which nothing is left.

        Raises:
            StorageError: they are still in it.
        """
        lost = set(gone)
        if not lost:
            return
        with self._lock:
            kept = b"".join(_line(finished) for finished in self._read() if finished not in lost)
            atomic_write_bytes(DiskStorage(), self._path, kept, is_durable=True)

    def _read(self) -> list[Finished]:
        found = []
        with storage_errors("read", self._path):
            data = self._path.read_bytes() if self._path.exists() else b""
        for line in data.splitlines():
            with suppress(ValueError, TypeError, KeyError):
                value = json.loads(line)
                given = value.pop("input")
                outputs = tuple(map(str, value.pop("outputs")))
                found.append(Finished(input=given and InputFile(**given), outputs=outputs, **value))
        return found


def _line(finished: Finished) -> bytes:
    """Return it in ASCII, since names may hold what is no UTF-8."""
    return json.dumps(asdict(finished), separators=(",", ":")).encode("ascii") + b"\n"
