"""What an earlier run of the daemon had claimed and not published to the end."""

import logging
from collections.abc import Callable
from pathlib import Path

from daemon.dropped_name import dropped_name
from daemon.durable import Storage, fsync_dir, inode_of, printable, storage_errors, unlink_durable
from daemon.errors import JournalError
from daemon.file_kinds import OPTIONS_SUFFIX, kind_of, split_name, stem_of
from daemon.folders import Folders
from daemon.inbox import ClaimedFile, claim_time
from daemon.journal import JOURNAL_SUFFIX, Journal
from daemon.outbox import numbered, unnumbered

log = logging.getLogger(__name__)


def end_renames(folders: Folders, storage: Storage) -> None:
    """Make the claims of an earlier run outlive a power cut, and let a file that one left under two names have the later alone.

    File systems with a journal of their own leave none; with others a file would be run again under its old name. One file
    under two names that no rename of ours gives is somebody's hard link, and is left alone.

    Raises:
        StorageError: a folder cannot be listed, or an old name not be removed.
    """
    names = _names_in(folders.work, storage)
    if names:  # the run that claimed them may have died just before it did this
        fsync_dir(storage, folders.work)
        fsync_dir(storage, folders.inbox)
    for name in names:
        path = folders.work / name
        inode = inode_of(path)
        if inode is None:
            continue
        is_moved = any(_later_name(path, folder, inode, storage) for folder in (folders.done, folders.failed))
        for old in [path] if is_moved else _earlier_names(path, folders.inbox, inode, storage):
            unlink_durable(storage, old)
            log.info(
                "%s: a rename that a power cut interrupted is at its end: this name of the file is gone", printable(old)
            )


def _later_name(path: Path, folder: Path, inode: int, storage: Storage) -> bool:
    stem, suffix = split_name(path.name)
    for name in numbered(stem):
        if not storage.exists(folder / (name + suffix)):
            return False
        if inode_of(folder / (name + suffix)) == inode:
            return True
    return False


def _earlier_names(path: Path, inbox: Path, inode: int, storage: Storage) -> list[Path]:
    """Return the names that a file in work/, or options there, may have had when they were claimed."""
    is_options = path.name.endswith(OPTIONS_SUFFIX)
    stem = path.name.removesuffix(OPTIONS_SUFFIX) if is_options else stem_of(path.name)

    def is_earlier(name: str) -> bool:
        if name.endswith(OPTIONS_SUFFIX) != is_options:
            return False
        given = stem_of(name.removesuffix(OPTIONS_SUFFIX))
        return given in {stem, unnumbered(stem)} and inode_of(inbox / name) == inode

    return [inbox / name for name in _names_in(inbox, storage) if is_earlier(name)]


def _names_in(folder: Path, storage: Storage) -> list[str]:
    with storage_errors("list", folder):
        return storage.names_in(folder)


def leftovers(folders: Folders, storage: Storage, claimed_at: Callable[[Path], int] = claim_time) -> list[ClaimedFile]:
    """Return the files in work/, oldest claim first: inputs, and journals whose input has moved on already.

    Raises:
        StorageError: work/ cannot be listed, or a journal not be read.
    """
    paths = [folders.work / name for name in _names_in(folders.work, storage) if not name.startswith(".")]
    inputs = {split_name(path.name)[0]: path for path in paths if kind_of(path.name) is not None}
    found = [
        ClaimedFile(dropped_name(storage, folders.work, stem) or path.name, stem, path, claimed_at(path))
        for stem, path in inputs.items()
    ]
    for path in paths:
        if path.suffix == JOURNAL_SUFFIX and path.stem not in inputs:
            found += _without_input(path, storage)
    return sorted(found, key=lambda claimed: (claimed.claimed_s, claimed.stem))


def _without_input(path: Path, storage: Storage) -> list[ClaimedFile]:
    try:
        journal, _ = Journal.open(path, storage)
    except JournalError as error:
        log.error("%s; it is left where it is", error)  # noqa: TRY400  the message says it all
        return []
    header = journal.state.header
    journal.close()
    name = path.stem + split_name(header.source_name)[1]
    return [ClaimedFile(header.source_name, path.stem, path.with_name(name), header.created)]
