"""File-system events as a nudge: they say that a scan is worth while, never what is there.

Events come late, double or not at all, and when the kernel's queue overflows they are dropped without a word. So whatever
happens here, the inbox is listed every `rescan_s`; events only make that sooner. One kind says more: a file that was renamed
from `.NAME.tmp` to `NAME`, or by `gapless submit`, is whole.
"""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from daemon.durable import printable
from daemon.file_rules import comes_whole
from daemon.mounts import file_system_of, is_shared
from daemon.settings_daemon import Watch
from daemon.waiting import wait_for_event

log = logging.getLogger(__name__)

PROBE = ".gapless-probe"
PROBE_WAIT_S = 1.0
HELD_BACK_S = 0.5  # watchdog keeps all events so long behind one of a file moved away: where that went may be told yet
_EVENTS = "events"
_NOWHERE = (0, 0)


class FolderWatch:
    """Sets an asyncio event when something happens in a folder, and notes what came whole. Used from the event loop's thread."""

    def __init__(self, folder: Path, mode: Watch) -> None:
        self.nudge = asyncio.Event()
        self.how = "not yet"  # for people: "events", or "polled" and why
        self._folder = folder
        self._mode = mode
        self._observer: Any = None
        self._watched = _NOWHERE  # device and inode of the folder when the watch began
        self._whole: set[str] = set()

    @property
    def has_events(self) -> bool:
        """Whether events are what new files are noticed by."""
        return self.how == _EVENTS

    def take_whole(self) -> set[str]:
        """Return the names of files that came whole since the last call."""
        whole, self._whole = self._whole, set()
        return whole

    async def start(self) -> None:
        """Begin to watch as the mode has it, and say so."""
        before = self.how
        self.how = await self._start()
        if self.how != before:
            say = log.warning if self._mode is Watch.EVENTS and self.how != _EVENTS else log.info
            say("new files in %s are noticed by: %s", printable(self._folder), self.how)

    def change_mode(self, mode: Watch) -> None:
        """Watch in another way from the next `renew_if_lost` on."""
        if mode is not self._mode:
            self._mode, self._watched = mode, _NOWHERE

    async def renew_if_lost(self) -> None:
        """Decide anew where the mode is another one, or the folder: removed and made again, or mounted again."""
        if _identity(self._folder) not in {self._watched, _NOWHERE}:
            self.stop()
            await self.start()

    def stop(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    async def _start(self) -> str:
        self._watched = _identity(self._folder)
        if self._mode is Watch.POLL:
            return "polling, as daemon.watch has it"
        file_system = await asyncio.to_thread(file_system_of, self._folder)
        if self._mode is Watch.AUTO and is_shared(file_system):
            return f"polling, as other machines' changes on {file_system} send no events"
        try:
            self._observer = await asyncio.to_thread(_observe, self._folder, self._handler())
        except OSError as error:
            return f"polling, as the system gives no events ({error.strerror or error})"
        if await self._probe():
            return _EVENTS
        if self._mode is Watch.EVENTS:
            return f"polling and events, though none came within {PROBE_WAIT_S:g} s"
        self.stop()
        return f"polling, as no event came within {PROBE_WAIT_S:g} s"

    def _handler(self) -> FileSystemEventHandler:
        loop, note = asyncio.get_running_loop(), self._note

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.event_type not in {"opened", "closed_no_write"}:
                    with suppress(RuntimeError):  # the loop is closed: an event on the way while the daemon ends
                        loop.call_soon_threadsafe(note, event)

        return Handler()

    def _note(self, event: FileSystemEvent) -> None:
        if event.event_type == "moved" and comes_whole(_name(event.src_path), name := _name(event.dest_path)):
            self._whole.add(name)
        self.nudge.set()

    async def _probe(self) -> bool:
        """Whether an event arrives when a file appears."""
        self.nudge.clear()
        with suppress(OSError):
            await asyncio.to_thread(_touch, self._folder / PROBE)
        return await wait_for_event(self.nudge, PROBE_WAIT_S)


def _observe(folder: Path, handler: FileSystemEventHandler) -> Any:
    logging.getLogger("watchdog.observers.inotify").addFilter(_is_of_interest)  # once, however often it is added
    observer = Observer()
    observer.schedule(handler, str(folder), recursive=False)
    observer.start()
    return observer


def _is_of_interest(record: logging.LogRecord) -> bool:
    """Whether a line of watchdog's says anything: its thread calls it an error to be stopped between two reads."""
    return not record.getMessage().endswith("called when the thread is inactive")


def _name(path: str | bytes) -> str:
    return Path(os.fsdecode(path)).name


def _touch(path: Path) -> None:
    path.touch()
    path.unlink()


def _identity(folder: Path) -> tuple[int, int]:
    try:
        status = folder.stat()
    except OSError:
        return _NOWHERE
    return status.st_dev, status.st_ino
