"""One daemon a spool: two would take each other's files."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from daemon.durable import printable, storage_errors
from daemon.errors import SpoolInUseError

LOCK = ".gapless.lock"
_MAX_PID_BYTES = 20
_NUM_TRIES = 10
_TRY_AGAIN_S = 0.02


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
            if not _can_lock(descriptor):
                raise _in_use(spool, path, descriptor)
        with suppress(OSError):  # the disk is full: the lock holds without a name
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


def _can_lock(descriptor: int) -> bool:
    """Lock it, if nobody holds it for longer than it takes to ask whether somebody does, see `holder_of`."""
    for _ in range(_NUM_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_TRY_AGAIN_S)
        else:
            return True
    return False


def _in_use(spool: Path, path: Path, descriptor: int) -> SpoolInUseError:
    pid = _pid_in(descriptor)
    who = f"pid {pid}, " if pid else ""
    return SpoolInUseError(f"daemon.spool: another gapless runs on {printable(spool)} ({who}lock {printable(path)})")


def _pid_in(descriptor: int) -> int:
    """The process id in a lock file; 0 where its holder has not written it yet."""
    text = os.pread(descriptor, _MAX_PID_BYTES, 0).strip()
    return int(text) if text.isdigit() else 0
