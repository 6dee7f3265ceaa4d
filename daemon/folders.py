"""The folders of one pipeline in the spool."""

import os
from pathlib import Path

from daemon.durable import storage_errors
from daemon.errors import AccessDeniedError

_PROBE = ".gapless-write-probe"


class Folders:
    """Paths; `make` makes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inbox = root / "inbox"
        self.work = root / "work"
        self.outbox = root / "outbox"
        self.done = root / "done"
        self.failed = root / "failed"

    def make(self) -> None:
        """Make the folders that are missing and prove that each can be written and lies on one device.

        Raises:
            StorageError: one cannot.
        """
        for folder in (self.inbox, self.work, self.outbox, self.done, self.failed):
            with storage_errors("make the folder", folder):
                folder.mkdir(parents=True, exist_ok=True)
            with storage_errors("write into", folder):
                probe = folder / _PROBE
                probe.touch()
                probe.unlink()
            if folder.stat().st_dev != self.inbox.stat().st_dev:
                text = (
                    f"{folder} lies on another device than {self.inbox}: files are claimed by a rename, which needs one"
                )
                raise AccessDeniedError(text, folder, None)

    def free_bytes(self) -> int:
        """Space that this user may still take on the spool's disk.

        Raises:
            StorageError: the spool is not there.
        """
        with storage_errors("ask for the free space of", self.work):
            status = os.statvfs(self.work)
        return status.f_bavail * status.f_frsize
