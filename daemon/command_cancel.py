"""`gapless cancel [PIPELINE/]STEM`: drops the file that asks for it into the right inbox."""

import argparse
from itertools import product

from daemon.cancel_orders import CANCEL_SUFFIX, named_in
from daemon.command_context import as_place, settings_that_run, tell_whether_running
from daemon.durable import DiskStorage, atomic_write_bytes, printable
from daemon.errors import CommandError, ExitCode
from daemon.file_kinds import kind_of, stem_of
from daemon.folders import Folders
from daemon.follow import BATCH_SUFFIX, read_batch
from daemon.settings import Settings


def cancel(options: argparse.Namespace) -> int:
    """Have a file end; what of it is finished is published.

    Raises:
        CommandError: no such file, or several.
    """
    settings = settings_that_run(options.config, with_leaving=True)
    pipeline, _, target = as_place(settings, options.stem).rpartition("/")
    if pipeline and pipeline not in settings.pipelines:
        raise CommandError(f"cancel: found pipeline {pipeline!r}, expected one of {', '.join(settings.pipelines)}")
    names = [pipeline] if pipeline else list(settings.pipelines)
    found = [name for name in names if _is_in(_folders(settings, name), target)]
    if not found:
        raise CommandError(_why_not_there(settings, names, target))
    if len(found) > 1:
        expected = " or ".join(f"{name}/{target}" for name in found)
        raise CommandError(f"cancel: found {printable(target)} in several pipelines, expected {expected}")
    order = _folders(settings, found[0]).inbox / f"{target}{CANCEL_SUFFIX}"
    atomic_write_bytes(DiskStorage(), order, b"", is_durable=False)
    print(f"{printable(order)} asks to cancel {printable(target)}")
    tell_whether_running(settings, "it is ended at the next start, and what is finished is published")
    return ExitCode.OK


def _folders(settings: Settings, pipeline: str) -> Folders:
    return Folders(settings.daemon.spool / pipeline)


def _is_in(folders: Folders, target: str) -> bool:
    return any(folder.is_dir() and named_in(folder, target) for folder in (folders.work, folders.inbox))


def _why_not_there(settings: Settings, names: list[str], target: str) -> str:
    """Say that no such file is there, and if it was, what became of it."""
    stems = dict.fromkeys([target, stem_of(target) if kind_of(target) is not None else target])
    for name, stem in product(names, stems):
        if (batch := read_batch(_folders(settings, name).outbox / f"{stem}{BATCH_SUFFIX}")) is not None:
            return f"cancel: {name}/{printable(stem)} is {printable(batch['status'])} already"
    places = ", ".join(names)
    return f"cancel: no file {printable(target)} is being run or waits in an inbox of {places}"
