"""`gapless retry STEM`: put only what failed of a finished file into the inbox again, as STEM~retry."""

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from daemon.batch_object import FINAL_STATUSES
from daemon.command_context import FoundStem, find_stem, settings_that_run
from daemon.command_submit import put, tell_and_wait
from daemon.durable import inode_of, printable
from daemon.errors import CommandError, ExitCode
from daemon.file_kinds import OPTIONS_SUFFIX, FileKind, kind_of, stem_of
from daemon.file_options import read_options
from daemon.folders import Folders
from daemon.follow import BATCH_SUFFIX, read_batch
from daemon.retry import RETRY_MARK, FailedLines, Selection, Unanswered, Verdicts, content_fingerprint, lines_of
from daemon.retry_file import new_suffix, write_chosen
from daemon.settings_pipeline import PipelineSettings
from pipelines.counted import counted


def retry(options: argparse.Namespace) -> int:
    """Make the new file, unless there is one already. The options of the first run are those of the second."""
    settings = settings_that_run(options.config)
    place = find_stem(settings, options.stem, BATCH_SUFFIX, "retry")
    batch = read_batch(place.folders.outbox / (place.stem + BATCH_SUFFIX))
    if batch is None:
        raise CommandError(f"{printable(place.stem)}: its {BATCH_SUFFIX} in the outbox cannot be read")
    if batch["status"] not in FINAL_STATUSES:
        raise CommandError(f"{printable(place.stem)} is {batch['status']}: retry it when it is done")
    if batch["status"] != "failed" and not batch["request_counts"]["failed"]:
        print(f"{printable(place.stem)}: every request has its answer, nothing is to be retried")
        return ExitCode.OK
    source = _input_of(place, (batch.get("metadata") or {}).get("inode"))
    kind = kind_of(source.name)
    if kind is None:
        raise CommandError(f"{printable(source)}: found a file of an unknown kind, expected {printable(place.stem)}")
    options_file = _options_of(source, settings.pipelines[place.pipeline])
    new_stem = _new_stem(place, is_wanted_again=options.again)
    verdicts = _verdicts(place, source, kind, is_failed=batch["status"] == "failed")
    selection = Selection(verdicts, frozenset(options.code) if options.code else None)
    name = f"{new_stem}{new_suffix(source, kind)}"
    placed = put(name, place.folders, partial(_write, selection, source, kind, place.stem), options_file)
    _tell_counts(selection, place.stem)
    return tell_and_wait([placed], [name], place.folders, settings, wait=options.wait)


def _write(selection: Selection, source: Path, kind: FileKind, stem: str, path: Path) -> None:
    write_chosen(source, kind, path, selection.takes)
    if not selection.counts:
        wanted = f" with the code {', '.join(sorted(selection.codes))}" if selection.codes else ""
        raise CommandError(f"{printable(stem)}: found no request{wanted} that could be retried")


def _tell_counts(selection: Selection, stem: str) -> None:
    counts = ", ".join(f"{number:,} {printable(code)}" for code, number in selection.counts.most_common())
    total = selection.counts.total()
    print(f"{counted(total, 'request')} of {printable(stem)} again: {counts}")
    if selection.num_left_out:
        print(f"left out as too large to be read: {selection.num_left_out:,}")


def _input_of(place: FoundStem, inode: str | None) -> Path:
    """Return the input, which keeps its inode when it is moved, and its stem but for a number.

    The inode alone may be another file's by now.
    """
    folders = (place.folders.done, place.folders.failed)
    paths = [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if kind_of(path.name) and (stem_of(path.name) == place.stem or stem_of(path.name).startswith(f"{place.stem}~"))
    ]
    for path in paths:
        if inode is not None and str(inode_of(path)) == inode:
            return path
    for path in paths:
        if inode is None and stem_of(path.name) == place.stem:
            return path
    raise CommandError(f"{printable(place.stem)}: its input is neither in done/ nor in failed/ of {place.pipeline}")


def _options_of(source: Path, settings: PipelineSettings) -> Path | None:
    """Return the options that the input was run with, None if it had none.

    Raises:
        SettingsError: the pipeline does not take them any more.
    """
    path = source.with_name(stem_of(source.name) + OPTIONS_SUFFIX)
    if not path.exists():
        return None
    read_options(path, settings)
    return path


def _verdicts(place: FoundStem, source: Path, kind: FileKind, *, is_failed: bool) -> Verdicts:
    outbox, fingerprint = place.folders.outbox, content_fingerprint(source)
    is_as_run = _fingerprint_of_run(outbox / f"{place.stem}.report.json") in {None, fingerprint}
    if not is_failed:
        failed = FailedLines.read(lines_of(outbox / f"{place.stem}.errors.jsonl"), fingerprint)
        if failed.go_by_content and not is_as_run:
            found = "found another content than the one that was run, so that nobody can tell what of it failed"
            raise CommandError(f"{printable(source)}: {found}, expected it unchanged")
        return failed
    if kind is FileKind.TEXT:
        return Unanswered(frozenset())  # one that was answered is not asked about: it had another content
    output = outbox / f"{place.stem}.output.jsonl"
    return Unanswered.read(lines_of(output) if output.exists() else (), is_as_run=is_as_run)


def _fingerprint_of_run(report: Path) -> str | None:
    """Return the fingerprint that a report names, None where it names none or was taken away."""
    with suppress(OSError, ValueError):
        value = json.loads(report.read_bytes())
        if isinstance(value, dict) and value.get("fingerprint"):
            return str(value["fingerprint"])
    return None


def _new_stem(place: FoundStem, *, is_wanted_again: bool) -> str:
    """Return STEM~retry, or with `--again` the first of STEM~retry2... that is not there.

    Raises:
        CommandError: it was retried already.
    """
    names = list(_candidates(place))
    if len(names) > 1 and not is_wanted_again:
        where = _where(place.folders, names[-2])
        raise CommandError(
            f"{printable(place.stem)} was retried already: {printable(names[-2])} is in {where}; --again makes another"
        )
    return names[-1]


def _candidates(place: FoundStem) -> Iterator[str]:
    """Yield the stems of earlier retries, then the first that is free."""
    for number in count(1):
        stem = f"{place.stem}{RETRY_MARK}{'' if number == 1 else number}"
        yield stem
        if _where(place.folders, stem) is None:
            return


def _where(folders: Folders, stem: str) -> str | None:
    """Return the folder that has a file of this stem, None if none has."""
    for folder in (folders.inbox, folders.work, folders.outbox, folders.done, folders.failed):
        if folder.is_dir() and any(path.name.startswith(f"{stem}.") for path in folder.iterdir()):
            return folder.name
    return None
