"""Removes what Gapless itself put into done/ and outbox/ once it is old enough; off unless the configuration says otherwise.

Never touched: inbox/, work/, failed/, and whatever is not in the ledger or is no longer what the ledger says.
"""

import json
import logging
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.durable import printable, storage_errors
from daemon.folders import Folders
from daemon.ledger import Finished, InputFile, Ledger
from daemon.settings_daemon import RetentionSettings

log = logging.getLogger(__name__)

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule of one pipeline."""

    folders: Folders
    ledger: Ledger
    settings: RetentionSettings
    wall_clock: Callable[[], float] = time.time

    def apply(self) -> list[Path]:
        """Remove what is old enough, and forget files of which nothing is left; return what was removed.

        Raises:
            StorageError: a folder or the ledger cannot be read or written.
        """
        removed: list[Path] = []
        gone: list[Finished] = []
        inputs = self._inputs()
        for finished in self.ledger.read():
            outputs, source = self._outputs(finished), inputs.get(finished.input) if finished.input else None
            if self._is_old(finished, self.settings.outbox_days):
                outputs = [path for path in outputs if not self._remove(path, removed)]
            if source is not None and self._is_old(finished, self.settings.done_days) and self._remove(source, removed):
                source = None
            if not outputs and source is None:
                gone.append(finished)
        self.ledger.drop(gone)
        return removed

    def _is_old(self, finished: Finished, days: float | None) -> bool:
        return days is not None and self.wall_clock() - finished.finished >= days * _DAY_S

    def _inputs(self) -> dict[InputFile, Path]:
        """Return the ordinary files in done/ by what they are known by."""
        found = {}
        with storage_errors("list", self.folders.done):
            for path in self.folders.done.iterdir():
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        found[InputFile.of(status)] = path
        return found

    def _outputs(self, finished: Finished) -> list[Path]:
        """Return what is left of a file's results; nothing where its Batch object is gone or another one has its name."""
        paths = [self.folders.outbox / Path(name).name for name in finished.outputs]
        batch = self.folders.outbox / f"{finished.stem}.batch.json"
        if _batch_id(batch) != finished.batch_id:
            return []
        return [path for path in paths if path.is_file() and not path.is_symlink()]

    def _remove(self, path: Path, removed: list[Path]) -> bool:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("retention: cannot remove %s: %s", printable(path), error.strerror)
            return False
        log.info("retention: removed %s", printable(path))
        removed.append(path)
        return True


def finished_file(
    stem: str, batch: str, results: Iterator[Path] | list[Path], source: Path | None, now: float
) -> Finished:
    """Return the ledger's line of a file that is published: its Batch object, its results, its input in done/ if it is there."""
    status = None
    if source is not None:
        with suppress(OSError):
            status = source.lstat()
    batch_id = str(json.loads(batch)["id"])
    names = sorted((path.name for path in results if path.exists()), key=lambda name: name.endswith(".batch.json"))
    return Finished(int(now), stem, batch_id, tuple(names), InputFile.of(status) if status else None)


def _batch_id(path: Path) -> str | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads(path.read_bytes())["id"])
    return None
