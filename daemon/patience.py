"""Doing something with the disk again and again until it works."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from daemon.errors import StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 2.0  # between two tries at a disk that takes no writes


async def with_patience(action: Callable[[], T], who: str) -> T:
    """Do `action` in a thread until it raises no storage error, which is said once; `who` is said to wait meanwhile."""
    is_said = False
    while True:
        try:
            return await asyncio.to_thread(action)
        except StorageError as error:
            if not is_said:
                log.error("%s waits: %s", who, error)  # noqa: TRY400  one line
            is_said = True
            await asyncio.sleep(RETRY_S)
