"""The name under which a file was dropped, where its claim gives it another: kept from before the claim to its journal.

A claim is a rename, and a renamed file does not say what it was called. Its journal does, but that begins once the file has
been read. So `work/STEM.dropped` is durable before a file is claimed under a stem that is not its own, and goes when the journal
is durable:

    a.jsonl   -->   a~2.dropped   -->   a~2.jsonl   -->   a~2.journal   -->   a~2.dropped is gone

A file that keeps its stem needs none and pays nothing.
"""

import os
from contextlib import suppress
from pathlib import Path

from daemon.durable import PRIVATE_MODE, Storage, atomic_write_bytes, read_small, storage_errors
from daemon.file_kinds import kind_of, stem_of
from daemon.journal import JOURNAL_SUFFIX

DROPPED_SUFFIX = ".dropped"


def note_dropped_name(storage: Storage, work: Path, stem: str, name: str) -> None:
    """Note that the file that is about to be claimed as `stem` was dropped as `name`, durably.

    Raises:
        StorageError: it cannot be written.
    """
    atomic_write_bytes(storage, _path(work, stem), os.fsencode(name), is_durable=True, mode=PRIVATE_MODE)


def dropped_name(storage: Storage, work: Path, stem: str) -> str | None:
    """Return the name under which the file with this stem was dropped, None if nothing is noted.

    Raises:
        StorageError: it cannot be read.
    """
    content = read_small(storage, _path(work, stem))
    return None if content is None else os.fsdecode(content)


def forget_dropped_name(storage: Storage, work: Path, stem: str) -> None:
    """Remove what is noted, if anything is.

    Raises:
        StorageError: it is still there.
    """
    path = _path(work, stem)
    with storage_errors("remove", path), suppress(FileNotFoundError):
        if storage.exists(path):
            storage.unlink(path)


def forget_stray_names(storage: Storage, work: Path) -> None:
    """Remove what an earlier run noted of files that were not claimed after all, or have a journal.

    Raises:
        StorageError: something is still there.
    """
    with storage_errors("list", work):
        names = set(storage.names_in(work))
    inputs = {stem_of(name) for name in names if kind_of(name) is not None}
    for name in sorted(names):
        stem = name.removesuffix(DROPPED_SUFFIX)
        if stem != name and (stem not in inputs or stem + JOURNAL_SUFFIX in names):
            forget_dropped_name(storage, work, stem)


def _path(work: Path, stem: str) -> Path:
    return work / f"{stem}{DROPPED_SUFFIX}"
