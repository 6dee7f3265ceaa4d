"""Whether an engine gets on with what it has to do."""

_MAX_LOOK_S = 1.0


class StallWatch:
    """Counts the seconds for which an engine had work and nothing came of it. Times are CLOCK_MONOTONIC seconds.

    Between two looks at most a second counts: when the daemon itself stood still, what the engine did meanwhile is still to be
    read, and nobody is to blame.
    """

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._age_s = 0.0

    def note_progress(self) -> None:
        """It got on: a step, an answer, a further piece loaded."""
        self._age_s = 0.0

    def look(self, now_s: float, *, has_work: bool) -> float:
        """Return for how many seconds it has had work and not got on."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        self._age_s = self._age_s + min(passed_s, _MAX_LOOK_S) if has_work else 0.0
        return self._age_s
