"""The folders of one pipeline in the spool, and whether they are still the ones found at start."""

import os
import secrets
import threading
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes, printable, storage_errors
from daemon.errors import AccessDeniedError, FoldersGoneError

_PROBE = ".gapless-write-probe"
MARK = ".gapless-pipeline"  # in the pipeline's folder: a name of its own, by which a disk is known when it is back


class Folders:
    """Paths; `make` makes them, `check` tells whether they are still there. Used from any thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inbox = root / "inbox"
        self.work = root / "work"
        self.outbox = root / "outbox"
        self.done = root / "done"
        self.failed = root / "failed"
        self._mark = ""  # what MARK holds; empty before `make`
        self._place = (0, 0)  # device and inode of the root
        self._lock = threading.Lock()

    def make(self) -> None:
        """Make the folders that are missing, prove that files can be moved between them, and remember them.

        Raises:
            StorageError: that cannot be done.
        """
        for folder in (self.inbox, self.work, self.outbox, self.done, self.failed):
            with storage_errors("make the folder", folder):
                folder.mkdir(parents=True, exist_ok=True)
            self._prove_writable(folder)
        mark = self.root / MARK
        if not mark.exists():
            atomic_write_bytes(DiskStorage(), mark, f"{secrets.token_hex(16)}\n".encode(), is_durable=True)
        with storage_errors("read", mark):
            self._mark = mark.read_text(encoding="utf-8")
            self._place = _place_of(self.root)

    def check(self) -> None:
        """Return if the folders are those that `make` found; they may have been away, and the device be numbered anew.

        Raises:
            FoldersGoneError: they are not. Nothing may be concluded from what lies there, and nothing be written.
        """
        with self._lock:
            try:
                place = _place_of(self.root)
                if place == self._place or not self._mark:
                    return
                found = (self.root / MARK).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                what = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be reached ({error.strerror})"
                raise self._gone(what) from error
            if found != self._mark:
                raise self._gone("is another folder than at start")
            self._place = place

    def free_bytes(self) -> int:
        """Space that this user may still take on the spool's disk.

        Raises:
            StorageError: the spool is not there.
        """
        with storage_errors("ask for the free space of", self.work):
            status = os.statvfs(self.work)
        return status.f_bavail * status.f_frsize

    def _prove_writable(self, folder: Path) -> None:
        """Write into a folder and move it to the inbox: a rename is what a claim is, and a device's number can mislead."""
        probe, moved = folder / _PROBE, self.inbox / f"{_PROBE}-moved"
        with storage_errors("write into", folder):
            probe.touch()
        try:
            probe.rename(moved)
        except OSError as error:
            probe.unlink()
            text = (
                f"{printable(folder)} lies on another device than {printable(self.inbox)}: files are claimed by a rename, "
                "which needs one"
            )
            raise AccessDeniedError(text, folder, error.errno) from error
        with storage_errors("write into", self.inbox):
            moved.unlink()

    def _gone(self, what: str) -> FoldersGoneError:
        text = f"{printable(self.root)} {what}: is its disk mounted? Nothing is taken or written until it is back"
        return FoldersGoneError(text, self.root, None)


def _place_of(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
