"""The daemon's book of device time: every second of the wall clock under busy, unproven or one cause of idleness.

The engine reports what it knows; the daemon fills what no engine can know: before it is up, while it is down, while the daemon
drains. So the sum is the wall time since the daemon's start, whatever dies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.core.request import DeviceTime, IdleCause


@dataclass(slots=True)
class DeviceTotals:
    """Seconds so far."""

    busy_s: float = 0.0
    unproven_s: float = 0.0
    idle_s: dict[IdleCause, float] = field(default_factory=lambda: dict.fromkeys(IdleCause, 0.0))
    num_tokens: int = 0  # computed meanwhile, of prompts and answers

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.busy_s + self.unproven_s + sum(self.idle_s.values())

    def minus(self, earlier: "DeviceTotals") -> "DeviceTotals":
        """What was added since `earlier`."""
        idle = {cause: seconds - earlier.idle_s[cause] for cause, seconds in self.idle_s.items()}
        busy_s, unproven_s = self.busy_s - earlier.busy_s, self.unproven_s - earlier.unproven_s
        return DeviceTotals(busy_s, unproven_s, idle, self.num_tokens - earlier.num_tokens)

    def copy(self) -> "DeviceTotals":
        """A snapshot."""
        return DeviceTotals(self.busy_s, self.unproven_s, dict(self.idle_s), self.num_tokens)


class DeviceAccount:
    """Accounts for one engine's device from its start on. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, now_s: float, on_added: Callable[[DeviceTotals], None]) -> None:
        self.totals = DeviceTotals()
        self._on_added = on_added  # told of all that is added, in the order of time
        self._mark_s = now_s
        self._outage = IdleCause.STARTUP  # what time without an engine counts as
        self._is_up = False

    def note_up(self) -> None:
        """An engine is ready: its reports account for the time from now on."""
        self._is_up = True

    def note_outage(self, now_s: float, cause: IdleCause) -> None:
        """From now on time without an engine counts as `cause`."""
        self.advance(now_s)
        self._outage = cause

    def note_down(self, now_s: float, cause: IdleCause = IdleCause.DOWN) -> None:
        """The engine is gone: what it did not report any more is lost to `cause`."""
        self._outage = cause
        self._is_up = False
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """While no engine is up, account up to now."""
        if not self._is_up:
            self._fill(now_s)

    def add_report(self, time: DeviceTime, empty_cause: IdleCause, num_tokens: int = 0) -> None:
        """Add an engine's report; `empty_cause` is why it held no request when it held none."""
        self.totals.num_tokens += num_tokens
        self._fill(time.start_s)
        # An engine's own clock starts a little before the daemon hears of it: that while is accounted for, and it was empty.
        overlap_s = min(self._mark_s - time.start_s, time.empty_s)
        self._mark_s = max(self._mark_s, time.end_s)
        added = DeviceTotals(time.busy_s, time.unproven_s)
        added.idle_s[empty_cause] += time.empty_s - overlap_s
        added.idle_s[IdleCause.HOST] += time.host_s
        added.idle_s[IdleCause.H2D] += time.h2d_s
        self._add(added)

    def _fill(self, now_s: float) -> None:
        if now_s > self._mark_s:
            added = DeviceTotals()
            added.idle_s[self._outage] = now_s - self._mark_s
            self._mark_s = now_s
            self._add(added)

    def _add(self, added: DeviceTotals) -> None:
        self.totals.busy_s += added.busy_s
        self.totals.unproven_s += added.unproven_s
        for cause, seconds in added.idle_s.items():
            self.totals.idle_s[cause] += seconds
        self._on_added(added)
