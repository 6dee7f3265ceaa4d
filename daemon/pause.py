"""Why a pipeline takes no files: what its intake and its runs have met, as long as they meet it."""

import errno
from enum import StrEnum

from daemon.errors import DiskFullError, FoldersGoneError, ReadOnlyError, StorageError


class PauseCause(StrEnum):
    """Why no file is taken; a label of `gapless_pipeline_paused`."""

    BY_HAND = "by_hand"  # somebody paused it: `gapless pause`
    ENGINE = "engine"  # its engine is given up, after engines.NAME.max_restarts
    DISK_FULL = "disk_full"  # no space or quota is left, or less than daemon.min_free_bytes
    READ_ONLY = "read_only"
    GONE = "gone"  # its folders are not there: moved away, or their disk is not mounted
    STORAGE = "storage"  # any other error of the file system

    @classmethod
    def of(cls, error: StorageError) -> "PauseCause":
        """Return the cause that an error stands for."""
        match error:
            case DiskFullError():
                return cls.DISK_FULL
            case ReadOnlyError():
                return cls.READ_ONLY
            case FoldersGoneError():
                return cls.GONE
            case StorageError(code=errno.ENOENT):  # one of the folders is missing
                return cls.GONE
            case _:
                return cls.STORAGE


class Troubles:
    """Storage errors that somebody waits out, by who that is. Used from the event loop's thread."""

    def __init__(self) -> None:
        self._errors: dict[str, StorageError] = {}

    @property
    def current(self) -> StorageError | None:
        """The oldest that lasts."""
        return next(iter(self._errors.values()), None)

    def note(self, who: str, error: StorageError) -> None:
        """Somebody met an error and will try again."""
        self._errors[who] = error

    def clear(self, who: str) -> None:
        """It got through, or is gone."""
        self._errors.pop(who, None)
