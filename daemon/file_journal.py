"""The journal of one claimed file: opening what an earlier run left, or writing down what the file was when it was taken."""

import logging
from pathlib import Path

from daemon.durable import Storage, printable, storage_errors
from daemon.inbox import ClaimedFile, Content
from daemon.journal import Journal
from daemon.journal_records import Header
from daemon.made_with import hash_of_model
from daemon.settings_pipeline import PipelineSettings
from pipelines.config import EngineConfig
from pipelines.counted import counted

log = logging.getLogger(__name__)


def reopen_journal(path: Path, who: str, storage: Storage) -> Journal | None:
    """Open the journal that an earlier run left, None if there is none; `who` is named in the log.

    Raises:
        JournalError: it is no journal of this version.
        StorageError: it cannot be read.
    """
    if not storage.exists(path):
        return None
    journal, recovery = Journal.open(path, storage)
    log.info(
        "%s: %s answered already, %s cut from the journal",
        who, counted(recovery.num_lines, "request"), counted(recovery.cut_bytes, "torn byte"),
    )  # fmt: skip
    return journal


def create_journal(
    path: Path,
    claimed: ClaimedFile,
    fingerprint: str,
    settings: PipelineSettings,
    engine: EngineConfig,
    *,
    content: Content,
    storage: Storage,
) -> Journal:
    """Begin a journal with what the file is and how it will be run; `fingerprint` is empty if the file could not be read.

    `content` is what the file was before it was read, so that a change since then is noticed. A journal that is there already
    comes from an earlier try, of which only the last sync failed.

    Raises:
        StorageError: the journal cannot be written.
    """
    num_bytes, mtime_ns = content
    header = Header(
        fingerprint=fingerprint,
        created=claimed.claimed_s,
        source_name=claimed.name,
        input_bytes=num_bytes,
        input_mtime_ns=mtime_ns,
        model_hash=hash_of_model(engine),
        settings=settings.to_record(),
    )
    with storage_errors("remove", path):
        if storage.exists(path):
            storage.unlink(path)
    return Journal.create(path, header, storage)


def content_of(path: Path) -> Content:
    """Return the size and the time by which a change of an input is noticed.

    Raises:
        OSError: it is gone.
    """
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def why_changed(path: Path, name: str, header: Header) -> str | None:
    """Say how the input differs from what was claimed; None if it does not."""
    try:
        content = content_of(path)
    except OSError as error:
        return f"{printable(name)} is gone from work/: {error.strerror}"
    if content == (header.input_bytes, header.input_mtime_ns):
        return None
    return f"{printable(name)} was changed after it was taken"
