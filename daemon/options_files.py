"""Options in the inbox: `STEM.options.yaml` (or `NAME.options.yaml`), dropped before the file they are for.

They are taken with it: a file that has options beside it waits until they are complete too, and they are moved into work/
first, so that no crash in between lets a file run without them. Options without a file wait for one.
"""

import os
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from daemon.dropped_name import dropped_name
from daemon.durable import Storage, printable, storage_errors
from daemon.file_kinds import OPTIONS_SUFFIX, kind_of, stem_of
from daemon.folders import Folders
from daemon.journal import JOURNAL_SUFFIX
from daemon.outbox import move_input, reason_document


class OptionsFiles:
    """The options in one inbox. Used from one thread at a time.

    `is_complete(name, status, now_s)` tells, by the looks at a file, whether it is complete.
    """

    def __init__(
        self, folders: Folders, storage: Storage, is_complete: Callable[[str, os.stat_result, float], bool]
    ) -> None:
        self._inbox = folders.inbox
        self._work = folders.work
        self._storage = storage
        self._is_complete = is_complete
        self._found: dict[str, bool] = {}  # options in the inbox by name, and whether they are complete
        self.waiting: Mapping[str, str] = {}  # options without a file, and what they wait for

    @property
    def names(self) -> Collection[str]:
        """The options that the last look found."""
        return self._found.keys()

    def look(self, now_s: float) -> None:
        """Note what is there.

        Raises:
            StorageError: the inbox cannot be listed.
        """
        self._found = {}
        with storage_errors("list", self._inbox), os.scandir(self._inbox) as entries:
            for entry in entries:
                if not entry.name.endswith(OPTIONS_SUFFIX) or entry.name.startswith("."):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone since the listing
                if stat.S_ISREG(status.st_mode):
                    self._found[entry.name] = self._is_complete(entry.name, status, now_s)

    def explain(self, names: Collection[str], stem_of: Callable[[str], str]) -> None:
        """Note which options wait for want of a file; `names` are the files that wait in the inbox."""
        targets = {*names, *(stem_of(name) for name in names)}
        self.waiting = {
            options: f"it waits for a file {printable(target)}; one that was taken already keeps what it was taken with"
            for options in self._found
            if (target := options.removesuffix(OPTIONS_SUFFIX)) not in targets
        }

    def are_ready_for(self, name: str, stem: str) -> bool:
        """Whether a file in the inbox has no options, or complete ones."""
        options = self._for(name, stem)
        return options is None or self._found[options]

    def take(self, name: str, stem: str, new_stem: str) -> Path | None:
        """Move a file's options into work/, where the file will be under `new_stem`; return where they were.

        Raises:
            StorageError: they cannot be moved.
        """
        options = self._for(name, stem)
        if options is None:
            return None
        source, target = self._inbox / options, self._work / f"{new_stem}{OPTIONS_SUFFIX}"
        with storage_errors(f"move {printable(source)} to", target):
            self._storage.rename(source, target)
        del self._found[options]
        return source

    def put_back(self, source: Path, new_stem: str) -> None:
        """Undo `take`, because the file was gone.

        Raises:
            StorageError: they stay in work/ until the next start.
        """
        with storage_errors("move back", source):
            self._storage.rename(self._work / f"{new_stem}{OPTIONS_SUFFIX}", source)

    def _for(self, name: str, stem: str) -> str | None:
        return next((key for key in (name + OPTIONS_SUFFIX, stem + OPTIONS_SUFFIX) if key in self._found), None)


def put_orphans_back(folders: Folders, storage: Storage) -> None:
    """Return options to the inbox whose file was not claimed any more when an earlier run died.

    Raises:
        StorageError: one cannot be moved.
    """
    with storage_errors("list", folders.work):
        names = set(storage.names_in(folders.work))
    inputs = {stem_of(name) for name in names if kind_of(name) is not None}
    for name in sorted(names):
        if name.endswith(OPTIONS_SUFFIX) and not name.startswith("."):
            stem = name.removesuffix(OPTIONS_SUFFIX)
            if stem + JOURNAL_SUFFIX not in names and stem not in inputs:
                dropped = dropped_name(storage, folders.work, stem)  # the claim may have numbered it
                target = folders.inbox / f"{stem if dropped is None else stem_of(dropped)}{OPTIONS_SUFFIX}"
                _put_back(folders.work / name, target, folders, storage)


def _put_back(source: Path, target: Path, folders: Folders, storage: Storage) -> None:
    """Move options back to where they were dropped; where others were dropped meanwhile, these go to failed/."""
    if storage.exists(target):
        text = f"{printable(target.name)} was dropped anew before its file was taken; these are the ones before"
        reason = reason_document(target.name, "options_replaced", text)
        move_input(
            storage, source, target.name.removesuffix(OPTIONS_SUFFIX), folders.failed, reason, suffix=OPTIONS_SUFFIX
        )
        return
    with storage_errors("move back", target):
        storage.rename(source, target)
