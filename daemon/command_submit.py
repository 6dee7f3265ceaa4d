"""`gapless submit FILE...`: put files into an inbox, each whole or not at all, and wait for them if that is wanted."""

import argparse
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from daemon.ask import fetch_status, why_silent
from daemon.command_context import folders_of, pick_pipeline, settings_that_run
from daemon.command_wait import Obstacle, Said, Waiter
from daemon.durable import DiskStorage, fsync_dir, fsync_file, printable, storage_error, storage_errors
from daemon.errors import CommandError, DaemonError, ExitCode
from daemon.exclusive_rename import rename_to_free_name
from daemon.file_kinds import OPTIONS_SUFFIX, stem_of
from daemon.file_options import read_options
from daemon.file_rules import MAX_NAME_BYTES, SUBMITTED_PREFIX, why_name_is_left, why_no_file
from daemon.folders import Folders
from daemon.follow import Followed
from daemon.hold import PAUSED_BY_HAND
from daemon.outbox import free_stem
from daemon.pause_file import PauseFile
from daemon.settings import Settings
from daemon.spool_lock import holder_of
from daemon.status import EngineState


def submit(options: argparse.Namespace) -> int:
    """Put files into an inbox. All are looked at before the first is copied."""
    settings = settings_that_run(options.config)
    pipeline = pick_pipeline(settings, options.pipeline)
    folders = folders_of(settings, pipeline)
    problems = [problem for path in options.files if (problem := why_refused(path)) is not None]
    if problems:
        raise CommandError("\n".join(problems))
    if options.options is not None:
        read_options(options.options, settings.pipelines[pipeline])
    spool = folders.root.parent
    is_new = not os.path.lexists(spool)
    placed = [put(path.name, folders, partial(_copy, path), options.options) for path in options.files]
    if is_new and holder_of(spool) is None:
        text = "was not there and is made now: if it belongs on a disk of its own, is that mounted?"
        print(f"{printable(spool)} {text}", file=sys.stderr)
    names = [path.name for path in options.files]
    return tell_and_wait(placed, names, folders, settings, wait=options.wait)


def tell_and_wait(
    placed: Sequence[Followed], names: Sequence[str], folders: Folders, settings: Settings, *, wait: bool
) -> int:
    """Say where files of these names went and where their results will be, then wait for these if that is wanted."""
    for file, name in zip(placed, names, strict=True):
        renamed = "" if file.name == name else f" as {printable(file.name)}, since another has its name"
        print(f"{printable(name)}: submitted to {printable(folders.root.name)}{renamed}")
        if (warning := _why_unreadable(folders.inbox / file.name, folders.inbox)) is not None:
            print(warning, file=sys.stderr)
    if wait:
        obstacle = Obstacle(folders, PauseFile(folders.root).reason, partial(_ask_daemon, settings, folders.root.name))
        return Waiter(placed, folders, obstacle).wait()
    print(f"results will be in {printable(folders.outbox)}")
    spool = folders.root.parent
    if holder_of(spool) is None:
        print(f"no daemon runs on {printable(spool)} now: `gapless run` starts one", file=sys.stderr)
    return ExitCode.OK


def _ask_daemon(settings: Settings, pipeline: str) -> Said:
    """Ask a running daemon; what it tells nobody without a token is left out where the token cannot be had."""
    if (silent := why_silent(settings)) is not None:
        return Said(silent=silent)
    with suppress(DaemonError):
        status = fetch_status(settings)
        for entry in status["pipelines"]:
            if entry["name"] == pipeline:
                because = str(entry["paused_because"] or "")
                if because and not because.startswith(PAUSED_BY_HAND):  # the folder knows sooner
                    return Said(paused=because)
                return Said(engine=_what_engine_does(status, entry["engine"]))
    return Said()


def _what_engine_does(status: Mapping[str, Any], name: str) -> str | None:
    """Say of an engine that it comes up, which may take minutes; None where it is up. How far it is changes too often."""
    states = {engine["name"]: engine["state"] for engine in status["engines"]}
    state = states.get(name)
    return f"engine {name} is {state}" if state in {EngineState.STARTING, EngineState.RESTARTING} else None


def why_refused(path: Path) -> str | None:
    """Say why a file cannot be submitted: what the inbox would leave lying or refuse is not put into it."""
    shown = printable(path)
    if (reason := why_no_file(path)) is not None:
        return f"{shown}: {reason}"
    if not os.access(path, os.R_OK):
        return f"{shown}: permission denied"
    if (reason := why_name_is_left(path.name)) is not None:
        return f"{shown}: not a file that the inbox takes: {reason}"
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        return f"{shown}: its name has {len(os.fsencode(path.name))} bytes, at most {MAX_NAME_BYTES} expected"
    return None


def put(name: str, folders: Folders, write: Callable[[Path], None], options: Path | None = None) -> Followed:
    """Make a file in the inbox under a name that is free, hidden until `write` has made it whole and it is durable.

    `options` are copied beside it, so that they are there first.

    Raises:
        StorageError: it cannot be written; then nothing of it is there.
    """
    storage = DiskStorage()
    with storage_errors("make the folder", folders.inbox):
        folders.inbox.mkdir(parents=True, exist_ok=True)
    hidden = folders.inbox / f"{SUBMITTED_PREFIX}{os.getpid()}-{name}.tmp"
    hidden_options = hidden.with_suffix(".options.tmp") if options else None
    try:
        write(hidden)
        fsync_file(storage, hidden)
        if options is not None and hidden_options is not None:
            _copy(options, hidden_options)
        followed = _reveal(hidden, hidden_options, name, folders)
    finally:
        for path in (hidden, hidden_options):
            if path is not None:
                path.unlink(missing_ok=True)
    fsync_dir(storage, folders.inbox)
    return followed


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


def _reveal(hidden: Path, options: Path | None, name: str, folders: Folders) -> Followed:
    """Give a file the first name that nothing has; somebody else's file of that name is never replaced."""
    given = stem_of(name)
    suffix = name.removeprefix(given)
    taken: set[str] = set()
    while True:
        stem = free_stem(given, folders.work, folders.outbox, taken)
        target = folders.inbox / f"{stem}{suffix}"
        try:
            # Before the name is there: the daemon may take the file the moment it is.
            followed = Followed(hidden, folders, target)
            if _show(hidden, target, options):
                return followed
        except OSError as error:
            raise storage_error(error, "write", target) from error
        taken.add(stem)


def _show(hidden: Path, target: Path, options: Path | None) -> bool:
    """Give a file its name, its options theirs before; False where one of the names is taken: then neither is given."""
    beside = target.with_name(target.name + OPTIONS_SUFFIX)
    if os.path.lexists(target) or (options is not None and not rename_to_free_name(options, beside)):
        return False
    is_shown = False
    try:
        is_shown = rename_to_free_name(hidden, target)
    finally:
        if options is not None and not is_shown:
            beside.rename(options)
    return is_shown
