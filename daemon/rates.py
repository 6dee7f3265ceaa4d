"""How fast a count grows, over the last while."""

from collections import deque


class RateMeter:
    """The rate of one count. Times are CLOCK_MONOTONIC seconds and never go back."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s  # what the rate is the mean of
        # (time, count); the first one is at least a span old, if any is.
        self._samples: deque[tuple[float, float]] = deque()

    def note(self, now_s: float, count: float) -> None:
        """Say what the count is now."""
        self._samples.append((now_s, count))
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - self._span_s:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """The rate; 0 before there are two samples."""
        if not self._samples:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
