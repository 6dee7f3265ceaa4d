"""What an earlier run of the daemon had claimed and not published to the end."""

import logging
from pathlib import Path

from daemon.durable import storage_errors
from daemon.errors import JournalError
from daemon.file_kinds import kind_of, split_name
from daemon.folders import Folders
from daemon.inbox import ClaimedFile
from daemon.journal import Journal

log = logging.getLogger(__name__)

JOURNAL_SUFFIX = ".journal"


def leftovers(folders: Folders) -> list[ClaimedFile]:
    """Return the files in work/, oldest claim first: inputs, and journals whose input has moved on already.

    The time of a claim is the input's ctime, which its rename into work/ has set.

    Raises:
        StorageError: work/ cannot be listed.
    """
    with storage_errors("list", folders.work):
        paths = sorted(folders.work.iterdir())
    files = [path for path in paths if kind_of(path.name) is not None and not path.name.startswith(".")]
    inputs = {split_name(path.name)[0]: path for path in files}
    found = [ClaimedFile(path.name, stem, path, int(path.stat().st_ctime)) for stem, path in inputs.items()]
    for path in paths:
        if path.suffix == JOURNAL_SUFFIX and not path.name.startswith(".") and path.stem not in inputs:
            found += _without_input(path)
    return sorted(found, key=lambda claimed: (claimed.claimed_s, claimed.stem))


def _without_input(path: Path) -> list[ClaimedFile]:
    try:
        journal, _ = Journal.open(path)
    except JournalError as error:
        log.error("%s; it is left where it is", error)  # noqa: TRY400  the message says it all
        return []
    header = journal.state.header
    journal.close()
    name = path.stem + split_name(header.source_name)[1]
    return [ClaimedFile(header.source_name, path.stem, path.with_name(name), header.created)]
