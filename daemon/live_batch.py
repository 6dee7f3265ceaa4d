"""One file's Batch object as people see it while the file runs: `STEM.batch.json`, written anew now and then."""

import time

from daemon.batch_object import BatchInfo, BatchObject
from daemon.durable import Storage
from daemon.outbox import FileNames, write_batch_object

SHOW_S = 1.0  # between two versions


class LiveBatch:
    """Holds the present Batch object and shows it. Changed in the event loop's thread, written in others."""

    def __init__(self, names: FileNames, info: BatchInfo, storage: Storage) -> None:
        self.object = BatchObject(info, time.time)
        self._names = names
        self._storage = storage
        self._shown_s = 0.0  # CLOCK_MONOTONIC

    def start_over(self, info: BatchInfo) -> None:
        """Begin again at `validating`, with other facts about the file, such as the journal's."""
        self.object = BatchObject(info, time.time)

    def show_soon(self) -> None:
        """Have the next call of `show_when_due` write it."""
        self._shown_s = 0.0

    def show_when_due(self) -> None:
        """Write it if the last time is long enough ago.

        Raises:
            StorageError: the old one stands.
        """
        if time.monotonic() - self._shown_s > SHOW_S:
            self.show()

    def show(self) -> None:
        """Write it now.

        Raises:
            StorageError: the old one stands.
        """
        self._shown_s = time.monotonic()
        write_batch_object(self._names, self.object.as_dict(), self._storage)
