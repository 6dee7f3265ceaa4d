"""Takes complete files out of the inbox: sees when a file is complete, reserves its stem, renames it into work/."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from daemon.cancel_orders import CANCEL_SUFFIX
from daemon.durable import printable, storage_errors
from daemon.file_kinds import KINDS, kind_of, split_name
from daemon.options_files import OptionsFiles
from daemon.outbox import OPTIONS_SUFFIX

_LEFT_SUFFIXES = (".tmp", ".part", ".partial", ".crdownload", ".download", "~")
MAX_NAME_BYTES = 200
_SHORT_STEM_BYTES = 180  # leaves room for ~2 and the like


@dataclass(frozen=True, slots=True)
class ClaimedFile:
    """A file that is ours: it lies in work/ under a stem that nothing else uses."""

    name: str  # as it was dropped
    stem: str  # reserved; names journal and outputs
    path: Path  # in work/
    claimed_s: int  # Unix time of the claim, kept by the file system through a restart
    refusal: str | None = None  # why it cannot be run at all


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one look at a file sees."""

    signature: tuple[int, int, int, int]  # inode, size, mtime_ns, ctime_ns
    since_s: float  # when this signature was first seen, by our own clock


class FileStabilityTracker:
    """When a file is complete: two looks at least `settle_s` apart by our own clock find it the same."""

    def __init__(self, settle_s: float) -> None:
        self.settle_s = settle_s
        self._sights: dict[str, _Sight] = {}

    def observe(self, name: str, status: os.stat_result, now_s: float) -> bool:
        """Note a look; return whether the file has been the same for long enough."""
        signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        sight = self._sights.get(name)
        if sight is None or sight.signature != signature:
            self._sights[name] = _Sight(signature, now_s)
            return False
        return now_s - sight.since_s >= self.settle_s

    def oldest_age_s(self, now_s: float) -> float:
        """How long the file that has been the same for longest has been so; 0 where there is none."""
        return max((now_s - sight.since_s for sight in self._sights.values()), default=0.0)

    def forget_all_but(self, names: set[str]) -> None:
        """Drop what is known of files that are no longer there."""
        for name in self._sights.keys() - names:
            del self._sights[name]

    def wake_s(self) -> float | None:
        """When the next file can become complete, or None."""
        return min((sight.since_s + self.settle_s for sight in self._sights.values()), default=None)


class Inbox:
    """The inbox and work folders of one pipeline. Used from one thread."""

    def __init__(
        self,
        folder: Path,
        work: Path,
        free_stem: Callable[[str], str],
        settle_s: float,
        wall_clock: Callable[[], float],
    ) -> None:
        self.folder = folder
        self._work = work
        self._free_stem = free_stem  # the reservation: STEM, STEM~2, ... whichever nothing in work/ or outbox/ uses
        self._wall_clock = wall_clock
        self.tracker = FileStabilityTracker(settle_s)
        self.options = OptionsFiles(folder, work, self._is_complete)
        self.num_settling = 0  # files that wait to be complete, as of the last scan

    def scan(self, now_s: float) -> Iterator[ClaimedFile]:
        """Look at the folder once and claim what is complete, oldest first.

        Raises:
            StorageError: the inbox cannot be listed, or a file not be moved out of it.
        """
        candidates = self._candidates()
        self.options.look(now_s)
        names = {entry.name for entry, _ in candidates}
        self.options.explain(names, _stem_of)
        self.tracker.forget_all_but({*names, *self.options.names})
        self.num_settling = 0
        for entry, status in sorted(candidates, key=lambda candidate: (candidate[1].st_mtime_ns, candidate[0].name)):
            is_complete = self._is_complete(entry.name, status, now_s)
            if is_complete and self.options.are_ready_for(entry.name, _stem_of(entry.name)):
                if (claimed := self._claim(entry.name)) is not None:
                    yield claimed
            else:
                self.num_settling += 1

    @staticmethod
    def why_left(name: str) -> str | None:
        """Say why a file of this name is left where it is; None if it is one to take."""
        if name.startswith("."):
            return "its name begins with a dot"
        if name.startswith("~$") or name.endswith(_LEFT_SUFFIXES):
            return "its name is that of an unfinished copy"
        if name.endswith(OPTIONS_SUFFIX):
            return "it is taken with the file that it is for"
        if name.endswith(CANCEL_SUFFIX):
            return "it asks to cancel a file, and goes when that is done"
        if kind_of(name) is None:
            return f"its extension {split_name(name)[1]!r} is none of {', '.join(KINDS)}"
        return None

    def _is_complete(self, name: str, status: os.stat_result, now_s: float) -> bool:
        return self.tracker.observe(name, status, now_s) and not _is_being_written(self.folder / name)

    def _candidates(self) -> list[tuple[os.DirEntry[str], os.stat_result]]:
        candidates = []
        with storage_errors("list", self.folder), os.scandir(self.folder) as entries:
            for entry in entries:
                if self.why_left(entry.name) is None:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # gone since the listing
                    if stat.S_ISREG(status.st_mode):
                        candidates.append((entry, status))
        return candidates

    def _claim(self, name: str) -> ClaimedFile | None:
        """Rename a file into work/ under a free stem; None if it vanished."""
        source = self.folder / name
        is_too_long = len(os.fsencode(name)) > MAX_NAME_BYTES
        stem, suffix = split_name(name)
        stem = self._free_stem(_shortened(stem) if is_too_long else stem)
        target = self._work / f"{stem}{suffix}"
        options = self.options.take(name, _stem_of(name), stem)
        with storage_errors(f"move {printable(source)} to", target):
            try:
                source.rename(target)
            except FileNotFoundError:
                if options is not None:
                    self.options.put_back(options, stem)
                return None
        refusal = None
        if is_too_long:
            refusal = (
                f"its name has {len(os.fsencode(name))} bytes, at most {MAX_NAME_BYTES} expected; it was shortened"
            )
        return ClaimedFile(name, stem, target, int(self._wall_clock()), refusal)


def _stem_of(name: str) -> str:
    return split_name(name)[0]


def _shortened(stem: str) -> str:
    """Cut a stem so that the names made of it stay within what file systems take."""
    return os.fsencode(stem)[:_SHORT_STEM_BYTES].decode("utf-8", "ignore")


def _is_being_written(path: Path) -> bool:
    """Whether somebody holds a file open for writing, where the file system can tell: a read lease is refused just then."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # unreadable: claimed, and refused by whoever reads it
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in {errno.EAGAIN, errno.EWOULDBLOCK}
    finally:
        os.close(descriptor)
    return False
