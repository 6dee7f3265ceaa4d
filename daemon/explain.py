"""Says of one file what is going on with it and what to do, from the folders alone; what a running daemon says adds to it."""

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.batch_object import BatchStatus
from daemon.cancel_orders import CANCEL_SUFFIX
from daemon.dropped_name import DROPPED_SUFFIX, dropped_name
from daemon.durable import PUBLIC_MODE, DiskStorage, printable, utf8_name
from daemon.errors import DaemonError, JournalError, NotRunningError, StorageError
from daemon.file_kinds import OPTIONS_SUFFIX, REASON_SUFFIX, kind_of, split_name
from daemon.file_rules import MAX_OPEN_FILES, why_kind_is_left, why_name_is_left, why_name_is_refused
from daemon.folders import Folders
from daemon.follow import BATCH_SUFFIX, read_batch
from daemon.forgotten import forgotten_pipelines
from daemon.hold import REMOVED
from daemon.inbox import FileUse, look_closely, signature_of
from daemon.journal import JOURNAL_SUFFIX, Journal
from daemon.journal_state import JournalState
from daemon.on_done import NOTE_SUFFIX
from daemon.outbox import results_of
from daemon.pause_file import PauseFile
from daemon.retry import RETRY_MARK
from daemon.settings import Settings
from daemon.spool_lock import holder_of
from daemon.status import why_stale
from pipelines.counted import counted

_RENAMED = " Its name has a number because results of an earlier file of the same name were still there."
_RETRIED = " It runs again what failed of that file."
_RESUME = "`gapless resume`"  # stands in the reason of a pause that only a person can end
_RESULT = re.compile(r"(.+)\.(?:output|errors|batch|report|reason)\.[a-z]+(?:\.partial)?")
_SUFFIXES = (JOURNAL_SUFFIX, NOTE_SUFFIX, DROPPED_SUFFIX, OPTIONS_SUFFIX, REASON_SUFFIX, CANCEL_SUFFIX)
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that has to do with the file."""

    path: Path
    text: str  # a sentence or two: what is going on, what to do

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known of a file."""

    findings: list[Finding]
    daemon: str  # whether one runs
    is_found: bool  # in a folder of a pipeline

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.daemon])


@dataclass(frozen=True, slots=True)
class _Place:
    """One pipeline as far as explaining goes."""

    name: str
    folders: Folders
    engine: str
    settle_s: float
    rescan_s: float
    is_running: bool  # a daemon is
    silent: str | None = None  # why that says nothing, or nothing new
    status: Mapping[str, Any] = field(default_factory=dict)  # what that daemon says of the pipeline; may be empty
    engine_status: Mapping[str, Any] = field(default_factory=dict)


class ReadOnlyStorage(DiskStorage):
    """Lets a journal be read while a daemon writes it: nothing is cut, nothing made."""

    def open_write(self, path: Path, mode: int = PUBLIC_MODE) -> int:
        """Open for reading."""
        del mode
        return self.open_read(path)

    def truncate(self, fd: int, size: int) -> None:
        """Leave a torn tail, or one that is just being written, where it is."""

    def sync(self, fd: int) -> None:
        """Nothing was written."""


def explain(settings: Settings, given: Path, ask: Callable[[], Mapping[str, Any]]) -> Explanation:
    """Look for a file, given as a path, a name or a stem, in the folders of all pipelines.

    `ask` returns what a running daemon says of itself; it may fail with a DaemonError.
    """
    spool = Path(settings.daemon.spool)
    pid = holder_of(spool)
    said, silent = _ask(ask) if pid is not None else ({}, None)
    places = [
        _Place(
            name, Folders(spool / name), pipeline.engine, settings.daemon.settle_s, settings.daemon.rescan_s,
            is_running=pid is not None, silent=silent, status=_named(said, "pipelines", name),
            engine_status=_named(said, "engines", pipeline.engine),
        )
        for name, pipeline in settings.pipelines.items()
    ]  # fmt: skip
    findings = [finding for place in places for finding in _findings(place, given.name)]
    if not findings and (result := _RESULT.fullmatch(given.name)):  # a result is asked for: its file is meant
        findings = [finding for place in places for finding in _findings(place, result[1])]
    is_found = bool(findings)
    return Explanation(findings or [_found_nowhere(settings, given)], _about_the_daemon(spool, pid, silent), is_found)


def _ask(ask: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any], str | None]:
    """Return what the daemon says of itself, and why that is not how things are: it does not answer, or hangs."""
    try:
        said = ask()
    except NotRunningError as error:
        return {}, str(error)
    except DaemonError:  # its token may be another user's to read: nothing is known of it then
        return {}, None
    stale = why_stale(said.get("age_s", 0.0))
    return said, None if stale is None else f"the daemon hangs: {stale}; `gapless doctor` says more"


def _named(said: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    return next((entry for entry in said.get(kind, ()) if entry["name"] == name), {})


def _about_the_daemon(spool: Path, pid: int | None, silent: str | None) -> str:
    if silent is not None:
        return f"{silent[0].upper()}{silent[1:]}."
    if pid is None:
        return f"No daemon runs on {printable(spool)}: `gapless run` starts one."
    return f"A daemon runs on {printable(spool)}" + (f" (pid {pid})." if pid else ".")


def _found_nowhere(settings: Settings, given: Path) -> Finding:
    if given.name in {"", ".."} or os.path.isdir(given):  # noqa: PTH112  a name that is too long is none
        return Finding(given, "found a folder, expected a file, or the name or STEM of one.")
    spool, names = Path(settings.daemon.spool), list(settings.pipelines)
    for forgotten in forgotten_pipelines(spool, names):
        for path in (*forgotten.begun, *forgotten.waiting):
            if given.name in {path.name, split_name(path.name)[0]}:
                return Finding(path, f"it waits: {forgotten}.")
    inboxes = " or ".join(printable(Folders(spool / name).inbox) for name in names)
    if os.path.lexists(given) and not given.resolve().is_relative_to(spool.resolve()):
        return Finding(given, f"it lies outside of the spool, so nothing happens to it. Copy it into {inboxes}.")
    return Finding(given, f"found in no folder of the pipelines {', '.join(names)}. Drop it into {inboxes}.")


def _findings(place: _Place, name: str) -> Iterator[Finding]:
    if name in {"", ".."}:  # as of `.` and `..`
        return
    for path in _in_inbox_as(place.folders.inbox, name):
        yield Finding(path, _in_inbox(place, path))
    for stem in _stems(place.folders, name):
        yield from _of_stem(place, stem, name)


def _in_inbox_as(inbox: Path, name: str) -> list[Path]:
    """The thing in the inbox that has this name, else the files that have it as their stem."""
    if os.path.lexists(inbox / name):
        return [inbox / name]
    return [path for path in _with_stem(inbox, name) if kind_of(path.name) is not None]


def _in_inbox(place: _Place, path: Path) -> str:
    """What holds a file in the inbox."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return "it was here a moment ago: it is being taken."
    why_not_its_kind = why_kind_is_left(status.st_mode)
    if (why := why_not_its_kind or why_name_is_left(path.name)) is not None:
        belongs = why_not_its_kind is None and path.name.endswith((OPTIONS_SUFFIX, CANCEL_SUFFIX))
        what_to_do = "" if belongs else " Give it a name and a kind that are taken, or remove it."
        return f"it {'waits' if belongs else 'stays where it is'}: {why}." + what_to_do
    if (why := why_name_is_refused(path.name)) is not None:
        return f"it will be moved to failed/: {why}. Give it a shorter name."
    return _why_not_taken_yet(place, path, status)


def _why_not_taken_yet(place: _Place, path: Path, status: os.stat_result) -> str:
    try:
        state = look_closely(path, signature_of(status))
    except StorageError as error:
        return f"{error}. It is tried again every {place.rescan_s:g} s: let user {os.geteuid()} read it (chmod, chown)."
    if state is FileUse.IN_USE:
        return (
            "somebody has it open for writing. It is taken once that is closed and it has stayed the same for a while."
        )
    unchanged_s = time.time() - max(status.st_ctime, status.st_mtime)
    if 0 <= unchanged_s < place.settle_s:
        return (
            f"it was changed {unchanged_s:.1f} s ago. It is taken once it has stayed the same for daemon.settle_s, "
            f"{place.settle_s:g} s."
        )
    if (why := _what_the_daemon_meets(place, path.name)) is not None:
        return f"the daemon left it: {why}. It is tried again every {place.rescan_s:g} s."
    return _why_complete_waits(place)


def _what_the_daemon_meets(place: _Place, name: str) -> str | None:
    """Return why the running daemon leaves a file, which may be another user's to read; None if it says nothing of it."""
    head = f"{printable(name)}: "
    left = (str(line) for line in place.status.get("left_files", ()))
    return next((line.removeprefix(head) for line in left if line.startswith(head)), None)


def _why_complete_waits(place: _Place) -> str:
    if (held := PauseFile(place.folders.root).reason()) is not None:
        return f"it is complete and waits: the pipeline is paused by hand: {held}. `gapless resume` lets it go on."
    if not place.is_running:
        return "it is complete and waits for a daemon."
    if place.silent is not None:
        return "it is complete and waits: the daemon runs, but it does not answer."
    if (why := place.status.get("paused_because")) is not None:
        return f"it is complete and waits: the pipeline is paused: {why}.{_how_a_pause_ends(why)}"
    if files := place.status.get("files"):
        return (
            f"it is complete and is taken soon; being run: {counted(len(files), 'file')}, with room for {MAX_OPEN_FILES} at "
            "once."
        )
    return f"it is complete and is taken at the next look, every {place.rescan_s:g} s at the latest."


def _how_a_pause_ends(why: str) -> str:
    if why == REMOVED:
        return " Bring the pipeline back, or move the file into the inbox of another."
    return "" if _RESUME in why else " That ends by itself when the cause is gone."


def _stems(folders: Folders, name: str) -> list[str]:
    """The stems under which a file of this name, or of this stem, is or was run."""
    given = name if kind_of(name) is None else split_name(name)[0]
    stems: dict[str, None] = {given: None}
    for batch in sorted(folders.outbox.glob("*~*.batch.json")) if folders.outbox.is_dir() else ():
        source = ((read_batch(batch) or {}).get("metadata") or {}).get("source", "")
        if utf8_name(name) in {source, split_name(source)[0]}:
            stems[batch.name.removesuffix(".batch.json")] = None
    for journal in sorted(folders.work.glob("*~*.journal")) if folders.work.is_dir() else ():
        if _why_named_so(journal.stem, {given}):
            stems[journal.stem] = None
    for note in sorted(folders.work.glob(f"*{DROPPED_SUFFIX}")) if folders.work.is_dir() else ():
        stem = note.name.removesuffix(DROPPED_SUFFIX)
        with suppress(StorageError):
            dropped = dropped_name(ReadOnlyStorage(), folders.work, stem) or ""
            if name in {dropped, split_name(dropped)[0]}:
                stems[stem] = None
    return list(stems)


def _of_stem(place: _Place, stem: str, name: str) -> Iterator[Finding]:
    folders, batch = place.folders, read_batch(place.folders.outbox / f"{stem}{BATCH_SUFFIX}") or {}
    renamed = _why_named_so(stem, {name, split_name(name)[0]})
    in_work = sorted(_with_stem(folders.work, stem), key=lambda path: kind_of(path.name) is None)  # the input first
    if in_work:
        yield Finding(in_work[0], _in_work(place, stem, in_work, batch) + renamed)
        return
    failed = _with_stem(folders.failed, stem)
    if reason := _read_json(folders.failed / f"{stem}{REASON_SUFFIX}"):
        end = "" if str(reason.get("message")).endswith((".", "?")) else "."
        inputs = [path for path in failed if not path.name.endswith(REASON_SUFFIX)]
        what = f"it could not be run: {reason.get('message')}{end} Mend it and drop it again."
        yield Finding((inputs or failed)[0], what + _results(folders, stem) + renamed)
    elif batch.get("status") in _ENDED:
        yield Finding(_input_of(folders, stem), _ended(batch) + _results(folders, stem) + renamed)
    elif done := _with_stem(folders.done, stem):
        yield Finding(done[0], "it is done; its results are no longer in the outbox." + renamed)


def _why_named_so(stem: str, given: Collection[str]) -> str:
    """Say how a file came to its stem, if that was made from what is given."""
    base, _, mark = stem.rpartition("~")
    if base not in given:
        return ""
    if mark == RETRY_MARK.lstrip("~"):
        return _RETRIED
    return _RENAMED if mark.isdecimal() else ""


def _in_work(place: _Place, stem: str, paths: list[Path], batch: Mapping[str, Any]) -> str:
    """How far a claimed file is."""
    journal = place.folders.work / f"{stem}{JOURNAL_SUFFIX}"
    goes_on = _what_comes(place, stem, paths)
    if journal not in paths:
        return "it was taken and its lines are being counted and checked." + _why_it_waits(place) + goes_on
    try:
        state = _peek(journal)
    except JournalError as error:
        return (
            f"its journal cannot be used: {error}. Both are left as they are: move them away and drop the file again."
        )
    except StorageError as error:
        return f"its journal cannot be read: {error}."
    if state.sealed is not None:
        left = " Only its journal is left, and will be removed." if len(paths) == 1 else ""
        return "all its requests have ended, and its results are being published." + left + goes_on
    if state.started is None:
        return "it was taken and is about to be run." + _why_it_waits(place) + goes_on
    counts = batch.get("request_counts", {})
    num_ended = max(state.tally.num_lines, counts.get("completed", 0) + counts.get("failed", 0))
    partial = place.folders.outbox / f"{stem}.output.jsonl.partial"
    so_far = f" What there is so far: {printable(partial)}." if partial.exists() else ""
    what = "cancelled" if batch.get("status") == BatchStatus.CANCELLING else "run"
    text = f"it is being {what}: {num_ended:,} of {counted(state.started.num_requests, 'request')} ended."
    return text + _why_it_waits(place) + so_far + goes_on


def _what_comes(place: _Place, stem: str, paths: list[Path]) -> str:
    """What somebody asked for, and what a daemon has to run for."""
    when = "" if place.is_running else " at the daemon's next start"
    for name in (stem, *(path.name for path in paths)):
        order = place.folders.inbox / f"{name}{CANCEL_SUFFIX}"
        if order.exists():
            return f" It is to be cancelled{when}, as {printable(order.name)} in the inbox asks."
    return f" It goes on{when}." if when else ""


def _why_it_waits(place: _Place) -> str:
    reasons = [] if place.silent is None else ["the daemon does not answer"]
    if place.engine_status.get("state", "ready") != "ready":
        detail = place.engine_status.get("detail")
        reasons.append(f"engine {place.engine} is {place.engine_status['state']}" + (f" ({detail})" if detail else ""))
    if (why := place.status.get("paused_because")) is not None:
        reasons.append(f"the pipeline is paused: {why}")
    return f" It waits: {'; '.join(reasons)}." if reasons else ""


def _ended(batch: Mapping[str, Any]) -> str:
    counts = batch.get("request_counts", {})
    numbers = f"{counts.get('completed', 0):,} answered, {counts.get('failed', 0):,} in the errors file"
    match batch["status"]:
        case "completed":
            return f"it is done: {numbers if counts.get('total') else 'it has no requests'}."
        case "failed":
            return f"it could not be run to its end: {numbers}."
        case "cancelled":
            return f"it was cancelled: {numbers}."
        case _:
            return f"its deadline passed: {numbers}."


def _results(folders: Folders, stem: str) -> str:
    paths = results_of(folders.outbox, stem)
    return f" Results: {', '.join(map(printable, paths))}." if paths else ""


def _input_of(folders: Folders, stem: str) -> Path:
    inputs = [*_with_stem(folders.done, stem), *_with_stem(folders.failed, stem)]
    return inputs[0] if inputs else folders.outbox / f"{stem}.batch.json"


def _with_stem(folder: Path, stem: str) -> list[Path]:
    """The files of a folder other than the outbox that belong to a stem: its input, and what lies beside that.

    Those of STEM.more do not; STEM.output.jsonl is one of them, since somebody may drop a result as an input.
    """
    names = {f"{stem}{suffix}" for suffix in _SUFFIXES}
    try:
        return sorted(path for path in folder.iterdir() if path.name in names or _is_input(path.name, stem))
    except OSError:
        return []


def _is_input(name: str, stem: str) -> bool:
    return kind_of(name) is not None and split_name(name)[0] == stem


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _peek(path: Path) -> JournalState:
    journal, _ = Journal.open(path, ReadOnlyStorage())
    journal.close()
    return journal.state
