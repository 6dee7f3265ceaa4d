"""`gapless submit FILE...`: put files into an inbox, each whole or not at all, and wait for them if that is wanted."""

import argparse
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from daemon.command_context import folders_of, pick_pipeline, settings_of
from daemon.command_wait import Waiter
from daemon.durable import DiskStorage, fsync_dir, fsync_file, printable, storage_error, storage_errors
from daemon.errors import CommandError, ExitCode
from daemon.folders import Folders
from daemon.follow import Followed
from daemon.inbox import MAX_NAME_BYTES, Inbox
from daemon.outbox import free_stem
from daemon.pause_file import PauseFile
from daemon.spool_lock import holder_of


def submit(options: argparse.Namespace) -> int:
    """Put files into an inbox. All are looked at before the first is copied."""
    settings = settings_of(options.config)
    folders = folders_of(settings, pick_pipeline(settings, options.pipeline))
    problems = [problem for path in options.files if (problem := why_refused(path)) is not None]
    if problems:
        raise CommandError("\n".join(problems))
    placed = [put(path.name, folders, partial(_copy, path)) for path in options.files]
    return tell_and_wait(placed, folders, wait=options.wait)


def tell_and_wait(placed: Sequence[Followed], folders: Folders, *, wait: bool) -> int:
    """Say where files went and where their results will be, then wait for these if that is wanted."""
    for file in placed:
        print(f"{printable(file.name)}: submitted to {printable(folders.root.name)}")
        if (warning := _why_unreadable(folders.inbox / file.name, folders.inbox)) is not None:
            print(warning, file=sys.stderr)
    if wait:
        return Waiter(placed, folders, PauseFile(folders.root).reason).wait()
    print(f"results will be in {printable(folders.outbox)}")
    spool = folders.root.parent
    if holder_of(spool) is None:
        print(f"no daemon runs on {printable(spool)} now: `gapless run` starts one", file=sys.stderr)
    return ExitCode.OK


def why_refused(path: Path) -> str | None:
    """Say why a file cannot be submitted: what the inbox would leave lying or refuse is not put into it."""
    shown = printable(path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{shown}: {(error.strerror or str(error)).lower()}"
    if not stat.S_ISREG(mode):
        return f"{shown}: found {'a folder' if stat.S_ISDIR(mode) else 'something else'}, expected a file"
    if not os.access(path, os.R_OK):
        return f"{shown}: permission denied"
    if (reason := Inbox.why_left(path.name)) is not None:
        return f"{shown}: not a file that the inbox takes: {reason}"
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        return f"{shown}: its name has {len(os.fsencode(path.name))} bytes, at most {MAX_NAME_BYTES} expected"
    return None


def put(name: str, folders: Folders, write: Callable[[Path], None]) -> Followed:
    """Make a file in the inbox under a name that is free, hidden until `write` has made it whole and it is durable.

    Raises:
        StorageError: it cannot be written; then nothing of it is there.
    """
    storage = DiskStorage()
    with storage_errors("make the folder", folders.inbox):
        folders.inbox.mkdir(parents=True, exist_ok=True)
    hidden = folders.inbox / f".{os.getpid()}-{name}.tmp"
    try:
        write(hidden)
        fsync_file(storage, hidden)
        target = _reveal(hidden, name, folders)
    finally:
        with suppress(OSError):
            hidden.unlink()
    fsync_dir(storage, folders.inbox)
    return target


def _why_unreadable(path: Path, inbox: Path) -> str | None:
    """Say that the inbox's owner, as whom the daemon most likely runs, may not read a file; None if it may or nobody knows."""
    with suppress(OSError):
        file, owner = path.stat(), inbox.stat().st_uid
        if owner not in {0, file.st_uid} and not file.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            advice = "set a umask of 027 or 022, or chmod g+r it"
            return f"{printable(path)}: only you may read it, but the inbox is {_user_name(owner)}'s: {advice}"
    return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _copy(source: Path, target: Path) -> None:
    """Copy and make no hard link: the original stays its owner's, who may go on writing it."""
    with storage_errors(f"copy {printable(source)} to", target):
        shutil.copyfile(source, target)


def _reveal(hidden: Path, name: str, folders: Folders) -> Followed:
    """Give a file the first name that nothing has; somebody else's file of that name is never replaced."""
    given = Path(name)
    taken: set[str] = set()
    while True:
        stem = free_stem(given.stem, folders.work, folders.outbox, taken)
        target = folders.inbox / f"{stem}{given.suffix}"
        try:
            # Before the name is there: the daemon may take the file the moment it is.
            followed = Followed(hidden, folders, target)
            if not target.exists():
                _link(hidden, target)
                return followed
        except FileExistsError:
            pass
        except OSError as error:
            raise storage_error(error, "write", target) from error
        taken.add(stem)


def _link(hidden: Path, target: Path) -> None:
    """Give the file its second name, which fails where it is taken; where links are not to be had, a rename has to do."""
    try:
        os.link(hidden, target)
    except FileExistsError:
        raise
    except OSError:
        hidden.rename(target)
