"""Telling others that a file is done: a command or a URL gets its Batch object, at least once, and never holds a file up.

    note written --> file published, journal gone --> told --> note removed
                                        |-- died here: told at the next start --'

The note `work/STEM.on_done` is durable before publishing begins, and counts once the journal is gone. So a crash at any point
between repeats the telling and never drops it; whoever is told knows a file by the Batch object's id. What cannot be told in
`len(RETRY_S) + 1` tries is logged, counted and given up.
"""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from daemon.durable import (
    PRIVATE_MODE,
    DiskStorage,
    Storage,
    atomic_write_bytes,
    inode_of,
    printable,
    storage_errors,
    unlink_durable,
    utf8_name,
)
from daemon.errors import StorageError
from daemon.folders import Folders
from daemon.journal import JOURNAL_SUFFIX
from daemon.json_text import json_document
from daemon.on_done_delivery import DeliveryError, deliver
from daemon.outbox import FileNames
from daemon.waiting import wait_for_event

log = logging.getLogger(__name__)

NOTE_SUFFIX = ".on_done"
MAX_AT_ONCE = 4  # tries of one pipeline; what others run does not hold them up
RETRY_S = (1.0, 5.0, 25.0, 60.0)  # before the second try and so on


class Telling(StrEnum):
    """How it ended; a label of `gapless_on_done_total`."""

    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Note:
    """Whom to tell what."""

    target: tuple[str, ...]  # a command and its arguments, or one URL
    pipeline: str
    stem: str
    outbox: str
    batch: dict[str, Any]  # the final Batch object

    def environment(self) -> dict[str, str]:
        """Return what a command is told beside the Batch object; names of files that there are none of are empty."""
        outbox = Path(self.outbox)
        files = {"GAPLESS_OUTPUT": "output_file_id", "GAPLESS_ERRORS": "error_file_id"}
        return {
            "GAPLESS_PIPELINE": self.pipeline,
            "GAPLESS_STEM": self.stem,
            "GAPLESS_STATUS": str(self.batch["status"]),
            "GAPLESS_BATCH": str(outbox / f"{self.stem}.batch.json"),
            "GAPLESS_REPORT": str(outbox / f"{self.stem}.report.json"),
        } | {name: str(outbox / self.batch[key]) if self.batch.get(key) else "" for name, key in files.items()}


def note_path(names: FileNames) -> Path:
    """Return where a file's note lies, beside its journal."""
    return names.input.with_name(names.stem + NOTE_SUFFIX)


def write_note(names: FileNames, pipeline: str, target: Sequence[str], batch: str) -> None:
    """Make it durable that somebody is to be told once the file is published.

    Raises:
        StorageError: it is not.
    """
    content = {
        "target": list(target),
        "pipeline": pipeline,
        "stem": utf8_name(names.stem),
        "outbox": utf8_name(str(names.outbox)),
        "batch": json.loads(batch),
    }
    atomic_write_bytes(DiskStorage(), note_path(names), json_document(content), is_durable=True, mode=PRIVATE_MODE)


def read_note(path: Path) -> Note:
    """Return a note.

    Raises:
        StorageError: it cannot be read.
        ValueError: it is none.
    """
    with storage_errors("read", path):
        data = path.read_bytes()
    value = json.loads(data)
    try:
        target = tuple(str(part) for part in value["target"])
        return Note(target, str(value["pipeline"]), str(value["stem"]), str(value["outbox"]), dict(value["batch"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"found {error!r}") from error


def left_notes(folders: Folders) -> list[Path]:
    """Return the notes of an earlier run whose file is published.

    Raises:
        StorageError: work/ cannot be listed.
    """
    with storage_errors("list", folders.work):
        notes = sorted(path for path in folders.work.iterdir() if path.suffix == NOTE_SUFFIX)
    return [path for path in notes if inode_of(path.with_suffix(JOURNAL_SUFFIX)) is None and path.name[0] != "."]


class OnDone:
    """Tells what is to be told, a few at a time of each pipeline. Used from the event loop's thread."""

    def __init__(
        self,
        count: Callable[[str, Telling], None],
        retry_s: Sequence[float] = RETRY_S,
        storage: Storage | None = None,
    ) -> None:
        self._count = count  # told a pipeline and how a telling ended
        self._retry_s = retry_s
        self._storage = storage or DiskStorage()
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_AT_ONCE))
        self._is_stopping = asyncio.Event()
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    @property
    def num_pending(self) -> int:
        """Files that somebody is still to be told of."""
        return len(self._tasks)

    def add(self, path: Path) -> None:
        """Tell what a note says, if nobody is at it."""
        if path not in self._tasks:
            self._tasks[path] = task = asyncio.create_task(self._tell(path), name=f"on_done {path.stem}")
            task.add_done_callback(lambda _: self._tasks.pop(path, None))

    async def drain(self, grace_s: float) -> None:
        """Begin no further try, wait for those that run, at most so long; what is left is told at the next start."""
        self._is_stopping.set()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, path: Path) -> None:
        try:
            note = await asyncio.to_thread(read_note, path)
        except (StorageError, ValueError) as error:
            log.error("on_done: %s cannot be used and is left where it is: %s", printable(path), error)  # noqa: TRY400  one line
            return
        ending = await self._try_often(note)
        if ending is None:
            return
        self._count(note.pipeline, ending)
        with suppress(StorageError):  # then it is told once more at the next start
            await asyncio.to_thread(unlink_durable, self._storage, path)

    async def _try_often(self, note: Note) -> Telling | None:
        """Return how it ended, None if the daemon stops before that."""
        who = f"pipeline {note.pipeline}: on_done of {printable(note.stem)}"
        for number, wait_s in enumerate((*self._retry_s, None), start=1):
            # A place is held by a try alone: one that failed holds nobody up while it waits.
            async with self._slots[note.pipeline]:
                if self._is_stopping.is_set():
                    return None
                try:
                    await deliver(note.target, note.batch, note.environment(), Path(note.outbox).parent)
                except DeliveryError as error:
                    log.warning("%s failed, try %d of %d: %s", who, number, len(self._retry_s) + 1, error)
                else:
                    return Telling.DELIVERED
            if wait_s is not None:
                await wait_for_event(self._is_stopping, wait_s)
        log.error("%s is given up", who)
        return Telling.FAILED
