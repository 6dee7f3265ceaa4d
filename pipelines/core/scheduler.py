"""Decides which sequences and how many of their tokens make up each step; plain Python, no device in it.

The problem: steps are scheduled before the tokens of the previous one are known. So a sequence counts the tokens it has
launched (`num_pending`) beside those it knows, and a row whose input is still in flight carries over (see `Row.carries`).

    WAITING --admit--> RUNNING --end--> FINISHED --unheld--> gone
       ^                  |
       `--unheld-- PREEMPTED

A running sequence is in one of three lists: prefilling (known tokens are not all computed), decoding (one token a step), or
draining (all it may have is launched). Most steps are decodes of the same sequences again, and 256 of them have to take less
than a millisecond with everything around: so the two inner loops, in `_schedule_decodes` and `commit`, do what every row needs
and nothing else. What only some rows need is behind one comparison each: `num_ready` and `next_look` of a sequence.

Invariants, cited by number below:
 1. Seat and blocks of a sequence are given up once, when no step in flight holds it: what a step writes stays its own.
 2. A sequence that ends while a later step holds it gets no further token: the later one is dropped.
 3. A decode goes before a prefill chunk; a prefill never takes the room of a decode.
 4. A sequence is admitted only with blocks for all tokens it has, so a prefill never runs out in the middle.
 5. Blocks run out only for decodes. Then the lowest in rank is preempted; its blocks count as coming, so one shortage
    preempts no more than it must. The highest in rank is never preempted by another, so there is always progress.
 6. A preempted sequence goes back to waiting only once its token in flight has been committed.
 7. A block is named, and so shared with others, only once the tokens in it are committed.
 8. The newest step can be taken back. Its sequences stand where they stood before it, with the seats and blocks it gave them;
    choices it forked are gone; the block copies it was to make go with the next step, whoever is in that.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from pipelines.config import BatchConfig
from pipelines.core.admission import Admission
from pipelines.core.batch import Batch, Row
from pipelines.core.block_manager import BlockManager
from pipelines.core.prefill_budget import prefill_budget
from pipelines.core.request import FinishReason, TokenRequest
from pipelines.core.sequence import UNRANKED, Sequence, SequenceStatus, TokenMask
from pipelines.core.step_copies import StepCopies
from pipelines.errors import InvariantError

_CARRIED = (0,)  # the placeholder of a token in flight
_NO_BLOCKS = ()
_rank = attrgetter("rank")


@dataclass(slots=True)
class Committed:
    """What a commit brought."""

    num_tokens: int = 0  # that count
    num_prompt_tokens: int = 0  # of the requests whose first token is among them
    started: list[Sequence] = field(default_factory=list)  # whose first token is among them
    heard: list[tuple[Sequence, int]] = field(default_factory=list)  # tokens that ended a sequence or are listened for


class Counts(NamedTuple):
    """What a scheduler counts for reports."""

    preemptions: int
    prefix_query_tokens: int  # of admitted sequences; those of one admitted again count again
    prefix_hit_tokens: int  # those of them that were cached


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    num_tokens: int = 0
    has_chunk: bool = False


class Scheduler:
    """Waiting, running and preempted sequences, and the blocks they use."""

    def __init__(self, config: BatchConfig, blocks: BlockManager) -> None:
        self._config = config
        self._blocks = blocks
        self._admission = Admission(blocks)
        self._running: list[Sequence] = []  # by rank; the next three share them out, likewise
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._draining: list[Sequence] = []
        self._preempted: list[Sequence] = []  # still held by a step in flight
        self._ending: list[Sequence] = []  # finished, still held by a step in flight
        self._unforked: dict[Sequence, int] = {}  # choice 0 -> how many choices share its prompt once that is launched
        self._live: dict[int, list[Sequence]] = {}  # key -> its unfinished choices
        self._free_seats = list(range(config.max_num_seqs - 1, -1, -1))
        self._num_steps = 0
        self._num_seated = 0  # ever
        self._newest_forks: list[tuple[Sequence, list[Sequence]]] = []  # (parent, choices) that the newest step started
        self._copies = StepCopies()
        self.token_budget = config.max_num_batched_tokens  # of a step; the engine lowers it where one did not fit
        self._last_counts = Counts(0, 0, 0)
        self.num_preemptions = 0
        self.num_displacements = 0  # preemptions for the sake of another file; among those

    @property
    def num_waiting(self) -> int:
        """Sequences without a seat."""
        return len(self._admission.waiting) + len(self._preempted)

    @property
    def num_running(self) -> int:
        """Sequences with a seat that can still get tokens."""
        return len(self._running)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._blocks.block_size

    @property
    def num_used_blocks(self) -> int:
        """Blocks in use."""
        return self._blocks.num_used

    @property
    def is_empty(self) -> bool:
        """Whether no sequence needs anything more, those a step still holds included."""
        return not (self._live or self._ending)

    def take_counts(self) -> Counts:
        """Return what has been counted since the last time."""
        admission = self._admission
        total = Counts(self.num_preemptions, admission.num_query_tokens, admission.num_hit_tokens)
        last, self._last_counts = self._last_counts, total
        return Counts(*[now - before for now, before in zip(total, last, strict=True)])

    def add(self, request: TokenRequest, mask: TokenMask | None = None) -> None:
        """Take a request; its choices but the first start where the prompt is computed, see `_fork`."""
        sequence = Sequence(request, choice=0, token_ids=list(request.prompt_token_ids), mask=mask)
        self._live[request.key] = [sequence]
        if request.n > 1:
            self._unforked[sequence] = request.n
        self._admission.waiting.open(sequence)
        self._admission.add(sequence)

    def schedule(self) -> Batch | None:
        """Return the next step, or None when nothing can run before a step in flight is committed."""
        step = _Step()
        self._schedule_decodes(step)
        budget = prefill_budget(self.token_budget, len(step.rows))
        if self._prefilling:
            for sequence in tuple(self._prefilling):
                self._schedule_chunk(sequence, budget, step)
        if self.num_waiting and not self._preempted:
            self._admit(budget, step)
        if not step.rows:
            return None
        self._newest_forks = []
        if self._unforked:
            self._fork_launched(step)
        self._admission.note_step(step.num_tokens)
        batch = Batch(self._num_steps, tuple(step.rows), self._copies.of_step(step.rows, step.copies))
        self._num_steps += 1
        return batch

    def unschedule(self, batch: Batch) -> None:
        """Take back the newest step, of which nothing runs on the device: invariant 8."""
        self._copies.note_taken_back()
        for parent, choices in self._newest_forks:
            self._unfork(parent, choices)
        self._newest_forks = []
        for row in batch.rows:
            self._put_back(row)
        self._num_steps -= 1

    def commit(self, batch: Batch, tokens: Iterable[int]) -> Committed:
        """Take the tokens of a step's sampling rows in order."""
        committed = Committed()
        sampled = iter(tokens)
        running = SequenceStatus.RUNNING
        for row in batch.rows:
            sequence = row.sequence
            if row.samples and sequence.status is running:
                token = next(sampled)
                sequence.num_holds -= 1
                sequence.num_pending -= 1
                token_ids = sequence.token_ids
                token_ids.append(token)
                if len(token_ids) >= sequence.next_look or token in sequence.stop_token_ids:
                    self._look(sequence, token, committed)
            else:
                self._commit_with_care(row, next(sampled) if row.samples else None, committed)
        committed.num_tokens += len(batch.sampled_rows)
        return committed

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence now; what is in flight for it is dropped."""
        waiting = self._admission.waiting
        match sequence.status:
            case SequenceStatus.WAITING:
                waiting.remove(sequence)
            case SequenceStatus.RUNNING:
                self._leave_running(sequence)
            case SequenceStatus.PREEMPTED:
                self._preempted.remove(sequence)
            case SequenceStatus.FINISHED:
                raise InvariantError("a sequence finished twice")
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        waiting.close(sequence)
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
        self._admission.check_integrity(seated)
        seats = [sequence.seat for sequence in seated if sequence.seat is not None]
        if sorted(seats + self._free_seats) != list(range(self._config.max_num_seqs)):
            raise InvariantError("a seat is lost or taken twice")
        if sum(map(len, self._live.values())) != self.num_waiting + len(self._running):
            raise InvariantError("a live sequence is in no list, or in two")
        if sorted([*self._prefilling, *self._decoding, *self._draining], key=_rank) != self._running:
            raise InvariantError("a running sequence is in none of the three lists, or in two")
        if any(not sequence.num_holds for sequence in (*self._preempted, *self._ending, *self._draining)):
            raise InvariantError("a sequence waits for a step that is not there")

    def _schedule_decodes(self, step: _Step) -> None:
        """Add a row for each running sequence that needs one token computed."""
        rows = step.rows
        new_row = tuple.__new__  # what Row(...) ends in, in half the time
        for sequence in self._decoding[: self.token_budget]:
            start = sequence.num_computed
            if start >= sequence.num_ready:
                self._schedule_decode_with_care(sequence, step)
                continue
            num_pending = sequence.num_pending
            token_ids = _CARRIED if num_pending else (sequence.token_ids[start],)
            num_staged = sequence.num_staged_blocks
            row = (sequence, sequence.seat, start, token_ids, num_pending > 0, True, False, num_staged, _NO_BLOCKS)
            rows.append(new_row(Row, row))
            sequence.num_computed = start + 1
            sequence.num_holds += 1
            sequence.num_pending = num_pending + 1
        step.num_tokens = len(rows)

    def _schedule_decode_with_care(self, sequence: Sequence, step: _Step) -> None:
        """Add a decode that needs a block, or is the last one of its sequence."""
        if sequence.status is not SequenceStatus.RUNNING:
            return  # preempted for one before it
        position = sequence.num_computed
        missing = self._blocks.num_missing(sequence.block_table, position, position + 1)
        while missing > self._blocks.num_free and missing > self._blocks.num_free + self._num_coming_blocks():  # 5
            lowest = next(other for other in reversed(self._running) if not other.has_all_launched)
            self._preempt(lowest)
            if lowest is sequence:
                return
        if missing <= self._blocks.num_free:
            self._launch(sequence, 1, step)
            if sequence.has_all_launched:
                self._decoding.remove(sequence)
                insort(self._draining, sequence, key=_rank)

    def _schedule_chunk(self, sequence: Sequence, max_step_tokens: int, step: _Step) -> None:
        """Add what the step has room for of a sequence whose known tokens are not all computed."""
        num_tokens = sequence.num_to_compute
        room = max_step_tokens - step.num_tokens
        if num_tokens > room:  # chunks end on borders of blocks, but for the first one if it would get nothing else
            past_border = (sequence.num_computed + room) % self._blocks.block_size
            if past_border < room or step.has_chunk:
                room -= past_border
            if room <= 0:
                return
            num_tokens = room
        row = self._launch(sequence, num_tokens, step)
        step.has_chunk = True
        step.num_tokens += num_tokens
        if row.samples:
            self._prefilling.remove(sequence)
            insort(self._draining if sequence.has_all_launched else self._decoding, sequence, key=_rank)

    def _admit(self, max_step_tokens: int, step: _Step) -> None:
        """Give seats and blocks to waiting sequences while there is room for their first chunk."""
        self._admission.forecast.start_anew()
        while step.num_tokens < max_step_tokens:
            sequence = self._admission.next(self._running, len(self._free_seats))
            if sequence is not None:
                self._admission.seat(sequence)  # invariant 4
                self._seat(sequence, self._prefilling)
                self._schedule_chunk(sequence, max_step_tokens, step)
                if not sequence.num_holds:
                    return  # what is left of the step is less than a block
            elif victim := self._admission.find_displaced(self._running):
                self.num_displacements += 1
                self._preempt(victim)
                if self._preempted:
                    return  # its seat comes with a commit
            else:
                return

    def _launch(self, sequence: Sequence, num_tokens: int, step: _Step) -> Row:
        """Note that the step takes the next `num_tokens` of a sequence, and freeze what it needs of it."""
        start = sequence.num_computed
        end = start + num_tokens
        table, block_size = sequence.block_table, self._blocks.block_size
        copied = self._blocks.make_writable(table, start, end)
        step.copies += copied
        first_new = min(sequence.num_staged_blocks, start // block_size) if copied else sequence.num_staged_blocks
        carries = start >= len(sequence.token_ids)
        row = Row(
            sequence=sequence,
            seat=_seat_of(sequence),
            start=start,
            token_ids=_CARRIED if carries else tuple(sequence.token_ids[start:end]),
            carries=carries,
            samples=end == sequence.num_tokens,
            opens_seat=not sequence.seat_is_staged,
            first_new_block=first_new,
            new_blocks=tuple(table[first_new:]),
        )
        sequence.num_staged_blocks = len(table)
        sequence.seat_is_staged = True
        sequence.num_computed = end
        sequence.num_ready = min(len(table) * block_size, sequence.max_num_tokens - 2)  # the last one is looked at
        sequence.num_holds += 1
        sequence.num_pending += row.samples
        step.rows.append(row)
        return row

    def _fork_launched(self, step: _Step) -> None:
        for row in step.rows:
            if row.sequence in self._unforked and row.context_len >= row.sequence.num_prompt_tokens:
                self._fork(row.sequence)

    def _fork(self, parent: Sequence) -> None:
        """Start the other choices of a request whose prompt has just been launched.

        Each shares the prompt's blocks and computes its last position once more, for a first token of its own. Choices
        for which there is no seat now wait like any other sequence and compute the prompt themselves.
        """
        request = parent.request
        choices: list[Sequence] = []
        self._newest_forks.append((parent, choices))
        for choice in range(1, self._unforked.pop(parent)):
            sequence = Sequence(request, choice, list(request.prompt_token_ids), mask=parent.mask)
            choices.append(sequence)
            self._live[request.key].append(sequence)
            self._admission.waiting.open(sequence)
            if self._free_seats:
                sequence.block_table = self._blocks.share(parent.block_table, sequence.num_prompt_tokens)
                sequence.num_computed = sequence.num_prompt_tokens - 1
                sequence.num_cached_tokens = parent.num_cached_tokens
                parent.num_ready = 0  # its last block is not its own any more
                self._admission.note_seat(sequence)
                self._seat(sequence, self._decoding)
            else:
                self._admission.add(sequence)

    def _unfork(self, parent: Sequence, choices: list[Sequence]) -> None:
        """Undo a fork: no step has held these choices yet."""
        for sequence in choices:
            match sequence.status:
                case SequenceStatus.RUNNING:
                    self._leave_running(sequence)
                    self._admission.waiting.unopen(sequence)
                    self._release(sequence)
                case SequenceStatus.WAITING:
                    self._admission.waiting.remove(sequence)
                    self._admission.waiting.unopen(sequence)
                case SequenceStatus.PREEMPTED:
                    raise InvariantError("a choice was preempted in the step that started it")
                case SequenceStatus.FINISHED:
                    continue  # cancelled since
            self._live[parent.request.key].remove(sequence)
        if parent.status is not SequenceStatus.FINISHED:
            self._unforked[parent] = 1 + len(choices)

    def _put_back(self, row: Row) -> None:
        """Undo what `_launch` and `_schedule_decodes` noted of a row."""
        sequence = row.sequence
        sequence.num_holds -= 1
        sequence.num_pending -= row.samples
        sequence.num_computed = row.start
        sequence.num_staged_blocks = row.first_new_block
        sequence.seat_is_staged = not row.opens_seat
        sequence.num_ready = 0  # the next step looks at it with care
        if sequence.status is SequenceStatus.RUNNING:
            self._leave_running(sequence)
            insort(self._running, sequence, key=_rank)
            insort(self._prefilling if sequence.num_to_compute > 1 else self._decoding, sequence, key=_rank)
        elif not sequence.num_holds:
            self._let_go(sequence)  # it was displaced by that step, or has ended since

    def _look(self, sequence: Sequence, token: int, committed: Committed) -> None:
        """See to what a committed token may bring: a full block, the end, a listener."""
        num_known = len(sequence.token_ids)
        self._admission.name_blocks(sequence, num_known - 1)  # invariant 7
        if num_known == sequence.num_prompt_tokens + 1:
            committed.started.append(sequence)
            committed.num_prompt_tokens += 0 if sequence.choice else sequence.num_prompt_tokens
        sequence.ended_by_token = token in sequence.stop_token_ids
        if sequence.ended_by_token:
            self.finish(sequence, FinishReason.STOP)
        elif num_known >= sequence.max_num_tokens:
            self.finish(sequence, FinishReason.LENGTH)
        else:
            self._admission.waiting.count_tokens(sequence)
        if sequence.request.wants_deltas or sequence.finish_reason is not None:
            committed.heard.append((sequence, token))
        else:
            block_size = self._blocks.block_size
            next_full = num_known + block_size - (num_known - 1) % block_size
            sequence.next_look = min(next_full, sequence.max_num_tokens)

    def _commit_with_care(self, row: Row, token: int | None, committed: Committed) -> None:
        """Commit a chunk that samples nothing, or the row of a sequence that does not run any more."""
        sequence = row.sequence
        sequence.num_holds -= 1
        sequence.num_pending -= row.samples
        if sequence.status is SequenceStatus.FINISHED:
            committed.num_tokens -= row.samples  # invariant 2
        elif token is None:
            self._admission.name_blocks(sequence, row.context_len)
        else:
            sequence.token_ids.append(token)
            self._look(sequence, token, committed)
        if not sequence.num_holds:
            self._let_go(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's seat and blocks, at once if no step in flight holds it."""
        self._leave_running(sequence)
        self._preempted.append(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.num_ready = 0
        self.num_preemptions += 1
        if not sequence.num_holds:
            self._let_go(sequence)

    def _num_coming_blocks(self) -> int:
        """Blocks that come back by commits of what is in flight alone."""
        return sum([len(other.block_table) for other in (*self._preempted, *self._ending, *self._draining)])

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
                self._admission.resume(sequence)
            case SequenceStatus.RUNNING | SequenceStatus.WAITING:
                pass

    def _seat(self, sequence: Sequence, phase: list[Sequence]) -> None:
        sequence.seat = self._free_seats.pop()
        sequence.seat_is_staged = False
        sequence.num_staged_blocks = 0
        sequence.status = SequenceStatus.RUNNING
        if (
            sequence.rank is UNRANKED
        ):  # one that was preempted keeps its rank, else newer ones could preempt it for ever
            sequence.rank = (-sequence.request.priority, self._num_seated)
            self._num_seated += 1
        insort(self._running, sequence, key=_rank)
        insort(phase, sequence, key=_rank)

    def _leave_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        phases = (self._decoding, self._prefilling, self._draining)
        next(phase for phase in phases if sequence in phase).remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Give up seat and blocks, if it has them."""
        self._blocks.release(sequence.block_table)
        self._copies.forget(sequence)
        if sequence.seat is not None:
            self._free_seats.append(sequence.seat)
            sequence.seat = None
            self._admission.release(sequence)
        else:
            self._admission.waiting.forget_if_idle(sequence)


def _seat_of(sequence: Sequence) -> int:
    if sequence.seat is None:
        raise InvariantError("a sequence without a seat was scheduled")
    return sequence.seat
