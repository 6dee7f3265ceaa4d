"""What one pipeline takes from its inbox, what it leaves there, and when it looks again."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from daemon.durable import Storage, printable
from daemon.folders import Folders
from daemon.inbox import ClaimedFile, Inbox, RefusedFile
from daemon.settings_daemon import DaemonSettings
from daemon.waiting import wait_for_event
from daemon.watch import HELD_BACK_S, FolderWatch

log = logging.getLogger(__name__)

_MIN_WAIT_S = 0.02  # between two rounds, unless an event comes
_PAUSED_LOOK_S = 2.0  # between two rounds of a paused pipeline, at most
_MAX_STRANGERS = 10  # that are named in the status
_LOOK_SHARE = 10  # between two listings there is so many times the time that the first one took


class Intake:
    """Looks into one inbox and claims from it. Used from the event loop's thread.

    `claimed_at` says when a file in work/ was claimed, as Unix seconds.
    """

    def __init__(
        self,
        pipeline: str,
        folders: Folders,
        daemon: DaemonSettings,
        storage: Storage,
        claimed_at: Callable[[Path], int],
    ) -> None:
        self.is_claiming = False
        self.num_refused = 0  # files that went to failed/ unread
        self._pipeline = pipeline
        self._daemon = daemon
        self._inbox = Inbox(folders, daemon.settle_s, storage, claimed_at)
        self._watch = FolderWatch(folders.inbox, daemon.watch)
        self._unusable: dict[str, str] = {}  # files that cannot be taken for now, and the reason that the log has
        self._told: set[str] = set()  # files that will never be taken and are in the log
        self._next_look_s = 0.0  # CLOCK_MONOTONIC
        self._no_events_until_s = 0.0  # likewise; those behind a claim come late
        self._syncing: asyncio.Task[None] | None = None  # makes the last claims durable

    @property
    def is_empty(self) -> bool:
        """Whether the last look found nothing that will be taken."""
        return not (self._inbox.num_settling or self._inbox.num_complete)

    @property
    def num_waiting(self) -> int:
        """Files that will be taken."""
        return self._inbox.num_waiting

    @property
    def num_unusable(self) -> int:
        """Files that cannot be read or moved."""
        return len(self._unusable)

    @property
    def left(self) -> Mapping[str, str]:
        """What stays in the inbox for now, by name, and why."""
        return {**self._strangers(), **self._inbox.options.waiting, **self._unusable}

    def _strangers(self) -> Mapping[str, str]:
        found = self._inbox.strangers
        shown = {name: f"it stays where it is: {found[name]}" for name in sorted(found)[:_MAX_STRANGERS]}
        num_more = len(found) - len(shown)
        return shown | ({f"and {num_more} more": "`gapless explain FILE` says why they stay"} if num_more else {})

    @property
    def how(self) -> str:
        """How it comes to know of new files, for people."""
        return self._watch.how

    def oldest_age_s(self, now_s: float) -> float:
        """For how long the oldest file has waited; 0 if none does."""
        return self._inbox.tracker.oldest_age_s(now_s) if self._inbox.num_waiting else 0.0

    def reconfigure(self, daemon: DaemonSettings) -> None:
        """Take other settings at once."""
        self._daemon = daemon
        self._inbox.tracker.settle_s = daemon.settle_s
        self._watch.change_mode(daemon.watch)

    async def start(self) -> None:
        """Watch the folder, so that events end a `wait` early."""
        await self._watch.start()

    def stop(self) -> None:
        """Stop watching the folder."""
        self._watch.stop()

    async def renew_if_lost(self) -> None:
        """Watch the folder that lies there now, if another one was watched."""
        await self._watch.renew_if_lost()

    def look_soon(self) -> None:
        """End the present, or the next, `wait`."""
        self._watch.nudge.set()

    async def look(self) -> None:
        """List the inbox if that is due."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            seconds = await asyncio.to_thread(self._timed_look, now_s, self._watch.take_whole())
            self._next_look_s = time.monotonic() + _LOOK_SHARE * seconds

    def _timed_look(self, now_s: float, whole: Collection[str]) -> float:
        """In a thread: look, and return how long that took. The wait for a thread is left out: it is no fault of the folder."""
        began_s = time.monotonic()
        self._inbox.look(now_s, whole)
        return time.monotonic() - began_s

    async def claim(self, room: int, stems_in_use: Iterable[str]) -> list[ClaimedFile]:
        """Claim at most `room` of the files that are complete, and begin to make that durable, see `claims_synced`."""
        if room <= 0 or not self._inbox.num_complete:
            return []
        self.is_claiming = True
        try:
            taken = await asyncio.to_thread(self._inbox.claim, room, stems_in_use)
        finally:
            self.is_claiming = False
        if taken:
            self._no_events_until_s = time.monotonic() + HELD_BACK_S
            self._syncing = asyncio.create_task(asyncio.to_thread(self._inbox.sync_claims))
        for file in taken:
            if isinstance(file, RefusedFile):
                self.num_refused += 1
                log.error("pipeline %s: %s is in failed/: %s", self._pipeline, printable(file.path.name), file.reason)
        return [file for file in taken if isinstance(file, ClaimedFile)]

    async def claims_synced(self) -> None:
        """Wait until no power cut can undo the claims so far. A run does other things first."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)

    def tell(self) -> None:
        """Log what cannot be taken, each file and reason once."""
        for name, reason in self._inbox.unusable.items():
            if self._unusable.get(name) != reason:
                who = f"pipeline {self._pipeline}: {printable(name)}"
                log.warning("%s stays in the inbox and is tried again: %s", who, reason)
        self._unusable = dict(self._inbox.unusable)
        for name in sorted(self._inbox.strangers.keys() - self._told)[:_MAX_STRANGERS]:
            who = f"pipeline {self._pipeline}: {printable(name)}"
            log.info("%s stays in the inbox: %s", who, self._inbox.strangers[name])
        self._told = set(self._inbox.strangers)

    async def wait(self, *, is_stuck: bool) -> None:
        """Wait for an event, for the next file to be complete, or for the next listing that is due anyway."""
        now_s = time.monotonic()
        wake_s = self._inbox.tracker.wake_s() if self._inbox.num_settling else None
        until_s = self._daemon.rescan_s
        soon_s = max(self._daemon.settle_s / 4, _MIN_WAIT_S)
        if is_stuck:
            until_s = min(until_s, _PAUSED_LOOK_S)
        elif wake_s is not None:
            until_s = min(until_s, max(wake_s - now_s, soon_s))
        if self._watch.has_events and now_s < self._no_events_until_s:
            until_s = min(until_s, soon_s)
        await wait_for_event(self._watch.nudge, until_s)
        self._watch.nudge.clear()
        if not self._inbox.num_complete:  # nothing to claim before the next listing
            await asyncio.sleep(min(self._next_look_s - time.monotonic(), self._daemon.rescan_s))
