"""The doctor's look at the spool: is it there, can it be written, on what file system, is there room, is the port free."""

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from errno import EADDRINUSE
from pathlib import Path

from daemon.address import address_of
from daemon.ask import why_silent
from daemon.doctor import Finding, as_gib, fail, ok, warn
from daemon.durable import printable
from daemon.errors import DaemonError, TracingError
from daemon.folders import Folders
from daemon.http import read_server_token, why_not_bound
from daemon.mounts import MOUNTINFO, file_system_of, is_shared
from daemon.on_done_delivery import is_url
from daemon.pause_file import PauseFile
from daemon.settings import Settings
from daemon.spool_lock import holder_of
from daemon.tracing import open_tracing

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def look_at_spool(settings: Settings, mountinfo: Path = MOUNTINFO) -> Iterator[Finding]:
    """Yield what there is to say of the spool and of who uses it."""
    spool = settings.daemon.spool
    yield _writable(spool)
    for name, pipeline in settings.pipelines.items():
        yield from _pipeline(name, Folders(spool / name))
        yield from _hook(name, pipeline.on_done)
    yield look_at_file_system(existing(spool), mountinfo)
    yield look_at_space(existing(spool), settings.daemon.min_free_bytes)
    yield from _token(settings)
    yield from _tracing(settings)
    yield _daemon(settings)


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _writable(spool: Path) -> Finding:
    place = existing(spool)
    shown = printable(spool)
    if not place.is_dir():
        return fail("spool", f"{printable(place)} is no folder", "set daemon.spool to a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        advice = f"chown or chmod it for user {os.geteuid()}, or set daemon.spool to another one"
        return fail("spool", f"{printable(place)} cannot be written", advice)
    return ok("spool", shown if place == spool else f"{shown} does not exist yet, and can be made")


def _pipeline(name: str, folders: Folders) -> Iterator[Finding]:
    """Look at the folders that exist, without making or writing anything."""
    subject = f"pipeline {name}"
    advice = f"chown or chmod it for user {os.geteuid()}, as whom the daemon would run"
    paths = (folders.inbox, folders.work, folders.outbox, folders.done, folders.failed)
    try:
        there = [folder for folder in paths if folder.exists()]
    except PermissionError:
        yield fail(subject, f"{printable(folders.root)} cannot be looked into", advice)
        return
    for folder in there:
        if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            yield fail(subject, f"{printable(folder)} cannot be read and written", advice)
            return
        if folder.stat().st_dev != there[0].stat().st_dev:
            text = f"{printable(folder)} lies on another device than {printable(there[0])}"
            yield fail(subject, text, "put both on one: files are moved between them by a rename")
            return
    if (reason := PauseFile(folders.root).reason()) is not None:
        yield warn(subject, f"paused by hand: {reason}", f"gapless resume {name}")
    else:
        yield ok(subject, "its folders can be written and lie on one device" if there else "its folders can be made")


def _hook(name: str, on_done: Sequence[str] | None) -> Iterator[Finding]:
    """Say that nobody would be told of finished files, where the program for it is not there."""
    if on_done is not None and not is_url(on_done) and shutil.which(on_done[0]) is None:
        text = f"on_done: {printable(on_done[0])} is no program that can be run"
        yield warn(
            f"pipeline {name}",
            text,
            "install it, make it executable, or give its path; results are published all the same",
        )


def look_at_file_system(place: Path, mountinfo: Path) -> Finding:
    """Say on what file system a folder lies and what that means."""
    kind = file_system_of(place, mountinfo)
    match kind:
        case "":
            return warn("file system", "unknown", f"{mountinfo} cannot be read")
        case _ if is_shared(kind):
            text = f"{kind}: files of other machines bring no events, and who is writing a file cannot be seen"
            return warn(
                "file system",
                text,
                "set daemon.watch: poll and a daemon.settle_s of 10 or more; rename files into the inbox",
            )
        case _ if kind in _IN_MEMORY:
            return warn("file system", f"{kind}: it is memory", "what lies there is gone after a reboot: use a disk")
        case _:
            return ok("file system", kind)


def look_at_space(place: Path, min_free_bytes: int) -> Finding:
    """Say whether files would be taken."""
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    text = f"{as_gib(free)} are free"
    if not free:
        return fail("disk", "it is full: nothing is free", "make room")
    if status.f_files and not status.f_favail:  # where a file system counts them at all
        return fail("disk", f"{text}, but no file can be made: its inodes are used up", "remove files")
    if free < min_free_bytes:
        return fail(
            "disk",
            f"{text}, and no file is taken below {as_gib(min_free_bytes)}",
            "make room, or lower daemon.min_free_bytes",
        )
    if free < 2 * min_free_bytes:
        return warn("disk", f"{text}, and no file is taken below {as_gib(min_free_bytes)}", "make room soon")
    return ok("disk", text)


def _daemon(settings: Settings) -> Finding:
    """Say whether a daemon runs, else whether its port is free."""
    http = settings.daemon.http
    pid = holder_of(settings.daemon.spool)
    if pid is not None:
        who = f"one runs on this spool{f', pid {pid}' if pid else ''}"
        if (reason := why_silent(settings)) is not None:
            return fail("daemon", f"{who}, but {reason}", "end it and start it again: it goes on where it was")
        return ok("daemon", f"{who}: {address_of(settings.daemon.spool, http)}/")
    port = f"{http.host} port {http.port}" if http.port else f"a port of {http.host}"
    try:
        found = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
    except OSError as error:
        text = f"none runs, and {port} cannot be had: {why_not_bound(error)}"
        if error.errno == EADDRINUSE:
            return fail("daemon", text, "end what listens there, or set daemon.http.port; 0 takes a free one")
        return fail("daemon", text, "set daemon.http.host and daemon.http.port to what can be had")
    return ok("daemon", f"none runs; {port} is free")


def _token(settings: Settings) -> Iterator[Finding]:
    """Look at the file of the HTTP server's token, where there is to be one."""
    token_file = settings.daemon.http.token_file
    if token_file is None:
        return
    try:
        read_server_token(token_file)
    except DaemonError as error:
        yield fail("token", str(error), "put a token into it, for the daemon's user to read", error.exit_code)
    else:
        yield ok("token", f"{printable(token_file)} holds one")


def _tracing(settings: Settings) -> Iterator[Finding]:
    """Say whether traces could be made, where they are asked for."""
    tracing = settings.daemon.tracing
    if tracing.endpoint is None:
        return
    try:
        open_tracing(**dict(tracing)).close()
    except TracingError as error:
        yield fail("tracing", str(error), "install it, or leave daemon.tracing.endpoint out", error.exit_code)
    else:
        yield ok("tracing", f"traces go to {tracing.endpoint}; whether anybody takes them is not looked at")
