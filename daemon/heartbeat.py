"""Whether an engine gets on with what it has to do: the last instant at which something was different from before.

    LOAD --> CAPTURE --> IDLE <--> STEP
      ^---- the process died ----'

What counts as getting on depends on the phase: a further piece loaded, a further graph captured, a step launched or an answer
given; an engine that has nothing to do gets on by saying so.
"""

from collections.abc import Hashable
from enum import StrEnum


class Phase(StrEnum):
    """What an engine is at."""

    LOAD = "load"
    CAPTURE = "capture"
    IDLE = "idle"  # it has no request
    STEP = "step"


class Heartbeat:
    """Of one engine. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, now_s: float) -> None:
        self.phase = Phase.LOAD
        self._mark: Hashable = None
        self._beat_s = now_s

    def beat(self, now_s: float, phase: Phase) -> None:
        """Note that it got on."""
        self.phase, self._mark, self._beat_s = phase, None, now_s

    def look(self, now_s: float, phase: Phase, mark: Hashable) -> None:
        """Note where it is in a phase; it got on if that is somewhere else than at the last look."""
        if (phase, mark) != (self.phase, self._mark):
            self.beat(now_s, phase)
            self._mark = mark

    def age_s(self, now_s: float) -> float:
        """Seconds since it got on."""
        return max(0.0, now_s - self._beat_s)
