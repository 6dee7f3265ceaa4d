"""The last minutes of a device: the busy ratio of the last one, and a band of slices that a page can draw."""

from collections import deque
from dataclasses import dataclass

from daemon.device_account import DeviceTotals
from pipelines.core.request import IdleCause

RATIO_SPAN_S = 60.0
SLICE_S = 5.0
BAND_S = 600.0
_SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class BandSlice:
    """Where the device's time went in one slice; the shares of busy, unproven and all causes add up to 1."""

    busy: float
    unproven: float
    idle: dict[IdleCause, float]  # causes without a share are left out


class DeviceHistory:
    """Looks at one engine's totals again and again. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, DeviceTotals]] = deque()
        self._slices: deque[BandSlice] = deque(maxlen=round(BAND_S / SLICE_S))
        self._slice_start: tuple[float, DeviceTotals] | None = None

    def note(self, now_s: float, totals: DeviceTotals) -> None:
        """Look at the totals; as often as wanted."""
        if self._slice_start is None:
            self._slice_start = now_s, totals.copy()
        if self._samples and now_s - self._samples[-1][0] < _SAMPLE_S:
            return
        self._samples.append((now_s, totals.copy()))
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - RATIO_SPAN_S:
            self._samples.popleft()
        started_s, before = self._slice_start
        if now_s - started_s >= SLICE_S and (added := totals.minus(before)).wall_s > 0:
            self._slices.append(_shares(added))
            self._slice_start = now_s, totals.copy()

    @property
    def busy_ratio(self) -> float:
        """Share of the last minute in which the device was proven busy; 0 before anything is accounted for."""
        if not self._samples:
            return 0.0
        added = self._samples[-1][1].minus(self._samples[0][1])
        return added.busy_s / added.wall_s if added.wall_s > 0 else 0.0

    @property
    def band(self) -> tuple[BandSlice, ...]:
        """The slices of the last ten minutes, the oldest first; one that a long step holds up is longer than the others."""
        return tuple(self._slices)


def _shares(totals: DeviceTotals) -> BandSlice:
    wall_s = totals.wall_s
    idle = {cause: round(seconds / wall_s, 4) for cause, seconds in totals.idle_s.items() if seconds > 0}
    return BandSlice(round(totals.busy_s / wall_s, 4), round(totals.unproven_s / wall_s, 4), idle)
