"""Decides which sequences and how many of their tokens make up each step; plain Python, no device in it.

The problem: steps are scheduled before the tokens of the previous one are known. So a sequence counts the tokens it has
launched (`num_pending`) beside those it knows, and a row whose input is still in flight carries over (see `Row.carries`).

    WAITING --admit--> RUNNING --end--> FINISHED --unheld--> gone
       ^                  |
       `--unheld-- PREEMPTED

A running sequence is in one of three lists: prefilling (known tokens are not all computed), decoding (one token a step), or
draining (all it may have is launched). Most steps are decodes of the same sequences again, and 256 of them have to take less
than a millisecond with everything around: so the two inner loops, in `_schedule_decodes` and `commit`, do what every row needs
and nothing else. What only some rows need is behind one comparison each: `num_ready` and `next_look` of a sequence. Who is where
and holds what is kept by `roster`; how the choices of one request part is in `forks`.

Invariants, cited by number below:
 1. Seat and blocks of a sequence are given up once, when no step in flight holds it: what a step writes stays its own.
 2. A sequence that ends while a later step holds it gets no further token: the later one is dropped.
 3. A decode goes before a prefill chunk; a prefill never takes the room of a decode.
 4. A sequence is admitted only with blocks for all tokens it has, so a prefill never runs out in the middle.
 5. Blocks run out only for decodes. Then the lowest in rank is preempted; its blocks count as coming, so one shortage
    preempts no more than it must. The highest in rank is never preempted by another, so there is always progress.
 6. A preempted sequence goes back to waiting only once its token in flight has been committed.
 7. A block is named, and so shared with others, only once the tokens in it are committed.
 8. A full block of an answer may wait for its name up to one block more, so that sequences which started together do not all
    hash in one step. One that ends by a token, or is preempted, has had all its names before its blocks go.
 9. The newest step can be taken back. Its sequences stand where they stood before it, with the seats and blocks it gave them;
    choices it forked are gone; the block copies it was to make go with the next step, whoever is in that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelines.config import BatchConfig
from pipelines.core.batch import CARRIED, NO_ROWS, Batch, Row, SteadyRows
from pipelines.core.block_manager import BlockManager
from pipelines.core.forks import Forks
from pipelines.core.prefill_budget import prefill_budget
from pipelines.core.request import FinishReason, TokenRequest
from pipelines.core.roster import Roster
from pipelines.core.sequence import Sequence, SequenceStatus, TokenMask
from pipelines.errors import InvariantError


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

    steady: SteadyRows = NO_ROWS
    others: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    num_tokens: int = 0


class Scheduler:
    """Waiting, running and preempted sequences, and the blocks they use."""

    def __init__(self, config: BatchConfig, blocks: BlockManager) -> None:
        self._config = config
        self._blocks = blocks
        self._roster = Roster(config.max_num_seqs, blocks)
        self._admission = self._roster.admission
        self._forks = Forks(blocks, self._roster)
        self._num_steps = 0
        self.token_budget = config.max_num_batched_tokens  # of a step; the engine lowers it where one did not fit
        self._last_counts = Counts(0, 0, 0)
        self.num_displacements = 0  # preemptions for the sake of another file

    @property
    def num_waiting(self) -> int:
        """Sequences without a seat."""
        return self._roster.num_waiting

    @property
    def num_running(self) -> int:
        """Sequences with a seat that can still get tokens."""
        return len(self._roster.running)

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
        return self._roster.is_empty

    @property
    def num_preemptions(self) -> int:
        """Running sequences that had to give up seat and blocks, ever."""
        return self._roster.num_preemptions

    def limit_seats(self, max_num_seqs: int) -> None:
        """Let no more than so many sequences run; those that run already go on, and none is let in until they are fewer.

        Raises:
            InvariantError: more than there are seats for.
        """
        self._roster.limit_seats(max_num_seqs)

    def take_counts(self) -> Counts:
        """Return what has been counted since the last time."""
        admission = self._admission
        total = Counts(self.num_preemptions, admission.num_query_tokens, admission.num_hit_tokens)
        last, self._last_counts = self._last_counts, total
        return Counts(*[now - before for now, before in zip(total, last, strict=True)])

    def add(self, request: TokenRequest, mask: TokenMask | None = None) -> None:
        """Take a request; its choices but the first start where the prompt is computed, see `forks`."""
        sequence = Sequence(request, choice=0, token_ids=list(request.prompt_token_ids), mask=mask)
        self._roster.open(sequence)
        self._forks.add(sequence, request.n)
        self._admission.add(sequence)

    def schedule(self) -> Batch | None:
        """Return the next step, or None when nothing can run before a step in flight is committed."""
        step = _Step()
        self._schedule_decodes(step)
        budget = prefill_budget(self.token_budget, step.num_tokens)
        for sequence in tuple(self._roster.prefilling):
            self._schedule_chunk(sequence, budget, step)
        if self.num_waiting and not self._roster.preempted:
            self._admit(budget, step)
        if not step.num_tokens:
            return None
        self._forks.start_launched(step.others)
        self._admission.note_step(step.num_tokens)
        copies = self._roster.copies.of_step(step.others, step.copies)
        batch = Batch(self._num_steps, tuple(step.others), copies, step.steady)
        self._num_steps += 1
        return batch

    def unschedule(self, batch: Batch) -> None:
        """Take back the newest step, of which nothing runs on the device: invariant 9."""
        self._roster.copies.note_taken_back()
        self._forks.take_back()
        for row in batch.rows:
            self._roster.go_back(row)
        self._num_steps -= 1

    def commit(self, batch: Batch, tokens: Iterable[int]) -> Committed:
        """Take the tokens of a step's sampling rows in order.

        Raises:
            InvariantError: there are more or fewer than the step has such rows; nothing is taken then.
        """
        committed = Committed(num_tokens=batch.num_sampled)
        tokens = list(tokens)
        if len(tokens) != batch.num_sampled:
            raise InvariantError(f"step {batch.step} brought {len(tokens)} tokens, expected {batch.num_sampled}")
        sampled = iter(tokens)
        running = SequenceStatus.RUNNING
        for index, (sequence, token) in enumerate(zip(batch.steady.sequences, sampled, strict=False)):
            if sequence.status is running:
                sequence.num_holds -= 1
                sequence.num_pending -= 1
                token_ids = sequence.token_ids
                token_ids.append(token)
                if len(token_ids) >= sequence.next_look or token in sequence.stop_token_ids:
                    self._look(sequence, token, committed)
            else:
                self._commit_row(batch.steady.row(index), token, committed)
        for row in batch.others:
            self._commit_row(row, next(sampled) if row.samples else None, committed)
        return committed

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence now; what is in flight for it is dropped."""
        self._roster.finish(sequence, reason)

    def find(self, key: int, choice: int) -> Sequence | None:
        """The unfinished choice of a request, if there is one."""
        return next((sequence for sequence in self._roster.choices(key) if sequence.choice == choice), None)

    def cancel(self, key: int) -> None:
        """End all choices of a request; one that is not here is none."""
        for sequence in self._roster.choices(key):
            self._forks.drop(sequence)
            self.finish(sequence, FinishReason.CANCELLED)

    def check_integrity(self) -> None:
        """Prove that nothing is lost: seats, blocks, lists.

        Raises:
            InvariantError: something is.
        """
        self._roster.check_integrity()

    def _schedule_decodes(self, step: _Step) -> None:
        """Add a row for each running sequence that needs one token computed."""
        sequences: list[Sequence] = []
        seats: list[Any] = []  # numbers: who decodes has one
        starts: list[int] = []
        known: dict[int, int] = {}
        for sequence in self._roster.decoding[: self.token_budget]:
            start = sequence.num_computed
            if start >= sequence.num_ready:
                self._schedule_decode_with_care(sequence, step)
                continue
            if not sequence.num_pending:
                known[len(seats)] = sequence.token_ids[start]
            sequences.append(sequence)
            seats.append(sequence.seat)
            starts.append(start)
            sequence.num_computed = start + 1
            sequence.num_holds += 1
            sequence.num_pending += 1
        step.steady = SteadyRows(sequences, seats, starts, known)
        step.num_tokens = len(seats) + len(step.others)

    def _schedule_decode_with_care(self, sequence: Sequence, step: _Step) -> None:
        """Add a decode that needs a block, or is the last one of its sequence."""
        if sequence.status is not SequenceStatus.RUNNING:
            return  # preempted for one before it
        position = sequence.num_computed
        missing = self._blocks.num_missing(sequence.block_table, position, position + 1)
        roster = self._roster
        while missing > self._blocks.num_free and missing > self._blocks.num_free + roster.num_coming_blocks:  # 5
            lowest = next(other for other in reversed(roster.running) if not other.has_all_launched)
            roster.preempt(lowest)
            if lowest is sequence:
                return
        if missing <= self._blocks.num_free:
            self._launch(sequence, 1, step)
            if sequence.has_all_launched:
                roster.end_decoding(sequence)

    def _schedule_chunk(self, sequence: Sequence, max_step_tokens: int, step: _Step) -> None:
        """Add what the step has room for of a sequence whose known tokens are not all computed."""
        num_tokens = min(sequence.num_to_compute, max_step_tokens - step.num_tokens)
        if num_tokens <= 0:
            return
        row = self._launch(sequence, num_tokens, step)
        step.num_tokens += num_tokens
        if row.samples:
            self._roster.end_prefill(sequence)

    def _admit(self, max_step_tokens: int, step: _Step) -> None:
        """Give seats and blocks to waiting sequences while there is room for their first chunk."""
        roster = self._roster
        self._admission.forecast.start_anew()
        while step.num_tokens < max_step_tokens:
            sequence = self._admission.next(roster.running, roster.num_free_seats)
            if sequence is not None:
                self._admission.seat(sequence)  # invariant 4
                roster.seat(sequence, roster.prefilling)
                self._schedule_chunk(sequence, max_step_tokens, step)
            elif victim := self._admission.find_displaced(roster.running):
                self.num_displacements += 1
                roster.preempt(victim)
                if roster.preempted:
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
            token_ids=CARRIED if carries else tuple(sequence.token_ids[start:end]),
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
        step.others.append(row)
        return row

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
            num_past = (num_known - sequence.rank[1]) % block_size  # each looks at a time of its own: 8
            sequence.next_look = min(num_known + block_size - num_past, sequence.max_num_tokens)

    def _commit_row(self, row: Row, token: int | None, committed: Committed) -> None:
        """Commit a row that is not steady, or whose sequence does not run any more; `token` is None where it samples none."""
        sequence = row.sequence
        sequence.num_holds -= 1
        sequence.num_pending -= row.samples
        if sequence.status is SequenceStatus.FINISHED:
            committed.num_tokens -= row.samples  # invariant 2
        elif token is None:
            self._admission.name_blocks(sequence, row.context_len)
        else:
            sequence.token_ids.append(token)
            is_due = len(sequence.token_ids) >= sequence.next_look or token in sequence.stop_token_ids
            if is_due or sequence.status is not SequenceStatus.RUNNING:
                self._look(sequence, token, committed)
        if not sequence.num_holds:
            self._roster.let_go(sequence)


def _seat_of(sequence: Sequence) -> int:
    if sequence.seat is None:
        raise InvariantError("a sequence without a seat was scheduled")
    return sequence.seat
