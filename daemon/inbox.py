"""Takes complete files out of the inbox: sees when a file is complete, reserves its stem, renames it into work/.

`look` lists the folder, `claim` takes from what the last look found complete. Nothing that a look saw is believed later: each
file is looked at again, through a descriptor that holds a read lease, just before its rename. So nobody can begin to write it
in between, where the file system knows leases; where it does not, the settle time is all there is.
"""

import errno
import fcntl
import os
import signal
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from daemon.dropped_name import forget_dropped_name, note_dropped_name
from daemon.durable import Storage, fsync_dir, printable, storage_error, storage_errors
from daemon.errors import StorageError
from daemon.file_kinds import split_name
from daemon.file_rules import (
    is_name_unfinished,
    short_stem,
    why_kind_is_left,
    why_name_is_left,
    why_name_is_refused,
    why_no_file_is_meant,
)
from daemon.folders import Folders
from daemon.options_files import OptionsFiles
from daemon.outbox import free_stem, move_input, reason_document

Signature = tuple[int, int, int, int]  # inode, size, mtime_ns, ctime_ns
Content = tuple[int, int]  # size, mtime_ns: what a rename leaves as it is
INVALID_NAME_CODE = "invalid_file_name"
_DENIED = frozenset({errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class ClaimedFile:
    """A file that is ours: it lies in work/ under a stem that nothing else uses."""

    name: str  # as it was dropped
    stem: str  # reserved; names journal and outputs
    path: Path  # in work/
    claimed_s: int  # Unix time of the claim, kept by the file system through a restart
    content: Content | None = None  # as it was claimed; None: by an earlier run of the daemon


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that went to failed/ at once."""

    name: str  # as it was dropped
    path: Path  # in failed/
    reason: str


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one look at a file sees."""

    signature: Signature
    since_s: float  # when this signature was first seen, by our own clock
    is_whole: bool  # it needs no second look


class FileUse(Enum):
    """What a closer look at a complete file finds."""

    FREE = auto()
    IN_USE = auto()  # somebody writes it, or has changed it
    GONE = auto()


def signature_of(status: os.stat_result) -> Signature:
    """Return what has to stay the same for a file to be complete."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def claim_time(path: Path) -> int:
    """Return the Unix second of a file's claim: its rename into work/ has set its ctime.

    Raises:
        StorageError: it cannot be looked at.
    """
    with storage_errors("look at", path):
        return int(path.stat().st_ctime)


class FileStabilityTracker:
    """When a file is complete: two looks at least `settle_s` apart by our own clock find it the same, or it came whole."""

    def __init__(self, settle_s: float) -> None:
        self.settle_s = settle_s
        self._sights: dict[str, _Sight] = {}

    def observe(self, name: str, status: os.stat_result, now_s: float, *, came_whole: bool = False) -> bool:
        """Note a look; return whether the file is complete. One that came whole is so until it changes."""
        signature = signature_of(status)
        sight = self._sights.get(name)
        if sight is None or sight.signature != signature or came_whole:
            self._sights[name] = _Sight(signature, now_s, came_whole)
            return came_whole
        return sight.is_whole or now_s - sight.since_s >= self.settle_s

    def oldest_age_s(self, now_s: float) -> float:
        """Return for how long the file that has stayed the same for longest has done so; 0 where there is none."""
        sights = list(self._sights.values())  # the folder may be looked at meanwhile, in a thread
        return max((now_s - sight.since_s for sight in sights), default=0.0)

    def forget_all_but(self, names: set[str]) -> None:
        """Drop what is known of files that are no longer there."""
        for name in self._sights.keys() - names:
            del self._sights[name]

    def wake_s(self) -> float | None:
        """Return when the next file can be complete, by the clock of the looks; None if there is none."""
        return min((sight.since_s + self.settle_s for sight in self._sights.values()), default=None)


class Inbox:
    """The inbox of one pipeline and the way out of it. Used from one thread at a time."""

    def __init__(
        self,
        folders: Folders,
        settle_s: float,
        storage: Storage,
        claimed_at: Callable[[Path], int] = claim_time,
    ) -> None:
        self.folder = folders.inbox
        self._folders = folders
        self._storage = storage
        self._claimed_at = claimed_at
        self.tracker = FileStabilityTracker(settle_s)
        self.options = OptionsFiles(folders, storage, self._is_complete)
        self.num_settling = 0  # files that wait to be complete, or for their options, as of the last look
        self.strangers: Mapping[str, str] = {}  # what will never be taken, and why; what passes for unfinished left out
        self.unusable: dict[str, str] = {}  # files that cannot be read or moved, and why; tried again at each look
        self._complete: deque[tuple[str, Signature]] = deque()  # oldest first
        self._whole: Collection[str] = ()  # as of the present look

    @property
    def num_complete(self) -> int:
        """Files that the last look found complete and that were not claimed since."""
        return len(self._complete)

    @property
    def num_waiting(self) -> int:
        """All files that will be taken, if they can be."""
        return self.num_settling + self.num_complete + len(self.unusable)

    def look(self, now_s: float, whole: Collection[str] = ()) -> None:
        """List the folder and note what is complete; files named in `whole` have come by a rename since the last look.

        Raises:
            StorageError: the inbox cannot be listed.
        """
        strangers: dict[str, str] = {}
        found = list(self._candidates(strangers))
        candidates = sorted(found, key=lambda candidate: (candidate[1].st_mtime_ns, candidate[0]))
        self.strangers = strangers
        self.num_settling = 0
        self.unusable.clear()
        self._complete.clear()
        self._whole = whole
        self.options.look(now_s)
        names = {name for name, _ in candidates}
        self.options.explain(names, _stem_of)
        self.tracker.forget_all_but({*names, *self.options.names})
        for name, status in candidates:
            is_complete = self.tracker.observe(name, status, now_s, came_whole=name in whole)
            if is_complete and self.options.are_ready_for(name, _stem_of(name)):
                self._complete.append((name, signature_of(status)))
            else:
                self.num_settling += 1

    def claim(self, max_files: int, stems_in_use: Iterable[str]) -> list[ClaimedFile | RefusedFile]:
        """Take at most `max_files` complete files, oldest first. A power cut may undo this until `sync_claims`.

        Raises:
            StorageError: one cannot be moved, and none was before it.
        """
        taken: list[ClaimedFile | RefusedFile] = []
        stems = set(stems_in_use)
        try:
            while self._complete and len(taken) < max_files:
                name, signature = self._complete.popleft()
                if (file := self._claim(name, signature, stems)) is not None:
                    taken.append(file)
        except StorageError:
            if not taken:
                raise  # else the next call meets it again
        return taken

    def sync_claims(self) -> None:
        """Sync both folders, so that no power cut undoes the claims so far. May be called from any thread."""
        with suppress(StorageError):  # the files are claimed all the same, and their runs will meet the same disk
            fsync_dir(self._storage, self._folders.work)
            fsync_dir(self._storage, self.folder)

    def _is_complete(self, name: str, status: os.stat_result, now_s: float) -> bool:
        """Whether a file of options is complete. It is looked at closely here, because nothing does that at its claim."""
        try:
            is_free = look_closely(self.folder / name, signature_of(status)) is FileUse.FREE
        except StorageError as error:
            self.unusable[name] = str(error)
            return False
        return self.tracker.observe(name, status, now_s, came_whole=name in self._whole) and is_free

    def _candidates(self, strangers: dict[str, str]) -> Iterator[tuple[str, os.stat_result]]:
        with storage_errors("list", self.folder), os.scandir(self.folder) as entries:
            for entry in entries:
                if is_name_unfinished(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone since the listing
                if (why := why_kind_is_left(status.st_mode) or why_no_file_is_meant(entry.name)) is not None:
                    strangers[entry.name] = why
                elif why_name_is_left(entry.name) is None:
                    yield entry.name, status

    def _claim(self, name: str, signature: Signature, stems: set[str]) -> ClaimedFile | RefusedFile | None:
        """Take a file; None if it is gone, in use again, or cannot be had for now."""
        try:
            with held(self.folder / name, signature) as state:
                match state:
                    case FileUse.FREE:
                        refusal = why_name_is_refused(name)
                        return self._take(name, stems, signature) if refusal is None else self._refuse(name, refusal)
                    case FileUse.IN_USE:
                        self.num_settling += 1
                    case FileUse.GONE:
                        pass
        except StorageError as error:
            if error.code not in _DENIED or not os.access(self.folder, os.W_OK | os.X_OK):
                raise
            self.unusable[name] = str(error)
        return None

    def _take(self, name: str, stems: set[str], signature: Signature) -> ClaimedFile | None:
        """Rename a file into work/ under a free stem; None if it vanished."""
        source, (given, suffix) = self.folder / name, split_name(name)
        with storage_errors("look for a free name for", source):
            stem = free_stem(given, self._folders.work, self._folders.outbox, stems, self._storage)
        target = self._folders.work / f"{stem}{suffix}"
        self._note_name(name, stem)
        options = self.options.take(name, _stem_of(name), stem)
        try:
            self._storage.rename(source, target)
        except FileNotFoundError as error:
            if options is not None:
                self.options.put_back(options, stem)
            if self._storage.exists(source):
                raise storage_error(error, f"move {printable(source)} to", target) from error
            forget_dropped_name(self._storage, self._folders.work, stem)
            return None
        except OSError as error:
            raise storage_error(error, f"move {printable(source)} to", target) from error
        stems.add(stem)
        return ClaimedFile(name, stem, target, self._claimed_at(target), (signature[1], signature[2]))

    def _note_name(self, name: str, stem: str) -> None:
        """Before a claim: record the name as it was dropped, where the claimed file will not show it."""
        if stem != _stem_of(name):
            note_dropped_name(self._storage, self._folders.work, stem, name)
        else:
            forget_dropped_name(self._storage, self._folders.work, stem)  # left by a claim that failed

    def _refuse(self, name: str, refusal: str) -> RefusedFile | None:
        """Move a file whose name is too long to failed/ under a short one; None if it vanished."""
        source = self.folder / name
        reason = reason_document(name, INVALID_NAME_CODE, refusal)
        target = move_input(
            self._storage, source, short_stem(name), self._folders.failed, reason, suffix=split_name(name)[1]
        )
        return None if target is None else RefusedFile(name, target, refusal)


def _stem_of(name: str) -> str:
    return split_name(name)[0]


@contextmanager
def held(path: Path, signature: Signature) -> Iterator[FileUse]:
    """Look closely at a file that seemed complete; while it is free, nobody can open it for writing within the block.

    Raises:
        StorageError: it cannot be opened.
    """
    try:
        # Not blocking: should it be a named pipe by now, waiting for its writer would be for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield FileUse.GONE
        return
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link or a socket by now
            yield FileUse.GONE
            return
        raise storage_error(error, "read", path) from error
    try:
        is_free = _lease(fd)
        status = os.fstat(fd)
        is_same = stat.S_ISREG(status.st_mode) and signature_of(status) == signature
        yield FileUse.FREE if is_free and is_same else FileUse.IN_USE
    finally:
        os.close(fd)  # the lease ends with it


def look_closely(path: Path, signature: Signature) -> FileUse:
    """Return whether a file that had this signature is free, now.

    Raises:
        StorageError: it cannot be opened.
    """
    with held(path, signature) as state:
        return state


def _lease(fd: int) -> bool:
    """Take a read lease, where they are to be had; return whether nobody holds the file open for writing.

    Whoever opens it for writing then waits until the lease ends. The kernel tells us by a signal: by default one that ends
    the process, so another is chosen, which is ignored by default.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno not in {errno.EAGAIN, errno.EWOULDBLOCK}
    return True
