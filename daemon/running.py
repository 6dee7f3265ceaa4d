"""Which spool the daemon runs on that was started with some configuration, whatever its files say by now.

A daemon leaves a note in the machine's folder for such things, named by its configuration's files. So commands find it, and the
settings in effect, while those files hold a mistake or another spool. A note proves nothing: the spool's lock does.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes
from daemon.errors import StorageError
from daemon.spool_lock import holder_of

_SERVICE_FOLDER = Path("/run/gapless")  # the service manager makes it, and who runs commands may be another user
_FOLDER_MODE = 0o700
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def noted(configs: Sequence[Path], spool: Path, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Leave the note while a daemon runs that holds the spool's lock.

    Where it cannot be written, commands go by what the files say. Notes of daemons that were killed go with the next start.
    """
    note = _folder_to_write(environment) / _name_of(configs)
    with suppress(OSError, StorageError):
        note.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        if _is_trusted(note.parent):
            _remove_untrue(note.parent)
            content = os.fsencode(spool.absolute())
            atomic_write_bytes(DiskStorage(), note, content, is_durable=False)
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()


def spool_of_running(configs: Sequence[Path], environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the spool of the daemon that was started with these files and still runs, None if there is none or nobody knows."""
    for folder in _folders_to_read(environment):
        with suppress(OSError):
            if not _is_trusted(folder):
                continue
            spool = Path(os.fsdecode((folder / _name_of(configs)).read_bytes()))
            if holder_of(spool) is not None:
                return spool
    return None


def _remove_untrue(folder: Path) -> None:
    for note in folder.iterdir():
        if holder_of(Path(os.fsdecode(note.read_bytes()))) is None:
            note.unlink()


def _name_of(configs: Sequence[Path]) -> str:
    """The links on the way are not followed: they may lead elsewhere by now."""
    names = b"\0".join(os.fsencode(os.path.abspath(path)) for path in configs)  # noqa: PTH100  Path has no such thing
    return hashlib.blake2b(names, digest_size=16).hexdigest()


def _folder_to_write(environment: Mapping[str, str]) -> Path:
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]  # the service manager's word
    return Path(given) if given else _own_folder(environment)


def _folders_to_read(environment: Mapping[str, str]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys((_folder_to_write(environment), _own_folder(environment), _SERVICE_FOLDER)))


def _own_folder(environment: Mapping[str, str]) -> Path:
    """This user's folder for what runs, else one in the folder for temporary files."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    return Path(runtime, "gapless") if runtime else Path(tempfile.gettempdir(), f"gapless-{os.getuid()}")


def _is_trusted(folder: Path) -> bool:
    """Whether nobody else can have put something there, or it is the one that root's service manager made."""
    status = folder.lstat()
    is_ours = status.st_uid in {0, os.getuid()} or folder == _SERVICE_FOLDER
    return stat.S_ISDIR(status.st_mode) and is_ours and not status.st_mode & _WRITABLE_BY_OTHERS
