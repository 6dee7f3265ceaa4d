"""Publishing one file: its lines, report and Batch object appear in the outbox, its input moves on, its journal goes.

                    sealed and durable                                      durable
    journal  ----------------+-----------------------------------------------published------------------------> gone
    outbox                   OUTPUT --> ERRORS --> REPORT --> BATCH_OBJECT --> MARK
    input                                                                         --> INPUT --> JOURNAL

A name appears in the outbox only by the rename of a file that is whole and synced, and the Batch object, which people wait for,
is the last. The names of output, errors and report are made durable together, behind the last of them: with many small files
the syncs are what takes time. Everything is copied from the journal, times included, so doing a step again gives the same bytes:
whatever stops this half-way, calling `publish` again, in this process or after a restart, ends the same.

Invariants:
 1. Nothing is published that is not durable in the journal.
 2. BATCH_OBJECT and each step behind it begin only when what all before them did outlives a crash. That the journal is gone need
    not outlive one: a journal that comes back says that it was published.
 3. Once the Batch object may have been seen (MARK), the outbox is left alone: people take files out of it.
 4. Nobody's file is replaced in done/ or failed/: a name that is taken there becomes NAME~2.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, assert_never

from daemon.durable import (
    DiskStorage,
    Storage,
    atomic_write_bytes,
    file_size,
    fsync_dir,
    printable,
    read_small,
    rename_durable,
    storage_errors,
    unlink_durable,
    utf8_name,
)
from daemon.errors import InvariantError
from daemon.file_kinds import KINDS, OPTIONS_SUFFIX, OUTBOX_SUFFIXES, REASON_SUFFIX, FileKind
from daemon.journal import JOURNAL_SUFFIX, Journal
from daemon.journal_records import Sealed
from daemon.json_text import json_document
from daemon.partial_output import LineFile, PartialOutput
from daemon.table_output import write_table


class PublishStep(StrEnum):
    """What publishing does, in this order."""

    OUTPUT = "output"
    ERRORS = "errors"
    REPORT = "report"
    BATCH_OBJECT = "batch_object"
    MARK = "mark"  # the journal's PUBLISHED record
    INPUT = "input"  # to done/, or with its reason to failed/
    JOURNAL = "journal"


@dataclass(frozen=True, slots=True)
class FileNames:
    """Where everything of one file lies."""

    stem: str
    input: Path  # in work/
    outbox: Path
    done: Path
    failed: Path
    kind: FileKind = FileKind.LINES

    @property
    def journal(self) -> Path:
        """The journal, beside the input."""
        return self.input.with_name(self.stem + JOURNAL_SUFFIX)

    @property
    def options(self) -> Path:
        """What the file asks for beside its pipeline's settings, beside the input; not always there."""
        return self.input.with_name(self.stem + OPTIONS_SUFFIX)

    @property
    def is_text(self) -> bool:
        """Whether the answer is bare text."""
        return self.kind is FileKind.TEXT

    @property
    def lines(self) -> Path:
        """The lines of answered requests; of a table that ran to its end only their copy while it runs."""
        return self._in_outbox(".output.txt" if self.is_text else ".output.jsonl")

    def output(self, reason: str | None) -> Path:
        """The output: a table's is a table, unless there is a reason for which it did not run to its end."""
        is_table = self.kind.is_table and reason is None
        return self._in_outbox(f".output.{self.kind}") if is_table else self.lines

    @property
    def errors(self) -> Path:
        """The lines of the others."""
        return self._in_outbox(".errors.jsonl")

    @property
    def report(self) -> Path:
        """The report."""
        return self._in_outbox(".report.json")

    @property
    def batch(self) -> Path:
        """The Batch object, live from the claim on."""
        return self._in_outbox(".batch.json")

    def _in_outbox(self, suffix: str) -> Path:
        return self.outbox / (self.stem + suffix)


def results_of(outbox: Path, stem: str) -> list[Path]:
    """Return the files of the outbox that belong to a stem, by name; those of STEM.more do not. Empty if it cannot be read."""
    names = {f"{stem}{suffix}" for suffix in OUTBOX_SUFFIXES}
    try:
        return sorted(path for path in outbox.iterdir() if path.name in names)
    except OSError:
        return []


def free_stem(stem: str, work: Path, outbox: Path, taken: Container[str] = (), storage: Storage | None = None) -> str:
    """Return STEM, STEM~2, STEM~3...: the first that no file in work/ or outbox/ has, and that is not in `taken`.

    `taken` holds the stems that are in use: a file in work/ may have its extension in any mixture of cases.
    """
    storage = storage or DiskStorage()
    places = [(work, (JOURNAL_SUFFIX, *KINDS)), (outbox, OUTBOX_SUFFIXES)]

    def is_free(name: str) -> bool:
        paths = (folder / (name + suffix) for folder, suffixes in places for suffix in suffixes)
        return name not in taken and not any(storage.exists(path) for path in paths)

    return next(name for name in numbered(stem) if is_free(name))


def partial_output(
    journal: Journal, names: FileNames, *, in_input_order: bool, storage: Storage | None = None
) -> PartialOutput:
    """Return the copier into the outbox's `.partial` files; what an earlier run left there is written anew."""
    output = names.lines.with_name(names.lines.name + ".partial")
    errors = names.errors.with_name(names.errors.name + ".partial")
    return PartialOutput(journal, output, errors, storage or DiskStorage(), in_input_order=in_input_order)


def write_batch_object(names: FileNames, batch: Mapping[str, Any], storage: Storage | None = None) -> None:
    """Show the Batch object of a file that still runs; not synced, since publishing writes the last one.

    Raises:
        StorageError: the old one stands.
    """
    atomic_write_bytes(storage or DiskStorage(), names.batch, json_document(batch), is_durable=False)


def output_is_published(sealed: Sealed, num_completed: int, *, is_text: bool) -> bool:
    """Whether there will be an output file: where there is an answer; else for a file that ran to its end, unless it is text."""
    return num_completed > 0 or (sealed.reason is None and not is_text)


def move_input(
    storage: Storage,
    source: Path,
    stem: str,
    folder: Path,
    reason: bytes | None = None,
    *,
    options: bytes | None = None,
    suffix: str | None = None,
) -> Path | None:
    """Move a file of `stem` into done/ or, with STEM.reason.json beside it, into failed/; its options are copied beside it.

    `suffix` is what its name will have behind the stem, by default what it has now.
    Returns where it is now, None if it was moved before.

    Raises:
        StorageError: it is where it was, maybe with its reason already in place; doing it again is right.
    """
    if not storage.exists(source):
        fsync_dir(storage, folder)
        fsync_dir(storage, source.parent)
        return None
    ending = source.name.removeprefix(stem) if suffix is None else suffix

    beside = {REASON_SUFFIX: reason, OPTIONS_SUFFIX: options}

    def is_free(name: str) -> bool:
        takes_all = all(
            content is None or _may_hold(storage, folder / (name + end), content) for end, content in beside.items()
        )
        return takes_all and not storage.exists(folder / (name + ending))

    name = next(name for name in numbered(stem) if is_free(name))
    for end, content in beside.items():
        if content is not None:
            atomic_write_bytes(storage, folder / (name + end), content, is_durable=True)
    target = folder / (name + ending)
    rename_durable(storage, source, target)
    return target


def reason_document(source_name: str, code: str, message: str, errors: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of STEM.reason.json; `errors` is that of the Batch object."""
    return json_document({"file": utf8_name(source_name), "code": code, "message": message, "errors": errors})


class Publisher:
    """Publishes one file. `after_step` is called behind each step."""

    def __init__(
        self,
        journal: Journal,
        names: FileNames,
        partial: PartialOutput,
        storage: Storage | None = None,
        after_step: Callable[[PublishStep], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._names = names
        self._partial = partial
        self._storage = storage or DiskStorage()
        self._after_step = after_step

    def publish(self) -> Path | None:
        """Do all steps that are not done; return where the input went, None if an earlier call moved it.

        Raises:
            StorageError, JournalError: call again once the reason is gone.
            InputModifiedError: it is a table, and its input is no longer the one that was run.
            InvariantError: the journal is not sealed.
        """
        sealed = self._journal.state.sealed
        if sealed is None:
            raise InvariantError(f"{self._names.stem!a} published before its journal was sealed")
        self._journal.sync()  # invariant 1
        target = None
        for step in PublishStep:
            target = self._do(step, sealed) or target
            self._after_step(step)
        return target

    def _do(self, step: PublishStep, sealed: Sealed) -> Path | None:
        is_published = self._journal.state.is_published
        match step:
            case PublishStep.INPUT:
                return self._move_input(sealed)
            case PublishStep.JOURNAL:
                self._journal.close()
                if self._storage.exists(self._names.options):
                    unlink_durable(self._storage, self._names.options)  # its copy lies beside the input
                self._remove(self._names.journal)
            case _ if is_published:
                pass  # invariant 3
            case PublishStep.OUTPUT:
                self._publish_output(sealed)
            case PublishStep.ERRORS:
                tally = self._journal.state.tally
                is_needed = tally.num_failed > 0
                self._publish_lines(self._partial.errors, self._names.errors, tally.errors_bytes, is_needed=is_needed)
            case PublishStep.REPORT:
                atomic_write_bytes(self._storage, self._names.report, sealed.report.encode(), is_durable=True)  # (2)
            case PublishStep.BATCH_OBJECT:
                atomic_write_bytes(self._storage, self._names.batch, sealed.batch.encode(), is_durable=True)
            case PublishStep.MARK:
                self._journal.append_published()
                self._journal.sync()
            case _:
                assert_never(step)
        return None

    def _publish_lines(self, file: LineFile, target: Path, num_bytes: int, *, is_needed: bool) -> None:
        """Give the complete copy its name. The name is there only if that happened, perhaps in an earlier call."""
        if not is_needed or file_size(self._storage, target) == num_bytes:
            file.is_wanted = False
            self._remove(file.path)  # left by a dead process, and not always there
            return
        self._partial.finish()
        file.sync()
        with storage_errors(f"move {printable(file.path)} to", target):
            self._storage.rename(file.path, target)
        file.is_wanted = False

    def _publish_output(self, sealed: Sealed) -> None:
        tally, names = self._journal.state.tally, self._names
        is_needed = output_is_published(sealed, tally.num_completed, is_text=names.is_text)
        if (target := names.output(sealed.reason)) != names.lines:
            self._publish_table(target)
            is_needed = False
        self._publish_lines(self._partial.output, names.lines, tally.output_bytes, is_needed=is_needed)

    def _publish_table(self, target: Path) -> None:
        """Write the table under a hidden name, then give it its own, which is there only if that happened, perhaps earlier."""
        if self._storage.exists(target):
            fsync_dir(self._storage, target.parent)
            return
        temporary = target.with_name(f".{target.name}.tmp")
        write_table(self._journal, self._names.input, self._names.kind, temporary, self._storage)
        rename_durable(self._storage, temporary, target)

    def _remove(self, path: Path) -> None:
        with storage_errors("remove", path), suppress(FileNotFoundError):
            self._storage.unlink(path)

    def _move_input(self, sealed: Sealed) -> Path | None:
        names = self._names
        folder = names.done if sealed.reason is None else names.failed
        reason = None if sealed.reason is None else sealed.reason.encode()
        options = read_small(self._storage, names.options)
        return move_input(self._storage, names.input, names.stem, folder, reason, options=options)


def numbered(stem: str) -> Iterator[str]:
    """Yield STEM, STEM~2, STEM~3..."""
    yield stem
    for number in count(2):
        yield f"{stem}~{number}"


def unnumbered(stem: str) -> str:
    """Return the stem without a number that `numbered` may have given it."""
    return re.sub(r"~[0-9]+\Z", "", stem)


def _may_hold(storage: Storage, path: Path, content: bytes) -> bool:
    """Whether nothing is lost by writing `content` there: the name is free, or the file holds just that."""
    if file_size(storage, path) not in {None, len(content)}:
        return False
    return read_small(storage, path) in {None, content}
