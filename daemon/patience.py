"""Doing something with the disk again and again until it works."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from daemon.errors import StorageError
from daemon.folders import Folders
from daemon.pause import Troubles

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 2.0  # between two tries at a disk that takes no writes


async def with_patience(action: Callable[[], T], who: str, folders: Folders, troubles: Troubles) -> T:
    """Do `action` in a thread, again and again until it raises no storage error; return what it returns.

    The first error is logged, and meanwhile it is noted in `troubles`. Nothing is done while the pipeline's folders are not
    those that were found at the start. A cancellation waits for the thread, so that nothing goes on after its caller has ended.
    """
    is_said = False
    try:
        while True:
            try:
                return await _to_its_end(partial(_in_place, action, folders))
            except StorageError as error:
                if not is_said:
                    log.error("%s waits: %s", who, error)  # noqa: TRY400  one line
                is_said = True
                troubles.note(who, error)
                await asyncio.sleep(RETRY_S)
    finally:
        troubles.clear(who)


def _in_place(action: Callable[[], T], folders: Folders) -> T:
    folders.check()
    return action()


async def _to_its_end(action: Callable[[], T]) -> T:
    future = asyncio.get_running_loop().run_in_executor(None, action)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
