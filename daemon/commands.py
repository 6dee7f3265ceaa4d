"""What each command does. A command takes the parsed options and returns an exit code."""

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path

from daemon.command_context import settings_of
from daemon.errors import ExitCode
from daemon.file_kinds import split_name
from daemon.folders import Folders
from daemon.inbox import Inbox
from daemon.logs import set_up_logging
from daemon.pause_file import PauseFile


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    from daemon.service import Service  # noqa: PLC0415  the other commands start faster without it

    settings = settings_of(options.configs)
    tail = set_up_logging(settings.daemon.log)
    return asyncio.run(Service(settings, once=options.once, log_tail=tail).run())


def explain(options: argparse.Namespace) -> int:
    """Say where a file is and why."""
    settings = settings_of(options.config)
    name = options.file.name
    lines = [
        line for pipeline in settings.pipelines for line in _places(Folders(settings.daemon.spool / pipeline), name)
    ]
    print("\n".join(lines) or f"{name}: found in no folder of {settings.daemon.spool}")
    return ExitCode.OK if lines else ExitCode.FIX_INPUT


def bench(options: argparse.Namespace) -> int:
    """Run the benchmark in a process of its own: it needs torch, which stays out of this one."""
    program = [sys.executable, "-m", "pipelines.bench", *options.arguments]
    code = subprocess.run(program, check=False).returncode  # noqa: S603  ourselves
    return code if code >= 0 else 128 - code  # a signal ended it


def demo(options: argparse.Namespace) -> int:
    """Run the demonstration."""
    from daemon.demo import run_demo  # noqa: PLC0415  only here

    return run_demo(keep_running=options.keep_running)


def _places(folders: Folders, name: str) -> list[str]:
    """Where a file of this name is in one pipeline, and what that means."""
    stem, _ = split_name(name)
    lines = []
    if os.path.lexists(folders.inbox / name):
        paused = PauseFile(folders.root).reason()
        when = "taken once it is complete" if paused is None else f"not taken, the pipeline is paused by hand: {paused}"
        lines.append(f"{folders.inbox / name}: in the inbox; {Inbox.why_left(name) or when}")
    for folder, meaning in ((folders.work, "being run"), (folders.done, "done"), (folders.failed, "could not be run")):
        lines += [f"{path}: {meaning}" for path in _of_stem(folder, stem)]
    lines += [f"{path}: a result" for path in _of_stem(folders.outbox, stem)]
    return lines


def _of_stem(folder: Path, stem: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.startswith((f"{stem}.", f"{stem}~")))
