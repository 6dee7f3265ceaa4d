"""Waiting for what another process does."""

import time


def wait_until(condition, what, *, deadline_s, log, every_s=0.01, not_yet=()):
    """Wait until `condition()` is true, and return what it gives; errors of `not_yet` count as false.

    Where it does not come true, the test fails with the end of the file `log`.
    """
    ends_s = time.monotonic() + deadline_s
    while time.monotonic() < ends_s:
        try:
            if value := condition():
                return value
        except not_yet:
            pass
        time.sleep(every_s)
    said = log.read_text(errors="replace")[-20_000:]
    raise AssertionError(f"{what}: not within {deadline_s} s; {log.name} says:\n{said}")
