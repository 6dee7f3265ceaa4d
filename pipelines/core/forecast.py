"""How many blocks the running sequences are going to take, and whether those of one more fit.

The problem: the exact answer looks at every running sequence, and a step may admit hundreds, or one after every end. So it is
asked in the order of what it costs. Whatever is expected, no sequence gets more than its `max_tokens`: a sum that is kept as
seats are taken and given up. No block is in use longer than to the last end: a sum over what each running one is expected to
get, taken once a step. Only where neither settles it is the peak worked out (see `peak_blocks`). Both sums are above any peak,
so the answer is that of the peak alone.
"""

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from pipelines.core.block_manager import BlockManager
from pipelines.core.sequence import Sequence
from pipelines.errors import InvariantError

_Holding = tuple[float, float]  # tokens still to come, one a step; blocks that nobody else uses


class Forecast:
    """What running sequences hold and are expected to get, as it stands while one step admits others."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._max_output_tokens = 0  # of all that have a seat, if each got its max_tokens
        self._is_known = False  # whether the next three are those of this step
        self._holdings: list[_Holding] = []  # of running sequences, sorted
        self._expected_tokens = 0.0  # sum of what they are expected to get
        self._newcomers: list[Sequence] = []  # running, but not among the holdings yet

    def note_seat(self, sequence: Sequence) -> None:
        """Count a sequence that got a seat."""
        self._max_output_tokens += sequence.request.max_tokens

    def note_release(self, sequence: Sequence) -> None:
        """Count a sequence that gave up its seat."""
        self._max_output_tokens -= sequence.request.max_tokens

    def note_admission(self, sequence: Sequence) -> None:
        """Note that a sequence runs from now on, with blocks that leave what others hold as it was."""
        self._newcomers.append(sequence)

    def start_anew(self) -> None:
        """Forget what was taken down of running sequences: they have moved on."""
        self._is_known = False

    def fits(self, candidate: Sequence, needed: int, running: Seq[Sequence], limit: float) -> bool:
        """Whether at most `limit` blocks will be in use at any time, if one starts that needs so many now."""
        num_used = self._blocks.num_used + needed
        block_size = self._blocks.block_size
        if num_used > limit:
            return False
        if num_used + (self._max_output_tokens + candidate.request.max_tokens) / block_size <= limit:
            return True
        holdings = self._holdings_of(running)
        remaining = self.remaining(candidate)
        if num_used + (self._expected_tokens + remaining) / block_size <= limit:
            return True
        return peak_blocks(num_used, [*holdings, (remaining, float(needed))], block_size) <= limit

    def fits_for(self, candidate: Sequence, needed: int, victim: Sequence, running: Seq[Sequence]) -> bool:
        """Whether one fits in another's place, or makes the shortage that is expected anyway no worse."""
        blocks = self._blocks
        holdings = self._holdings_of(running)
        others = [*holdings, (self.remaining(candidate), float(needed))]
        given_up = self._holding_of(victim)
        others.remove(given_up)
        peak = peak_blocks(blocks.num_used + needed, others, blocks.block_size) - given_up[1]
        return peak <= max(peak_blocks(blocks.num_used, list(holdings), blocks.block_size), blocks.num_blocks)

    def remaining(self, sequence: Sequence) -> float:
        """Tokens it is expected to get still."""
        num_tokens = len(sequence.token_ids) + sequence.num_pending
        num_output_tokens = num_tokens - sequence.num_prompt_tokens
        return sequence.lengths.remaining(num_output_tokens, sequence.max_num_tokens - num_tokens, sequence.quantile)

    def check_integrity(self, seated: Iterable[Sequence]) -> None:
        """Compare the sum that is kept with the sequences that have seats.

        Raises:
            InvariantError: they disagree.
        """
        if self._max_output_tokens != sum(sequence.request.max_tokens for sequence in seated):
            raise InvariantError("the most tokens that may come are counted wrong")

    def _holdings_of(self, running: Seq[Sequence]) -> list[_Holding]:
        if not self._is_known:
            self._is_known = True
            self._holdings = sorted(map(self._holding_of, running))
            self._expected_tokens = sum([remaining for remaining, _ in self._holdings])
        else:
            for sequence in self._newcomers:
                holding = self._holding_of(sequence)
                insort(self._holdings, holding)
                self._expected_tokens += holding[0]
        self._newcomers.clear()
        return self._holdings

    def _holding_of(self, sequence: Sequence) -> _Holding:
        return self.remaining(sequence), float(self._blocks.num_exclusive(sequence.block_table))


def peak_blocks(num_used: int, holdings: list[_Holding], block_size: int) -> float:
    """Return the most blocks that are going to be in use at once, if each sequence ends when it is expected to.

    Args:
        num_used: blocks in use now.
        holdings: of each sequence the tokens still to come, one a step, and the blocks that nobody else uses; sorted here.
        block_size: tokens.
    """
    holdings.sort()
    peak = held = float(num_used)
    num_left = len(holdings)
    now = 0.0
    for remaining, own in holdings:
        held += num_left * (remaining - now) / block_size
        peak = max(peak, held)
        held -= own + remaining / block_size
        num_left -= 1
        now = remaining
    return peak
