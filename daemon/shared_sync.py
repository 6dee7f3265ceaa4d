"""The disk for many files at once: those that sync one folder at one time share the sync.

   A: sync_dir --|===== sync 1 =====|
   B:      sync_dir ....waits.......|===== sync 2 =====|
   C:              sync_dir ........|..... shared .....|

Invariant: a sync that begins after a call covers that call, and nobody returns before such a one has ended.
"""

import os
import threading
from collections import defaultdict
from pathlib import Path

from daemon.durable import DiskStorage


class _Group:
    """Callers who share one sync, which has not begun."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.error: OSError | None = None


class SharedDiskStorage(DiskStorage):
    """The real file system; `sync_dir` may be called from many threads and costs about one sync for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for moments
        self._next: dict[Path, _Group] = {}
        self._running: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)  # held for a sync

    def sync_dir(self, path: Path) -> None:
        """As `Storage`."""
        with self._lock:
            group = self._next.get(path)
            is_first = group is None
            if group is None:
                group = self._next[path] = _Group()
            running = self._running[path]
        if is_first:
            self._sync_for(group, path, running)
        else:
            group.is_over.wait()
        if group.error is not None:
            raise OSError(group.error.errno, os.strerror(group.error.errno or 0))

    def _sync_for(self, group: _Group, path: Path, running: threading.Lock) -> None:
        with running:
            with self._lock:
                del self._next[path]  # whoever calls from now on needs the one after
            try:
                super().sync_dir(path)
            except OSError as error:
                group.error = error
            finally:
                group.is_over.set()
