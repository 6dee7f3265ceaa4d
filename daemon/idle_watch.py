"""Whether an engine is needed: one that has had nothing to do for long enough is not, until something is asked of it."""

import asyncio


class IdleWatch:
    """Counts the seconds since it last had something. Times are CLOCK_MONOTONIC seconds.

    `unload_s` of None needs it always.
    """

    def __init__(self, now_s: float, unload_s: float | None) -> None:
        self.unload_s = unload_s
        self.is_needed = asyncio.Event()  # its processes are to be there
        if unload_s is None:
            self.is_needed.set()
        self._since_s = now_s

    def wake(self, now_s: float) -> bool:
        """Something is asked of it; return whether it was not needed before."""
        self._since_s = now_s
        was_needed = self.is_needed.is_set()
        self.is_needed.set()
        return not was_needed

    def look(self, now_s: float, *, is_idle: bool) -> bool:
        """Return whether it has become idle for so long that it is needed no more; a look while it has something begins anew."""
        if not is_idle:
            self._since_s = now_s
        if self.unload_s is None or not is_idle or now_s - self._since_s < self.unload_s:
            return False
        self.is_needed.clear()
        return True
