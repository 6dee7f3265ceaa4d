"""What becomes of a file that was put into an inbox, told from outside of the daemon and without asking it.

A file keeps its inode through every move from the inbox to work/ and on to done/, whatever name it gets on the way (STEM~2).
Its Batch object names the inode, so that its results are found however late one looks.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from daemon.batch_object import FINAL_STATUSES
from daemon.durable import inode_of
from daemon.file_kinds import stem_of
from daemon.folders import Folders

BATCH_SUFFIX = ".batch.json"


class Stage(StrEnum):
    """Where a file is."""

    INBOX = "inbox"
    TAKEN = "taken"
    DONE = "done"  # its results are in the outbox
    GONE = "gone"  # it is in none of the folders, or its results are


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look finds."""

    stage: Stage
    stem: str | None = None  # that its results have, once known
    batch: dict[str, Any] | None = None  # the Batch object, once there is one

    @property
    def num_done(self) -> int:
        """Requests that have ended."""
        counts = self._counts
        return int(counts["completed"] + counts["failed"])

    @property
    def num_failed(self) -> int:
        """Requests in the errors file."""
        return int(self._counts["failed"])

    @property
    def num_total(self) -> int:
        """All requests; 0 before they are counted."""
        return int(self._counts["total"])

    @property
    def num_tokens(self) -> int:
        """Tokens of the answers so far."""
        usage = self.batch.get("usage") if self.batch else None
        return int(usage["output_tokens"]) if usage else 0

    @property
    def _counts(self) -> dict[str, int]:
        none = {"total": 0, "completed": 0, "failed": 0}
        counts: dict[str, int] = self.batch["request_counts"] if self.batch else none
        return counts


class Followed:
    """One file, to be looked at again and again."""

    def __init__(self, file: Path, folders: Folders, name_in_inbox: Path) -> None:
        """Begin with a file that has, or will have, a name in the inbox.

        Raises:
            OSError: it cannot be looked at.
        """
        self.name = name_in_inbox.name
        self._path = name_in_inbox
        self._folders = folders
        self._inode = file.stat().st_ino
        self._stem: str | None = None

    def look(self) -> Sight:
        """Look now; the order of the places is that in which a file goes through them, so that none is missed."""
        if self._stem is None:
            if inode_of(self._path) == self._inode:
                return Sight(Stage.INBOX)
            self._stem = self._stem_in_work() or self._stem_in_outbox()
        if self._stem is None:
            return Sight(Stage.GONE)
        batch = read_batch(self._folders.outbox / (self._stem + BATCH_SUFFIX))
        if batch is None:
            stage = Stage.TAKEN if self._stem_in_work() else Stage.GONE
            return Sight(stage, self._stem)
        stage = Stage.DONE if batch["status"] in FINAL_STATUSES else Stage.TAKEN
        return Sight(stage, self._stem, batch)

    def _stem_in_work(self) -> str | None:
        for entry in _entries(self._folders.work):
            if entry.inode() == self._inode:
                return stem_of(entry.name)
        return None

    def _stem_in_outbox(self) -> str | None:
        """Return the stem of the Batch object that names this file: its own, or that with a number behind."""
        own = stem_of(self.name)
        for entry in _entries(self._folders.outbox):
            stem = entry.name.removesuffix(BATCH_SUFFIX)
            if stem == entry.name or not (stem == own or stem.startswith(f"{own}~")):
                continue
            batch = read_batch(Path(entry.path))
            if batch is not None and (batch.get("metadata") or {}).get("inode") == str(self._inode):
                return stem
        return None


def read_batch(path: Path) -> dict[str, Any] | None:
    """Return a Batch object, None where there is none, or what lies there is none: people may change what is in the outbox."""
    with suppress(OSError, ValueError):
        value = json.loads(path.read_bytes())
        if isinstance(value, dict) and _is_batch(value):
            return value
    return None


def _is_batch(value: Mapping[str, Any]) -> bool:
    """Whether the parts of a Batch object that we look at are there, and of their types."""
    counts, metadata = value.get("request_counts"), value.get("metadata") or {}
    return (
        isinstance(value.get("status"), str)
        and isinstance(counts, dict)
        and all(isinstance(counts.get(key), int) for key in ("total", "completed", "failed"))
        and isinstance(metadata, dict)
        and all(isinstance(text, str) for text in metadata.values())
    )


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder; nothing where this user may not look."""
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries
