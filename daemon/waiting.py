"""Waiting for an event no longer than so long, and for the first of several.

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


async def wait_for_any(*events: asyncio.Event) -> None:
    """Wait until at least one of the events is set."""
    if any(event.is_set() for event in events):
        return
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
