"""What an earlier run of the daemon had claimed and not published to the end."""

import logging
from collections.abc import Callable
from pathlib import Path

from daemon.durable import Storage, storage_errors
from daemon.errors import JournalError
from daemon.file_kinds import kind_of, split_name
from daemon.folders import Folders
from daemon.inbox import ClaimedFile, claim_time
from daemon.journal import Journal

log = logging.getLogger(__name__)

JOURNAL_SUFFIX = ".journal"


def leftovers(folders: Folders, storage: Storage, claimed_at: Callable[[Path], int] = claim_time) -> list[ClaimedFile]:
    """Return the files in work/, oldest claim first: inputs, and journals whose input has moved on already.

    Raises:
        StorageError: work/ cannot be listed, or a journal not be read.
    """
    with storage_errors("list", folders.work):
        paths = [folders.work / name for name in storage.names_in(folders.work) if not name.startswith(".")]
    inputs = {split_name(path.name)[0]: path for path in paths if kind_of(path.name) is not None}
    found = [ClaimedFile(path.name, stem, path, claimed_at(path)) for stem, path in inputs.items()]
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
