"""How long the answers of a file are going to be, learned from those that it has had so far.

Two things are known of a file. Stops seen over tokens seen: the chance that a token ends its answer. It counts what runs as
well as what has ended (the first to end are the short ones, their mean would be too low), and it is there from the first step.
And the lengths at which the last answers stopped: what became of those that had got as far as this one. An answer that only
`max_tokens` ended counts as one that never stops, so that a file of such answers expects each one's own `max_tokens`.

Sequences that differ in nothing would all be foretold the same length, and so all be in the cache to the same end; in truth
they end one after the other. So each is foretold another quantile of what may become of it.
"""

from bisect import bisect_right, insort
from collections import deque
from math import exp, inf, log

_FIRST_GUESS = 512.0  # tokens of an answer, before any is known
_MAX_ENDS = 256  # remembered
_MIN_ENDS = 32  # before they are believed: the first to end are the short ones
_MIN_LONGER = 8  # of them, else the chance of a stop says more


class OutputLengths:
    """Tokens and ends of one file."""

    def __init__(self, first_guess: float = _FIRST_GUESS) -> None:
        self._num_tokens = first_guess  # one stop in so many tokens, as if it had been seen
        self._num_stops = 1
        self._latest: deque[float] = deque()  # lengths of ended answers; inf: it would have gone on
        self._sorted: list[float] = []  # the same

    @property
    def mean(self) -> float:
        """Tokens of an answer that no `max_tokens` ends."""
        return self._num_tokens / self._num_stops

    def add_tokens(self, count: int) -> None:
        """Count tokens as they are committed."""
        self._num_tokens += count

    def add_end(self, num_tokens: int, *, is_stop: bool) -> None:
        """Count an answer that has ended, by itself or by `max_tokens`."""
        length = float(num_tokens) if is_stop else inf
        self._num_stops += is_stop
        self._latest.append(length)
        insort(self._sorted, length)
        if len(self._latest) > _MAX_ENDS:
            del self._sorted[bisect_right(self._sorted, self._latest.popleft()) - 1]

    def expected(self, max_tokens: int) -> float:
        """Tokens of an answer of which at most `max_tokens` may come, on average."""
        return self.mean * (1.0 - exp(-max_tokens / self.mean))

    def remaining(self, num_tokens: int, max_remaining: int, quantile: float) -> float:
        """Tokens still to come of an answer that has `num_tokens`: exceeded with a probability of 1 - `quantile`, in [0, 1)."""
        ends = self._sorted
        num_shorter = bisect_right(ends, num_tokens)
        num_longer = len(ends) - num_shorter
        if len(ends) < _MIN_ENDS:
            expected = self.mean
        elif num_longer < _MIN_LONGER:
            expected = -self.mean * log(1.0 - quantile)
        else:
            expected = ends[num_shorter + int(quantile * num_longer)] - num_tokens
        return expected if expected < max_remaining else float(max_remaining)
