"""Which waiting sequence gets a seat next, and which running one makes way for it.

The problem: how long an answer gets is not known. Room for the longest possible ones would leave most of the cache empty; room
for the prompts alone would preempt half of what was begun. So a sequence is admitted while what is expected to be in use stays
below what there is at every later time (see `forecast`); preemption is the net for what comes out otherwise.

And what is admitted may hold its seat for thousands of steps. A file that has fewer seats than its share (the seats over the
files of its priority) then gets one from a file that has more, or from a lower priority: a running sequence is displaced. What
that costs, the tokens computed again, is bounded by a credit: `_LOSS` of all tokens computed.

Invariants:
 1. The next in turn is passed over by at most `_MAX_PASSES` others before it is admitted.
 2. A sequence is displaced only where that makes room for the one it is displaced for, and only from a file that keeps its share.
 3. Where nothing runs, whatever is next fits.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pipelines.core.block_manager import BlockManager
from pipelines.core.forecast import Forecast
from pipelines.core.prefix_cache import ComingPrefixes, extend_names
from pipelines.core.sequence import Sequence, SequenceStatus
from pipelines.core.waiting import WaitingQueue
from pipelines.errors import InvariantError

_MAX_PASSES = 16
_SPARE = 0.03  # of the blocks stay free of what is expected
_LOSS = 1 / 64  # of the tokens computed may be computed again because of displacements
# A step of fewer tokens takes as long: reading the weights takes as long as the arithmetic of about so many.
_MIN_STEP_TOKENS = 256
_FIRST_CREDIT = 8192.0  # tokens, also the most that is saved up
_REFUSED_STEPS = 8  # until a head that did not fit is looked at again without a reason


@dataclass(frozen=True, slots=True)
class _Refusal:
    """When the head did not fit, and how things stood."""

    head: Sequence
    num_used: int  # blocks
    num_waiting: int
    step: int


class Admission:
    """Waiting sequences, and what decides when they start."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._credit = _FIRST_CREDIT  # tokens that may be computed again
        self._num_passes = 0  # over the present head
        self._num_steps = 0
        self._refusal: _Refusal | None = None
        self._promised: Sequence | None = None  # another one was displaced for it
        self._coming = ComingPrefixes()
        self.waiting = WaitingQueue()
        self.forecast = Forecast(blocks)
        self.num_query_tokens = 0  # tokens of admitted sequences
        self.num_hit_tokens = 0  # those of them that were cached

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        if self._blocks.prefix_caching:
            extend_names(sequence.block_names, sequence.token_ids, self._blocks.block_size)
        self.waiting.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Let a preempted sequence wait again."""
        if self._blocks.prefix_caching:
            extend_names(sequence.block_names, sequence.token_ids, self._blocks.block_size)
        self.waiting.resume(sequence)

    def next(self, running: Seq[Sequence], num_free_seats: int) -> Sequence | None:
        """The sequence to seat now, if one fits; `seat` it before asking again."""
        if not num_free_seats:
            return None
        if (promised := self._take_promise()) is not None:
            return promised
        head = self.waiting.head(self._may_start)
        if head is None or self._was_refused(head):
            return None
        if (chosen := self._choose(head, running)) is None:
            self._refusal = _Refusal(head, self._blocks.num_used, len(self.waiting), self._num_steps)
        return chosen

    def _choose(self, head: Sequence, running: Seq[Sequence]) -> Sequence | None:
        """The next in turn if it fits, else one that does, of a file that is short of seats."""
        if self._fits(head, running):
            self._num_passes = 0
            return head
        if self._num_passes < _MAX_PASSES:  # invariant 1
            for other in self.waiting.heads(self._may_start):
                if other is not head and self._is_short(other, running) and self._fits(other, running):
                    self._num_passes += 1
                    return other
        return None

    def seat(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue and give it blocks for all tokens it has, those cached among them."""
        blocks = self._blocks
        self.waiting.take(sequence)
        self.note_seat(sequence)
        cached = self._cached_blocks(sequence)
        num_shared = blocks.num_shared
        sequence.block_table = blocks.adopt(cached)
        if blocks.num_shared > num_shared:
            self.forecast.start_anew()  # what one had for itself is shared now
        else:
            self.forecast.note_admission(sequence)
        sequence.num_named_blocks = len(cached)
        sequence.num_computed = len(cached) * blocks.block_size
        blocks.make_writable(sequence.block_table, sequence.num_computed, sequence.num_tokens)
        self._coming.announce(sequence.block_names[len(cached) :], sequence)
        self._count_hits(sequence)

    def note_seat(self, sequence: Sequence) -> None:
        """Count a seat that a sequence's file holds."""
        self.waiting.file_of(sequence).num_seats += 1
        self.forecast.note_seat(sequence)

    def release(self, sequence: Sequence) -> None:
        """Note that a sequence gives up seat and blocks."""
        self._coming.settle(sequence.block_names[sequence.num_named_blocks :], sequence)
        self.forecast.note_release(sequence)
        self.waiting.file_of(sequence).num_seats -= 1
        self.waiting.forget_if_idle(sequence)

    def name_blocks(self, sequence: Sequence, num_committed: int) -> None:
        """Name the blocks that committed steps have filled up to position `num_committed`."""
        num_full = num_committed // self._blocks.block_size
        first = sequence.num_named_blocks
        if num_full <= first or not self._blocks.prefix_caching:
            return
        extend_names(sequence.block_names, sequence.token_ids, self._blocks.block_size)
        for index in range(first, num_full):
            self._blocks.name(sequence.block_table[index], sequence.block_names[index])
        sequence.num_named_blocks = num_full
        self._coming.settle(sequence.block_names[first:num_full], sequence)

    def check_integrity(self, seated: Seq[Sequence]) -> None:
        """Prove that the files' seats and the announced names are those of the sequences that have seats.

        Raises:
            InvariantError: they are not.
        """
        self.waiting.check_integrity(seated)
        self.forecast.check_integrity(seated)
        owners = {id(sequence) for sequence in seated}
        if not self._coming.owner_ids <= owners:
            raise InvariantError("a block is announced by a sequence without a seat")

    def note_step(self, num_tokens: int) -> None:
        """Count a step and its tokens towards the credit."""
        self._num_steps += 1
        self._credit = min(_FIRST_CREDIT, self._credit + max(num_tokens, _MIN_STEP_TOKENS) * _LOSS)

    def find_displaced(self, running: Seq[Sequence]) -> Sequence | None:
        """The running sequence to preempt for one that nothing else would let in; that is the `next` one then."""
        priority = self.waiting.top_priority
        if self._credit <= 0 or priority is None or not running or self._promised is not None:
            return None
        if running[-1].request.priority >= priority and not self._has_uneven_files(priority, running):
            return None
        for candidate in self.waiting.heads(self._may_start):
            if self._is_short(candidate, running):
                victim = self._victim(priority, running)
                if victim is None or not self._fits_for(candidate, victim, running):
                    return None  # invariant 2
                self._promised = candidate
                victim.is_displaced = True
                self.forecast.start_anew()
                self._credit -= victim.num_computed
                return victim
        return None

    def _take_promise(self) -> Sequence | None:
        """The sequence that another one was displaced for, once there are blocks for it."""
        promised = self._promised
        if promised is None or promised.status is not SequenceStatus.WAITING:
            self._promised = None
            return None
        if self._num_needed(promised) > self._blocks.num_free:
            return None
        self._promised = None
        return promised

    def _has_uneven_files(self, priority: int, running: Seq[Sequence]) -> bool:
        """Whether a file has more than its share: the cheap look that most steps end with."""
        num_files = self.waiting.num_files(priority)
        return num_files > 1 and self.waiting.max_num_seats(priority) > self._share(priority, running)

    def _victim(self, priority: int, running: Seq[Sequence]) -> Sequence | None:
        """Of the lowest priority the sequence nearest to its end, whose file's end that delays least, if one may be displaced."""
        victims = [
            sequence
            for sequence in running
            if not sequence.has_all_launched
            and (
                sequence.request.priority < priority
                or (sequence.request.priority == priority and self._has_more(sequence, running))
            )
        ]
        return min(victims, key=lambda victim: (victim.request.priority, self.forecast.remaining(victim)), default=None)

    def _share(self, priority: int, running: Seq[Sequence]) -> int:
        """Seats a file of that priority may count on: of those that can be filled, which the blocks may limit."""
        return max(1, len(running) // self.waiting.num_files(priority))

    def _is_short(self, sequence: Sequence, running: Seq[Sequence]) -> bool:
        return self.waiting.file_of(sequence).num_seats < self._share(sequence.request.priority, running)

    def _has_more(self, sequence: Sequence, running: Seq[Sequence]) -> bool:
        return self.waiting.file_of(sequence).num_seats > self._share(sequence.request.priority, running)

    def _was_refused(self, head: Sequence) -> bool:
        """Whether the look at this head would end as the last one did: nothing has come and nothing become free since."""
        last = self._refusal
        return (
            last is not None
            and last.head is head
            and last.num_used <= self._blocks.num_used
            and last.num_waiting >= len(self.waiting)
            and self._num_steps < last.step + _REFUSED_STEPS
        )

    def _may_start(self, sequence: Sequence) -> bool:
        """Whether nobody is just computing what the sequence begins with."""
        if not self._coming:
            return True
        names = sequence.block_names[: (sequence.num_tokens - 1) // self._blocks.block_size]
        num_cached = len(self._blocks.find_prefix(names))
        return num_cached == len(names) or names[num_cached] not in self._coming

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """The cached blocks it begins with; at least one token is left to compute, for its scores."""
        return self._blocks.find_prefix(sequence.block_names[: (sequence.num_tokens - 1) // self._blocks.block_size])

    def _num_needed(self, sequence: Sequence) -> int:
        """Free blocks that seating it takes."""
        cached = self._cached_blocks(sequence)
        num_new = self._blocks.num_blocks_for(sequence.num_tokens) - len(cached)
        return num_new + self._blocks.num_idle_among(cached)

    def _fits(self, sequence: Sequence, running: Seq[Sequence]) -> bool:
        """Whether there are blocks for what it has, and will be for what it and the others are expected to get."""
        needed = self._num_needed(sequence)
        if needed > self._blocks.num_free:
            return False
        if not running:
            return True  # invariant 3
        if sequence.is_displaced:  # it would be running still: what is expected was no reason to stop it
            return needed + len(running) <= self._blocks.num_free
        was_begun = sequence.num_cached_tokens is not None
        limit = self._blocks.num_blocks * (1.0 if was_begun else 1.0 - _SPARE)
        return self.forecast.fits(sequence, needed, running, limit)

    def _fits_for(self, candidate: Sequence, victim: Sequence, running: Seq[Sequence]) -> bool:
        """Whether one fits in another's place."""
        needed = self._num_needed(candidate)
        if needed > self._blocks.num_free + self._blocks.num_exclusive(victim.block_table):
            return False
        return self.forecast.fits_for(candidate, needed, victim, running)

    def _count_hits(self, sequence: Sequence) -> None:
        num_hits = sequence.num_computed
        self.num_query_tokens += sequence.num_tokens
        self.num_hit_tokens += num_hits
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = num_hits
        if sequence.is_displaced:
            sequence.is_displaced = False
            self._credit = min(_FIRST_CREDIT, self._credit + num_hits)  # not computed again after all
