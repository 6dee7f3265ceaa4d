"""Where each sequence is in its life, and the seat and the blocks that it holds there; drawn at the head of `scheduler`.

Invariants 1, 5 and 6 are the scheduler's. This keeps 1 and 6: what a step in flight holds is given up when its commit lets go.
"""

from bisect import insort
from operator import attrgetter

from pipelines.core.admission import Admission
from pipelines.core.batch import Row
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import FinishReason
from pipelines.core.sequence import UNRANKED, Sequence, SequenceStatus
from pipelines.core.step_copies import StepCopies
from pipelines.errors import InvariantError

_rank = attrgetter("rank")


class Roster:
    """Waiting, running and preempted sequences, and ended ones that a step still holds."""

    def __init__(self, max_num_seqs: int, blocks: BlockManager) -> None:
        self._blocks = blocks
        self.admission = Admission(blocks)
        self.copies = StepCopies()
        self.running: list[Sequence] = []  # by rank; the next three share them out, likewise
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.draining: list[Sequence] = []
        self.preempted: list[Sequence] = []  # still held by a step in flight
        self._ending: list[Sequence] = []  # finished, still held by a step in flight
        self._live: dict[int, list[Sequence]] = {}  # key -> its unfinished choices
        self._max_num_seqs = max_num_seqs
        self._free_seats = list(range(max_num_seqs - 1, -1, -1))
        self._num_closed_seats = 0  # of all of them, see `limit_seats`
        self._num_seated = 0  # ever
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without a seat."""
        return len(self.admission.waiting) + len(self.preempted)

    @property
    def num_free_seats(self) -> int:
        """Seats that may be taken now."""
        return max(0, len(self._free_seats) - self._num_closed_seats)

    def limit_seats(self, max_num_seqs: int) -> None:
        """See `Scheduler`."""
        if not 0 < max_num_seqs <= self._max_num_seqs:
            raise InvariantError(f"{max_num_seqs} sequences were asked for, {self._max_num_seqs} have seats")
        self._num_closed_seats = self._max_num_seqs - max_num_seqs

    @property
    def num_coming_blocks(self) -> int:
        """Blocks that come back by commits of what is in flight alone."""
        return sum([len(other.block_table) for other in (*self.preempted, *self._ending, *self.draining)])

    @property
    def is_empty(self) -> bool:
        """Whether no sequence needs anything more, those a step still holds included."""
        return not (self._live or self._ending)

    def choices(self, key: int) -> list[Sequence]:
        """The unfinished choices of a request."""
        return list(self._live.get(key, ()))

    def open(self, sequence: Sequence) -> None:
        """Take in a new sequence, which neither waits nor runs yet."""
        self._live.setdefault(sequence.request.key, []).append(sequence)
        self.admission.waiting.open(sequence)

    def unopen(self, sequence: Sequence) -> None:
        """Take back `open` of one that no step has held yet, whether it waits or runs by now."""
        waiting = self.admission.waiting
        match sequence.status:
            case SequenceStatus.RUNNING:
                self._leave_running(sequence)
                waiting.unopen(sequence)
                self._release(sequence)
            case SequenceStatus.WAITING:
                waiting.remove(sequence)
                waiting.unopen(sequence)
            case SequenceStatus.PREEMPTED:
                raise InvariantError("a choice was preempted in the step that started it")
            case SequenceStatus.FINISHED:
                return  # cancelled since
        self._close(sequence)

    def seat(self, sequence: Sequence, phase: list[Sequence]) -> None:
        """Give a seat to a sequence that has its blocks, and let it run."""
        sequence.seat = self._free_seats.pop()
        sequence.seat_is_staged = False
        sequence.num_staged_blocks = 0
        sequence.status = SequenceStatus.RUNNING
        if sequence.rank is UNRANKED:  # one that was preempted keeps it, else newer ones could preempt it for ever
            sequence.rank = (-sequence.request.priority, self._num_seated)
            self._num_seated += 1
        insort(self.running, sequence, key=_rank)
        insort(phase, sequence, key=_rank)

    def end_prefill(self, sequence: Sequence) -> None:
        """Note that all known tokens of a sequence are launched."""
        self.prefilling.remove(sequence)
        insort(self.draining if sequence.has_all_launched else self.decoding, sequence, key=_rank)

    def end_decoding(self, sequence: Sequence) -> None:
        """Note that all that a sequence may have is launched."""
        self.decoding.remove(sequence)
        insort(self.draining, sequence, key=_rank)

    def go_back(self, row: Row) -> None:
        """Have a sequence stand where it stood before its row of the newest step was scheduled."""
        sequence = row.sequence
        sequence.num_holds -= 1
        sequence.num_pending -= row.samples
        sequence.num_computed = row.start
        sequence.num_staged_blocks = row.first_new_block
        sequence.seat_is_staged = not row.opens_seat
        sequence.num_ready = 0  # the next step looks at it with care
        if sequence.status is SequenceStatus.RUNNING:
            self._leave_running(sequence)
            insort(self.running, sequence, key=_rank)
            insort(self.prefilling if sequence.num_to_compute > 1 else self.decoding, sequence, key=_rank)
        elif not sequence.num_holds:
            self.let_go(sequence)  # it was displaced by that step, or has ended since

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's seat and blocks, at once if no step in flight holds it."""
        self._leave_running(sequence)
        self.preempted.append(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.num_ready = 0
        self.num_preemptions += 1
        if not sequence.num_holds:
            self.let_go(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence now; what is in flight for it is dropped."""
        waiting = self.admission.waiting
        match sequence.status:
            case SequenceStatus.WAITING:
                waiting.remove(sequence)
            case SequenceStatus.RUNNING:
                self._leave_running(sequence)
            case SequenceStatus.PREEMPTED:
                self.preempted.remove(sequence)
            case SequenceStatus.FINISHED:
                raise InvariantError("a sequence finished twice")
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        waiting.close(sequence)
        self._close(sequence)
        if sequence.num_holds:
            self._ending.append(sequence)
        else:
            self._release(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """What was waiting for the last step that held a sequence: invariants 1 and 6."""
        match sequence.status:
            case SequenceStatus.FINISHED:
                if sequence in self._ending:
                    self._ending.remove(sequence)
                    self._release(sequence)
            case SequenceStatus.PREEMPTED:
                self.preempted.remove(sequence)
                self.admission.name_blocks(sequence, sequence.num_computed)  # invariant 8; all of them are committed
                self._release(sequence)
                sequence.num_computed = 0
                sequence.status = SequenceStatus.WAITING
                self.admission.resume(sequence)
            case SequenceStatus.RUNNING | SequenceStatus.WAITING:
                pass

    def check_integrity(self) -> None:
        """Prove that nothing is lost: seats, blocks, lists.

        Raises:
            InvariantError: something is.
        """
        seated = [*self.running, *self.preempted, *self._ending]
        self._blocks.check_integrity(sequence.block_table for sequence in seated)
        self.admission.check_integrity(seated)
        seats = [sequence.seat for sequence in seated if sequence.seat is not None]
        if sorted(seats + self._free_seats) != list(range(self._max_num_seqs)):
            raise InvariantError("a seat is lost or taken twice")
        if sum(map(len, self._live.values())) != self.num_waiting + len(self.running):
            raise InvariantError("a live sequence is in no list, or in two")
        if sorted([*self.prefilling, *self.decoding, *self.draining], key=_rank) != self.running:
            raise InvariantError("a running sequence is in none of the three lists, or in two")
        if any(not sequence.num_holds for sequence in (*self.preempted, *self._ending, *self.draining)):
            raise InvariantError("a sequence waits for a step that is not there")

    def _close(self, sequence: Sequence) -> None:
        choices = self._live[sequence.request.key]
        choices.remove(sequence)
        if not choices:
            del self._live[sequence.request.key]

    def _leave_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        phases = (self.decoding, self.prefilling, self.draining)
        next(phase for phase in phases if sequence in phase).remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Give up seat and blocks, if it has them."""
        self._blocks.release(sequence.block_table)
        self.copies.forget(sequence)
        if sequence.seat is not None:
            self._free_seats.append(sequence.seat)
            sequence.seat = None
            self.admission.release(sequence)
        else:
            self.admission.waiting.forget_if_idle(sequence)
