"""What is worked out once and kept on disk: converted models, built atomically by one process while others wait.

A folder in the cache is whole or not there. It is built beside its place and renamed into it, under a lock that the kernel
lets go when its holder dies, so a kill in the middle costs the work done so far and nothing else:

    lock NAME.lock -> (somebody built it meanwhile? done) -> clear NAME.partial -> build there -> fsync -> rename to NAME

The lock file holds how far its holder has come, as a decimal, for those who wait to show. It is never removed: a lock on a
removed file would lock nobody out.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 24


def cache_folder() -> Path:
    """Return where converted models are kept: $GAPLESS_CACHE, else $XDG_CACHE_HOME/gapless, else ~/.cache/gapless."""
    if own := os.environ.get("GAPLESS_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if shared.startswith("/") else Path.home() / ".cache"  # the XDG rules void a relative path
    return base / "gapless"


def content_digest(file: Path, cache: Path, report: Callable[[float], None]) -> str:
    """Return the SHA-256 of a file's content in hex; it is kept in `cache` for as long as size and time of change stand.

    Raises:
        OSError: the file cannot be read, or the cache not written.
    """
    state = file.stat()
    seen_as = f"{file.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    memo = cache / "digests" / hashlib.sha256(os.fsencode(seen_as)).hexdigest()
    if memo.is_file() and (known := memo.read_text("ascii").strip()):
        return known
    digest = hashlib.sha256()
    done = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report(done / max(state.st_size, 1))
    put_text(memo, digest.hexdigest())
    return digest.hexdigest()


def put_text(file: Path, text: str) -> None:
    """Have a small file in the cache that is whole or not there, whoever else writes it.

    Raises:
        OSError: the cache cannot be written; nothing is left of the file then.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        fresh.write_text(text, "utf-8")
        fresh.replace(file)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def build_once(
    folder: Path, build: Callable[[Path, Callable[[float], None]], None], report: Callable[[float], None]
) -> None:
    """Have `folder` built, unless it is there. `build` fills the empty folder it is given and tells how far it is, 0 .. 1.

    Raises:
        OSError: the cache cannot be written.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock"), report) as note:
        if folder.is_dir():
            return
        partial = folder.with_name(f"{folder.name}.partial")
        if partial.exists():  # its builder was killed: the lock is ours
            shutil.rmtree(partial)
        partial.mkdir()

        def note_and_report(done: float) -> None:
            note(done)
            report(done)

        try:
            build(partial, note_and_report)
            _sync(partial)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def _locked(file: Path, report: Callable[[float], None]) -> Iterator[Callable[[float], None]]:
    """Hold the lock; yields a function that writes how far its holder has come."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(descriptor):
            report(_read_fraction(descriptor))
            time.sleep(_POLL_S)
        yield lambda done: _write_fraction(descriptor, done)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_fraction(descriptor: int) -> float:
    try:
        return min(float(os.pread(descriptor, 32, 0)), 1.0)
    except ValueError:  # empty: its holder has only just begun
        return 0.0


def _write_fraction(descriptor: int, done: float) -> None:
    os.pwrite(descriptor, f"{done:.6f}".encode(), 0)


def _sync(folder: Path) -> None:
    """Put the folder's files on the disk, so that the rename cannot outlive their content."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
