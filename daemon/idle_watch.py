"""For how long an engine has had nothing to do."""


class IdleWatch:
    """Counts the seconds since it last had something. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s

    def look(self, now_s: float, *, is_idle: bool) -> float:
        """Return for how many seconds it has had nothing; a look while it has begins anew."""
        if not is_idle:
            self._since_s = now_s
        return now_s - self._since_s
