"""Where a running daemon answers HTTP: written beside its lock, so that commands find it though the port was free to choose."""

import logging
import os
from contextlib import suppress
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes, storage_errors
from daemon.errors import DiskFullError
from daemon.settings_daemon import HttpSettings
from daemon.spool_lock import holder_of

log = logging.getLogger(__name__)

_ROOM_S = 2.0  # between two tries at a full disk
_ADDRESS = ".gapless.http"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  what listens everywhere is asked here


class Announcement:
    """Where this daemon answers; written down as soon as there is room on the disk."""

    def __init__(self, spool: Path, host: str, port: int) -> None:
        self._path = spool / _ADDRESS
        self._text = f"{url_of(host, port)}\n"
        self._is_made = False
        self._next_try_s = 0.0

    def make(self, now_s: float) -> None:
        """Write it, if that is not done and the last try at a full disk is some time ago.

        Raises:
            StorageError: it cannot be written, for another reason than that the disk is full.
        """
        if self._is_made or now_s < self._next_try_s:
            return
        try:
            atomic_write_bytes(DiskStorage(), self._path, self._text.encode(), is_durable=False)
        except DiskFullError as error:
            if not self._next_try_s:
                log.warning("commands look for this daemon at the configured address until there is room: %s", error)
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)  # what an earlier daemon wrote leads nowhere
            self._next_try_s = now_s + _ROOM_S
        else:
            self._is_made = True


def address_of(spool: Path, http: HttpSettings) -> str:
    """Return the URL of the daemon that runs on a spool, as it announced it, else as the configuration has it; no final slash."""
    if holder_of(spool) is not None:
        with suppress(OSError, UnicodeDecodeError):
            text = (spool / _ADDRESS).read_text(encoding="utf-8").strip()
            if text.startswith("http://"):
                return text
    return url_of(http.host, http.port)


def url_of(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a listening address."""
    host = _ANYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_token(token_file: Path) -> str:
    """Return the token that the daemon asks for.

    Raises:
        StorageError: its file cannot be read.
    """
    with storage_errors("read", token_file):
        return os.fsdecode(token_file.read_bytes()).strip()
