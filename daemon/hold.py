"""Why one pipeline takes no files: somebody's switch, its disk, its engine, or that it is to go; and when people are told."""

import logging
from collections.abc import Callable
from pathlib import Path

from daemon.errors import StorageError
from daemon.pause import PauseCause, Troubles
from daemon.pause_file import PauseFile

log = logging.getLogger(__name__)

PAUSED_BY_HAND = "paused by hand"
REMOVED = "not in the configuration any more: what runs finishes, then it is gone"
_NO_DIGITS = str.maketrans("", "", "0123456789,")


class Hold:
    """What holds one pipeline. Used from the event loop's thread.

    `why_engine_is_down` says why its engine is given up, so that only a person can have it go on; None if it is not.
    """

    def __init__(self, pipeline: str, root: Path, why_engine_is_down: Callable[[], str | None]) -> None:
        self.by_hand: str | None = None  # somebody paused it: no file is taken, nothing is fed
        self.round_error: StorageError | None = None  # met by a round
        self.troubles = Troubles()  # met by the runs
        self.is_retiring = False  # it is not in the configuration any more
        self._pipeline = pipeline
        self._switch = PauseFile(root)
        self._why_engine_is_down = why_engine_is_down
        self._said: str | None = None  # the reason that the log knows

    @property
    def because(self) -> str | None:
        """Why no file is taken; None while files are."""
        if self.by_hand is not None:
            return f"{PAUSED_BY_HAND}: {self.by_hand}"
        return REMOVED if self.is_retiring else self.stuck_because

    @property
    def stuck_because(self) -> str | None:
        """Why no file is taken although nobody asked for that: the disk's reason, else the engine's."""
        return self._why_engine_is_down() if self.trouble is None else str(self.trouble)

    @property
    def trouble(self) -> StorageError | None:
        """What the disk refuses."""
        return self.round_error or self.troubles.current

    @property
    def cause(self) -> PauseCause | None:
        """The kind of what pauses it; None if nothing does."""
        if self.by_hand is not None:
            return PauseCause.BY_HAND
        if self.trouble is not None:
            return PauseCause.of(self.trouble)
        return None if self._why_engine_is_down() is None else PauseCause.ENGINE

    @property
    def lets_claim(self) -> bool:
        """Whether a round may claim files, once it has come that far without an error."""
        is_free = self.by_hand is None and self.troubles.current is None and not self.is_retiring
        return is_free and self._why_engine_is_down() is None

    def take_resume(self) -> bool:
        """Return, once, whether somebody asked to have what was given up tried again."""
        return self._switch.take_resume()

    def look_at_switch(self) -> bool:
        """Notice that somebody paused this pipeline or lets it go on; return whether that is new."""
        reason = self._switch.reason()
        if reason == self.by_hand:
            return False
        if reason is not None:
            log.warning("pipeline %s is paused by hand, running requests finish: %s", self._pipeline, reason)
        else:
            log.info("pipeline %s goes on, as somebody wished", self._pipeline)
        self.by_hand = reason
        return True

    def tell(self) -> None:
        """Log what it is stuck by, once: a reason in which only a number changed, such as the free bytes, is not a new one."""
        reason = self.stuck_because
        if reason is not None and (self._said is None or not _is_the_same(reason, self._said)):
            log.error("pipeline %s takes no files: %s", self._pipeline, reason)
        if reason is None and self._said is not None:
            log.info("pipeline %s goes on", self._pipeline)
        self._said = reason


def _is_the_same(reason: str, other: str) -> bool:
    return reason.translate(_NO_DIGITS) == other.translate(_NO_DIGITS)
