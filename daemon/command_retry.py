"""`gapless retry STEM`: put only what failed of a finished file into the inbox again, as STEM~retry."""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

from daemon.batch_object import FINAL_STATUSES
from daemon.command_context import FoundStem, find_stem, settings_that_run
from daemon.command_submit import put, tell_and_wait
from daemon.durable import inode_of, printable
from daemon.errors import CommandError, ExitCode
from daemon.file_kinds import FileKind, kind_of, stem_of
from daemon.folders import Folders
from daemon.follow import BATCH_SUFFIX, read_batch
from daemon.retry import RETRY_MARK, FailedLines, RetryFile, Unanswered, Verdicts, input_requests, lines_of
from daemon.survey import survey

_KINDS = frozenset({FileKind.LINES, FileKind.JSON})


def retry(options: argparse.Namespace) -> int:
    """Make the new file, unless there is one already."""
    place = find_stem(settings_that_run(options.config), options.stem, BATCH_SUFFIX, "retry")
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
    if kind not in _KINDS:
        raise CommandError(
            f"{printable(source)}: only .jsonl and .json files can be retried by the request; "
            f"to run all of it again: gapless submit {printable(source)}"
        )
    new_stem = _new_stem(place, is_wanted_again=options.again)
    verdicts = _verdicts(place, source, is_failed=batch["status"] == "failed")
    codes = frozenset(options.code) if options.code else None
    content = RetryFile(input_requests(source, kind), verdicts, codes)
    suffix = ".json" if kind is FileKind.JSON else ".jsonl"
    placed = put(f"{new_stem}{suffix}", place.folders, partial(_write, content, kind, place.stem))
    _tell_counts(content, place.stem)
    return tell_and_wait([placed], place.folders, wait=options.wait)


def _write(content: RetryFile, kind: FileKind, stem: str, path: Path) -> None:
    content.write(path, kind)
    if not content.counts:
        wanted = f" with the code {', '.join(sorted(content.codes))}" if content.codes else ""
        raise CommandError(f"{printable(stem)}: found no request{wanted} that could be retried")


def _tell_counts(content: RetryFile, stem: str) -> None:
    counts = ", ".join(f"{number:,} {printable(code)}" for code, number in content.counts.most_common())
    print(f"{content.counts.total():,} requests of {printable(stem)} again: {counts}")
    if content.num_left_out:
        print(f"{content.num_left_out:,} that are too large to be read were left out")


def _input_of(place: FoundStem, inode: str | None) -> Path:
    """Return the input, which keeps its inode when it is moved, else what has its name."""
    folders = (place.folders.done, place.folders.failed)
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if kind_of(path.name)]
    for path in paths:
        if inode is not None and str(inode_of(path)) == inode:
            return path
    for path in paths:
        if inode is None and stem_of(path.name) == place.stem:
            return path
    raise CommandError(f"{printable(place.stem)}: its input is neither in done/ nor in failed/ of {place.pipeline}")


def _verdicts(place: FoundStem, source: Path, *, is_failed: bool) -> Verdicts:
    outbox = place.folders.outbox
    if is_failed:
        output = outbox / f"{place.stem}.output.jsonl"
        return Unanswered.read(lines_of(output) if output.exists() else ())
    return FailedLines.read(lines_of(outbox / f"{place.stem}.errors.jsonl"), survey(source).fingerprint)


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
