"""Decides which sequences and how many of their tokens make up each step; plain Python, no device in it.

The problem: steps are scheduled before the tokens of the previous one are known. So a sequence counts the tokens it has
launched (`num_pending`) beside those it knows, and a row whose input is still in flight carries over (see `Row.carries`).

    WAITING --admit--> RUNNING --end--> FINISHED --unheld--> gone
       ^                  |
       `--unheld-- PREEMPTED

Invariants, cited by number below:
 1. Seat and blocks of a sequence are given up once, when no step in flight holds it: what a step writes stays its own.
 2. A sequence that ends while a later step holds it gets no further token: the later one is dropped.
 3. A decode goes before a prefill chunk; a prefill never takes the room of a decode.
 4. A sequence is admitted only with blocks for all tokens it has, so a prefill never runs out in the middle.
 5. Blocks run out only for decodes. Then the lowest in rank is preempted; its blocks count as coming, so one shortage
    preempts no more than it must. The highest in rank is never preempted by another, so there is always progress.
 6. A preempted sequence goes back to waiting only once its token in flight has been committed.
"""

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from pipelines.config import BatchConfig
from pipelines.core.batch import Batch, Row
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import FinishReason, TokenRequest
from pipelines.core.sequence import Sequence, SequenceStatus, TokenMask
from pipelines.core.waiting import WaitingQueue
from pipelines.errors import InvariantError


class Scheduler:
    """Waiting, running and preempted sequences, and the blocks they use."""

    def __init__(self, config: BatchConfig, blocks: BlockManager) -> None:
        self._config = config
        self._blocks = blocks
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # by rank: priority, then order of admission
        self._preempted: list[Sequence] = []  # still held by a step in flight
        self._ending: list[Sequence] = []  # finished, still held by a step in flight
        self._unforked: dict[Sequence, int] = {}  # choice 0 -> how many choices share its prompt once that is launched
        self._live: dict[int, list[Sequence]] = {}  # key -> its unfinished choices
        self._free_seats = list(range(config.max_num_seqs - 1, -1, -1))
        self._num_steps = 0
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without a seat."""
        return len(self._waiting) + len(self._preempted)

    @property
    def num_running(self) -> int:
        """Sequences with a seat that can still get tokens."""
        return len(self._running)

    @property
    def num_used_blocks(self) -> int:
        """Blocks in use."""
        return self._blocks.num_used

    @property
    def is_empty(self) -> bool:
        """Whether no sequence needs anything more, those a step still holds included."""
        return not (self._live or self._ending)

    def add(self, request: TokenRequest, mask: TokenMask | None = None) -> None:
        """Take a request; its choices but the first start where the prompt is computed, see `_fork`."""
        sequence = Sequence(request, choice=0, token_ids=list(request.prompt_token_ids), mask=mask)
        self._live[request.key] = [sequence]
        if request.n > 1:
            self._unforked[sequence] = request.n
        self._waiting.add(sequence)

    def schedule(self) -> Batch | None:
        """Return the next step, or None when nothing can run before a step in flight is committed."""
        rows: list[Row] = []
        copies: list[tuple[int, int]] = []
        budget = self._config.max_num_batched_tokens
        budget -= self._schedule_decodes(budget, rows, copies)
        budget -= self._schedule_prefills(self._running, budget, rows, copies)
        self._admit(budget, rows, copies)
        if not rows:
            return None
        for row in rows:
            if row.sequence in self._unforked and row.context_len >= row.sequence.num_prompt_tokens:
                self._fork(row.sequence)
        batch = Batch(self._num_steps, tuple(rows), tuple(copies))
        self._num_steps += 1
        return batch

    def commit(self, batch: Batch, tokens: Iterable[int]) -> list[tuple[Sequence, int]]:
        """Take the tokens of a step's sampling rows in order.

        Returns:
            (sequence, token) of each token that counts; a sequence that ended by it has its finish reason set.
        """
        committed = []
        sampled = iter(tokens)
        for row in batch.rows:
            sequence = row.sequence
            sequence.num_holds -= 1
            if row.samples:
                token = next(sampled)
                sequence.num_pending -= 1
                if sequence.status is not SequenceStatus.FINISHED:  # invariant 2
                    sequence.token_ids.append(token)
                    self._end_by_token(sequence, token)
                    committed.append((sequence, token))
            if not sequence.num_holds:
                self._let_go(sequence)
        return committed

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence now; what is in flight for it is dropped."""
        match sequence.status:
            case SequenceStatus.WAITING:
                self._waiting.remove(sequence)
            case SequenceStatus.RUNNING:
                self._running.remove(sequence)
            case SequenceStatus.PREEMPTED:
                self._preempted.remove(sequence)
            case SequenceStatus.FINISHED:
                raise InvariantError("a sequence finished twice")
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        live = self._live[sequence.request.key]
        live.remove(sequence)
        if not live:
            del self._live[sequence.request.key]
        if sequence.num_holds:
            self._ending.append(sequence)
        else:
            self._release(sequence)

    def find(self, key: int, choice: int) -> Sequence | None:
        """The unfinished choice of a request, if there is one."""
        return next((sequence for sequence in self._live.get(key, ()) if sequence.choice == choice), None)

    def cancel(self, key: int) -> None:
        """End all choices of a request; one that is not here is none."""
        for sequence in list(self._live.get(key, ())):
            self._unforked.pop(sequence, None)
            self.finish(sequence, FinishReason.CANCELLED)

    def check_integrity(self) -> None:
        """Prove that nothing is lost: seats, blocks, lists.

        Raises:
            InvariantError: something is.
        """
        seated = [*self._running, *self._preempted, *self._ending]
        self._blocks.check_integrity(sequence.block_table for sequence in seated)
        seats = [sequence.seat for sequence in seated if sequence.seat is not None]
        if sorted(seats + self._free_seats) != list(range(self._config.max_num_seqs)):
            raise InvariantError("a seat is lost or taken twice")
        if sum(map(len, self._live.values())) != len(self._waiting) + len(self._running) + len(self._preempted):
            raise InvariantError("a live sequence is in no list, or in two")
        if any(not sequence.num_holds for sequence in (*self._preempted, *self._ending)):
            raise InvariantError("a sequence waits for a step that is not there")

    def _schedule_decodes(self, budget: int, rows: list[Row], copies: list[tuple[int, int]]) -> int:
        """Add a row for each running sequence that needs one token computed; return the tokens spent."""
        decodes = [sequence for sequence in self._running if _is_decode(sequence)]
        scheduled: set[Sequence] = set()
        coming = self._num_coming_blocks()
        for sequence in decodes:
            if len(scheduled) == budget:
                break
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted for one before it
            position = sequence.num_computed
            missing = self._blocks.num_missing(sequence.block_table, position, position + 1)
            while missing > self._blocks.num_free + coming and sequence.status is SequenceStatus.RUNNING:
                coming += self._preempt_lowest(scheduled)  # invariant 5
            if sequence.status is SequenceStatus.RUNNING and missing <= self._blocks.num_free:
                rows.append(self._launch(sequence, 1, copies))
                scheduled.add(sequence)
        return len(scheduled)

    def _schedule_prefills(
        self, sequences: Seq[Sequence], budget: int, rows: list[Row], copies: list[tuple[int, int]]
    ) -> int:
        """Add a chunk for each sequence whose known tokens are not all computed; return the tokens spent."""
        spent = 0
        for sequence in sequences:
            if spent == budget:
                break
            if _is_prefill(sequence):
                num_tokens = min(sequence.num_to_compute, budget - spent)
                rows.append(self._launch(sequence, num_tokens, copies))
                spent += num_tokens
        return spent

    def _admit(self, budget: int, rows: list[Row], copies: list[tuple[int, int]]) -> None:
        """Give seats and blocks to waiting sequences while there is room for their first chunk."""
        while budget > 0 and self._free_seats and not self._preempted and (head := self._waiting.head()):
            needed = self._blocks.num_blocks_for(head.num_tokens)
            headroom = len(self._running)  # a block each, so that the next steps do not preempt what was just admitted
            if needed + headroom > self._blocks.num_free:
                return
            sequence = self._waiting.pop()
            self._blocks.make_writable(sequence.block_table, 0, sequence.num_tokens)  # invariant 4
            self._seat(sequence)
            num_tokens = min(sequence.num_to_compute, budget)
            rows.append(self._launch(sequence, num_tokens, copies))
            budget -= num_tokens

    def _launch(self, sequence: Sequence, num_tokens: int, copies: list[tuple[int, int]]) -> Row:
        """Note that the step takes the next `num_tokens` of a sequence, and freeze what it needs of it."""
        start = sequence.num_computed
        end = start + num_tokens
        copied = self._blocks.make_writable(sequence.block_table, start, end)
        copies += copied
        first_new = (
            min(sequence.num_staged_blocks, start // self._blocks.block_size) if copied else sequence.num_staged_blocks
        )
        carries = start >= len(sequence.token_ids)
        row = Row(
            sequence=sequence,
            seat=_seat_of(sequence),
            start=start,
            token_ids=(0,) if carries else tuple(sequence.token_ids[start:end]),
            carries=carries,
            samples=end == sequence.num_tokens,
            opens_seat=not sequence.seat_is_staged,
            first_new_block=first_new,
            new_blocks=tuple(sequence.block_table[first_new:]),
        )
        sequence.num_staged_blocks = len(sequence.block_table)
        sequence.seat_is_staged = True
        sequence.num_computed = end
        sequence.num_holds += 1
        sequence.num_pending += row.samples
        return row

    def _fork(self, parent: Sequence) -> None:
        """Start the other choices of a request whose prompt has just been launched.

        Each shares the prompt's blocks and computes its last position once more, for a first token of its own. Choices
        for which there is no seat now wait like any other sequence and compute the prompt themselves.
        """
        request = parent.request
        for choice in range(1, self._unforked.pop(parent)):
            sequence = Sequence(request, choice, list(request.prompt_token_ids), mask=parent.mask)
            self._live[request.key].append(sequence)
            if self._free_seats:
                sequence.block_table = self._blocks.share(parent.block_table, sequence.num_prompt_tokens)
                sequence.num_computed = sequence.num_prompt_tokens - 1
                self._seat(sequence)
            else:
                self._waiting.add(sequence)

    def _preempt_lowest(self, scheduled: set[Sequence]) -> int:
        """Preempt the running sequence of lowest rank that is not in this step; return the blocks that come back later."""
        lowest = next(s for s in reversed(self._running) if s not in scheduled and not s.has_all_launched)
        self._running.remove(lowest)
        self._preempted.append(lowest)
        lowest.status = SequenceStatus.PREEMPTED
        self.num_preemptions += 1
        if lowest.num_holds:
            return len(lowest.block_table)
        self._let_go(lowest)
        return 0

    def _num_coming_blocks(self) -> int:
        """Blocks that come back by commits of what is in flight alone."""
        ending = [sequence for sequence in self._running if sequence.has_all_launched]
        return sum(len(sequence.block_table) for sequence in (*self._preempted, *self._ending, *ending))

    def _end_by_token(self, sequence: Sequence, token: int) -> None:
        sequence.ended_by_token = token in sequence.request.stop_token_ids
        if sequence.ended_by_token:
            self.finish(sequence, FinishReason.STOP)
        elif len(sequence.token_ids) - sequence.num_prompt_tokens >= sequence.request.max_tokens:
            self.finish(sequence, FinishReason.LENGTH)

    def _let_go(self, sequence: Sequence) -> None:
        """What was waiting for the last step that held a sequence: invariants 1 and 6."""
        match sequence.status:
            case SequenceStatus.FINISHED:
                if sequence in self._ending:
                    self._ending.remove(sequence)
                    self._release(sequence)
            case SequenceStatus.PREEMPTED:
                self._preempted.remove(sequence)
                self._release(sequence)
                sequence.num_computed = 0
                sequence.status = SequenceStatus.WAITING
                self._waiting.resume(sequence)
            case SequenceStatus.RUNNING | SequenceStatus.WAITING:
                pass

    def _seat(self, sequence: Sequence) -> None:
        sequence.seat = self._free_seats.pop()
        sequence.seat_is_staged = False
        sequence.num_staged_blocks = 0
        sequence.status = SequenceStatus.RUNNING
        insort(self._running, sequence, key=lambda other: -other.request.priority)

    def _release(self, sequence: Sequence) -> None:
        """Give up seat and blocks, if it has them."""
        self._blocks.release(sequence.block_table)
        if sequence.seat is not None:
            self._free_seats.append(sequence.seat)
            sequence.seat = None


def _is_decode(sequence: Sequence) -> bool:
    return sequence.num_to_compute == 1 and not sequence.has_all_launched


def _is_prefill(sequence: Sequence) -> bool:
    return sequence.num_to_compute > 1


def _seat_of(sequence: Sequence) -> int:
    if sequence.seat is None:
        raise InvariantError("a sequence without a seat was scheduled")
    return sequence.seat
