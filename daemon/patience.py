"""Doing something with the disk again and again until it works."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from daemon.errors import StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 2.0  # between two tries at a disk that takes no writes


class Patience:
    """Waits for the disk on behalf of `who`. Used from the event loop's thread."""

    def __init__(self, who: str) -> None:
        self._who = who
        self.num_waiting = 0  # actions that failed and are tried again

    async def do(self, action: Callable[[], T]) -> T:
        """Do `action` in a thread until it raises no storage error, which is said once; `who` is said to wait meanwhile."""
        is_said = False
        try:
            while True:
                try:
                    return await asyncio.to_thread(action)
                except StorageError as error:
                    if not is_said:
                        log.error("%s waits: %s", self._who, error)  # noqa: TRY400  one line
                        self.num_waiting += 1
                    is_said = True
                    await asyncio.sleep(RETRY_S)
        finally:
            self.num_waiting -= is_said
