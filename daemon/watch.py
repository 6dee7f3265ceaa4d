"""File-system events as a nudge: they say that a scan is worth while, never what is there."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from daemon.waiting import wait_for_event

log = logging.getLogger(__name__)

_PROBE = ".gapless-probe"
_PROBE_WAIT_S = 1.0


class FolderWatch:
    """Sets an asyncio event when something happens in a folder. Used from the event loop's thread."""

    def __init__(self, folder: Path) -> None:
        self.nudge = asyncio.Event()
        self._folder = folder
        self._observer: Any = None

    async def start(self) -> bool:
        """Begin to watch; return whether events arrive, which a probe file shows. Where they do not, nothing is watched."""
        loop = asyncio.get_running_loop()
        nudge = self.nudge

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.event_type not in {"opened", "closed_no_write"}:
                    loop.call_soon_threadsafe(nudge.set)

        self._observer = Observer()
        try:
            self._observer.schedule(Handler(), str(self._folder), recursive=False)
            await asyncio.to_thread(self._observer.start)
        except OSError as error:
            log.warning("no file-system events for %s (%s): it is polled", self._folder, error.strerror or error)
            self._observer = None
            return False
        return await self._probe()

    def stop(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    async def _probe(self) -> bool:
        probe = self._folder / _PROBE
        with suppress(OSError):
            probe.touch()
            probe.unlink()
        if not await wait_for_event(self.nudge, _PROBE_WAIT_S):
            log.info("no file-system events arrive from %s: it is polled", self._folder)
            self.stop()
            return False
        return True
