"""Waiting for an event no longer than so long.

Not `asyncio.wait_for`: before Python 3.12 it can swallow a cancellation that comes as the event does.
"""

import asyncio


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set, at most `timeout_s`; return whether it is."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
