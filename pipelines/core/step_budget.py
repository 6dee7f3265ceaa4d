"""How many tokens a step may have: fewer for a while after one did not fit into the device's memory.

    full --does not fit--> half of that step --does not fit--> half again ... never below one block
      ^                                                            |
      `---- twice as many ---- twice as many <--went well long enough

What took the memory may be gone the next minute or stay for days. So each failure doubles the number of steps that have to go
well before a larger one is tried, and the full budget, held as long, makes the engine patient no more.
"""

_FIRST_PATIENCE = 64  # steps
_MOST_PATIENCE = 8192  # steps


class StepBudget:
    """Counts steps that went well and those that did not."""

    def __init__(self, max_tokens: int, min_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._min_tokens = min(min_tokens, max_tokens)
        self._patience = _FIRST_PATIENCE
        self._num_good = 0  # steps in a row since the budget changed
        self.num_tokens = max_tokens  # that the next step may have

    @property
    def is_full(self) -> bool:
        """Whether a step may be as large as configured."""
        return self.num_tokens == self._max_tokens

    def shrink(self, num_tokens: int) -> bool:
        """Note that a step of `num_tokens` did not fit; return whether a smaller one can be tried."""
        if num_tokens <= self._min_tokens:
            return False
        self.num_tokens = max(self._min_tokens, num_tokens // 2)
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._num_good = 0
        return True

    def note_good_step(self) -> None:
        """Note that a step went well."""
        if self.is_full and self._patience == _FIRST_PATIENCE:
            return
        self._num_good += 1
        if self._num_good < self._patience:
            return
        self._num_good = 0
        if self.is_full:
            self._patience = _FIRST_PATIENCE
        else:
            self.num_tokens = min(2 * self.num_tokens, self._max_tokens)
