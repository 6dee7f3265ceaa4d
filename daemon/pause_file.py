"""A pipeline paused by a person: the file `paused` in its folder, which holds the reason. It survives restarts, needs no HTTP."""

from contextlib import suppress
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes, printable, unlink_durable, utf8_name

_PAUSED = "paused"
_RESUME = "resume"  # asks the daemon to try once more what it gave up; it takes the file away
_MAX_REASON_BYTES = 1000
NO_REASON = "no reason was given"


class PauseFile:
    """The switch of one pipeline; any process may use it."""

    def __init__(self, root: Path) -> None:
        self._paused = root / _PAUSED
        self._resume = root / _RESUME

    def reason(self) -> str | None:
        """Return why the pipeline is paused, None if it is not. A file that cannot be read pauses too."""
        try:
            with self._paused.open("rb") as file:
                text = file.read(_MAX_REASON_BYTES).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return f"{printable(self._paused)} cannot be read: {error.strerror}"
        return printable(" ".join(text.split())) or NO_REASON

    def pause(self, reason: str) -> None:
        """Pause the pipeline from now on.

        Raises:
            StorageError: that cannot be written.
        """
        data = f"{utf8_name(reason)}\n".encode()
        atomic_write_bytes(DiskStorage(), self._paused, data, is_durable=True)

    def resume(self) -> bool:
        """Let the pipeline go on, and its engine be tried again if it was given up; return whether it was paused by hand.

        Raises:
            StorageError: that cannot be written.
        """
        was_paused = self.reason() is not None
        atomic_write_bytes(DiskStorage(), self._resume, b"", is_durable=False)
        unlink_durable(DiskStorage(), self._paused)
        return was_paused

    def take_resume(self) -> bool:
        """Return, once, whether somebody asked to go on."""
        with suppress(OSError):
            self._resume.unlink()
            return True
        return False
