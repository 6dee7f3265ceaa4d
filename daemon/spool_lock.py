"""One daemon a spool: two would take each other's files."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon.durable import printable, storage_errors
from daemon.errors import SpoolInUseError

LOCK = ".gapless.lock"
_MAX_PID_BYTES = 20


@contextmanager
def lock_of_spool(spool: Path) -> Iterator[None]:
    """Hold a spool alone, which is made if it is missing. The kernel gives it back when the process ends, however it ends.

    Raises:
        SpoolInUseError: another daemon holds it.
        StorageError: the spool cannot be made or locked.
    """
    path = spool / LOCK
    with storage_errors("make the spool", spool):
        spool.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with storage_errors("lock", path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _in_use(spool, path, descriptor) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder_of(spool: Path) -> int | None:
    """Return the process id of the daemon that runs on a spool, 0 if there is one that cannot be told, None if there is none."""
    try:
        descriptor = os.open(spool / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _in_use(spool: Path, path: Path, descriptor: int) -> SpoolInUseError:
    pid = _pid_in(descriptor)
    who = f"another gapless (pid {pid})" if pid else "another gapless"
    return SpoolInUseError(f"daemon.spool: {who} runs on {printable(spool)} and holds {printable(path)}")


def _pid_in(descriptor: int) -> int:
    """The process id in a lock file; 0 where its holder has not written it yet."""
    text = os.pread(descriptor, _MAX_PID_BYTES, 0).strip()
    return int(text) if text.isdigit() else 0
