"""Where a running daemon answers HTTP: written beside its lock, so that commands find it though the port was free to choose."""

import os
from contextlib import suppress
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes, storage_errors
from daemon.settings_sections import HttpSettings
from daemon.spool_lock import holder_of

_ADDRESS = ".gapless.http"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  what listens everywhere is asked here


def announce(spool: Path, host: str, port: int) -> None:
    """Write down where this daemon answers.

    Raises:
        StorageError: it cannot be written.
    """
    atomic_write_bytes(DiskStorage(), spool / _ADDRESS, f"{url_of(host, port)}\n".encode(), is_durable=False)


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
