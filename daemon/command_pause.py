"""`gapless pause` and `gapless resume`: a switch of each pipeline that needs no running daemon and survives its restart."""

import argparse
from collections.abc import Sequence

from daemon.command_context import folders_of, settings_that_run, tell_whether_running
from daemon.errors import CommandError, ExitCode
from daemon.pause_file import NO_REASON, PauseFile
from daemon.settings import Settings
from daemon.spool_lock import holder_of


def pause(options: argparse.Namespace) -> int:
    """Pause pipelines."""
    settings = settings_that_run(options.config)
    for name in _wanted(settings, options.pipelines):
        folders = folders_of(settings, name)
        if not folders.root.is_dir():
            folders.make()
        PauseFile(folders.root).pause(options.reason or NO_REASON)
        print(f"pipeline {name} is paused: no new file is taken, nothing more is fed, running requests finish")
    tell_whether_running(settings, "the pause holds at its next start")
    return ExitCode.OK


def resume(options: argparse.Namespace) -> int:
    """Let pipelines go on."""
    settings = settings_that_run(options.config)
    not_paused = "was not paused by hand"
    if holder_of(settings.daemon.spool) is not None:
        not_paused += "; its engine is tried again if it was given up"
    for name in _wanted(settings, options.pipelines):
        folders = folders_of(settings, name)
        was_paused = folders.root.is_dir() and PauseFile(folders.root).resume()
        print(f"pipeline {name} {'goes on' if was_paused else not_paused}")
    tell_whether_running(settings, "`gapless run` starts one")
    return ExitCode.OK


def _wanted(settings: Settings, given: Sequence[str]) -> Sequence[str]:
    for name in given:
        if name not in settings.pipelines:
            raise CommandError(f"found no pipeline {name!r}, expected one of {', '.join(settings.pipelines)}")
    return given or list(settings.pipelines)
