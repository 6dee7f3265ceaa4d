"""A step as the device gets it: packed into 32-bit words, and as frozen numbers for the threads that launch it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from pipelines.core.batch import Batch, Row
from pipelines.core.sequence import SampleKind
from pipelines.errors import InvariantError
from pipelines.models.attention import AttentionPlan, plan_attention

Words = NDArray[np.int32]

_sample_kind = attrgetter("sample_kind")
NO_CARRY = -1  # in `CARRY_SEATS`: the token's id stands in the slot itself


class Count(IntEnum):
    """What stands at the head of a slot's buffers: how much of the sections is used, for graphs that serve steps of any size."""

    TOKENS = 0
    OPENINGS = 1
    CHANGES = 2  # of block tables
    GREEDY = 3  # sampled rows of a plain step, which the forward pass samples itself; 0 of others
    SLOT = 4  # the slot's own number, where its tokens go


class Section(IntEnum):
    """The sections of a slot's buffers in their order: T words each, then S words each."""

    INPUT_IDS = 0  # [T] 0 where the token is carried over
    CARRY_SEATS = 1  # [T] the seat whose last token it is, or NO_CARRY
    POSITIONS = 2  # [T]
    TOKEN_SEATS = 3  # [T]
    ROW_SEATS = 4  # [R] rows in the device's order
    CONTEXT_LENS = 5  # [R]
    ROW_FIRST_TOKENS = 6  # [R]
    ROW_NUM_TOKENS = 7  # [S] zero behind the rows: for a graph they are rows without tokens
    SAMPLE_TOKENS = 8  # [S] index of the token whose scores are sampled, ordered as `Batch.sampled_rows`; then zeros
    SAMPLE_SEATS = 9  # [s]
    SAMPLE_ORDER = 10  # [s] indices among the sampled rows: greedy ones first, then plain, then filtered ones
    OPENING_SEATS = 11  # [o] seats whose sampling parameters follow
    TEMPERATURES = 12  # [o] float32 bits
    TOP_KS = 13  # [o]
    TOP_PS = 14  # [o] float32 bits
    SEED_LOWS = 15  # [o]
    SEED_HIGHS = 16  # [o]
    TOLD_ROWS = 17  # [l] indices among the sampled rows, of those that want log-probabilities
    COPY_SOURCES = 18  # [c] blocks
    COPY_TARGETS = 19  # [c]


_NUM_TOKEN_SECTIONS = 4
_HEAD_WORDS = 8  # more than there are counts, so that the sections begin on a 32-byte sector


@dataclass(frozen=True)
class SlotLayout:
    """Where each section lies; offsets are fixed for the engine's life. Behind the sections: changes of block tables."""

    max_num_tokens: int  # T
    max_num_seqs: int  # S, also the number of seats
    max_num_blocks: int  # B, entries of one seat's block table

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        sizes = [self.max_num_tokens] * _NUM_TOKEN_SECTIONS
        sizes += [self.max_num_seqs] * (len(Section) - _NUM_TOKEN_SECTIONS)
        return tuple(accumulate(sizes, initial=_HEAD_WORDS))

    def where(self, section: Section, count: int) -> slice:
        """Return the first `count` words of a section."""
        start = self._starts[section]
        return slice(start, start + count)

    def count(self, count: Count) -> slice:
        """Return the word of a count, and the head's words behind it."""
        return slice(int(count), _HEAD_WORDS)

    def where_changes(self, count: int) -> slice:
        """Return the words of `count` block-table changes, pairs of (seat * B + index, block)."""
        start = self.where(Section.COPY_TARGETS, self.max_num_seqs).stop
        return slice(start, start + 2 * count)

    @property
    def num_words(self) -> int:
        """Size of a buffer."""
        end: int = self.where_changes(self.max_num_seqs * self.max_num_blocks).stop
        return end


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the host knows of a step, for whoever launches it; frozen, while sequences move on."""

    step: int
    num_tokens: int
    num_rows: int
    row_tokens: Words  # [R] of each row in the device's order
    row_context_lens: Words  # [R] likewise
    num_by_kind: tuple[int, int, int]  # sampled rows of each `SampleKind`
    batch: Batch
    num_told: tuple[int, ...]  # log-probabilities of how many likeliest tokens each of the rows wants that want any
    num_openings: int
    num_copies: int
    num_changes: int  # of block tables
    awaits_masks: bool  # its sampler is launched late
    has_chunks: bool  # a row has more than one token
    num_words: int  # of the buffer that are used

    @property
    def attention(self) -> AttentionPlan:
        """How attention that gathers pages goes about the rows; worked out anew by each call."""
        return plan_attention(tuple(self.row_tokens.tolist()), tuple(self.row_context_lens.tolist()))

    @property
    def num_logprobs(self) -> int:
        """Of the likeliest tokens that come back for each of those rows: as many as the one that wants most wants."""
        return max(self.num_told, default=0)

    @property
    def num_sampled(self) -> int:
        """Tokens that come back."""
        return self.batch.num_sampled

    @property
    def is_plain(self) -> bool:
        """Whether the forward pass can sample all that comes back."""
        return self.batch.is_plain

    @property
    def sampled_keys(self) -> tuple[int, ...]:
        """Keys of the sampled rows' requests, to name the one at fault."""
        return tuple(row.sequence.request.key for row in self.batch.sampled_rows)


class _Columns:
    """The numbers of a step's rows as arrays, in the device's order but for what says otherwise.

    That is: rows of one token first, by context length, so that those of similar length lie side by side; then the chunks.
    """

    def __init__(self, batch: Batch) -> None:
        steady, others, num_steady = batch.steady, batch.others, batch.num_steady
        self.seats_in_order = np.array([*steady.seats, *[row.seat for row in others]], np.int32)  # of the batch
        starts = np.array([*steady.starts, *[row.start for row in others]], np.int32)
        lengths = [len(row.token_ids) for row in others]
        chunks = [index for index, length in enumerate(lengths, num_steady) if length != 1]
        self.has_chunks = bool(chunks)
        self.has_empty = 0 in lengths
        keys, counts = starts, np.ones(batch.num_rows, np.int32)
        if chunks:
            keys = starts.copy()
            keys[chunks] = 2**31 - 1
            counts[num_steady:] = lengths
        order = keys.argsort(kind="stable")
        first_ids, carries = _first_tokens(batch)
        self.input_ids = first_ids[order]
        if chunks:
            num_single = batch.num_rows - len(chunks)
            of_chunks = chain.from_iterable([row.token_ids for row in others if len(row.token_ids) != 1])
            ids = np.fromiter(of_chunks, np.int32, batch.num_tokens - num_single)
            self.input_ids = np.concatenate([self.input_ids[:num_single], ids])
        self.seats = self.seats_in_order[order]
        self.starts = starts[order]
        self.num_tokens = counts[order] if chunks else counts
        self.carries = carries[order]
        self.ends = self.num_tokens.cumsum(dtype=np.int32)  # of each row's tokens within the step
        self.context_lens = self.starts + self.num_tokens


def _first_tokens(batch: Batch) -> tuple[Words, NDArray[np.bool_]]:
    """Return the id of each row's first token and whether it is still in flight, in the batch's order."""
    steady, others, num_steady = batch.steady, batch.others, batch.num_steady
    ids, carries = np.zeros(batch.num_rows, np.int32), np.ones(batch.num_rows, np.bool_)
    if steady.known:
        where = list(steady.known)
        ids[where], carries[where] = list(steady.known.values()), False
    if others:
        ids[num_steady:] = [row.token_ids[0] if row.token_ids else 0 for row in others]
        carries[num_steady:] = [row.carries for row in others]
    return ids, carries


def pack(batch: Batch, layout: SlotLayout, words: Words) -> StepPlan:
    """Write a step into a host buffer; return its plan.

    Raises:
        InvariantError: the step is larger than the layout, or names a seat or a block-table entry that does not exist.
    """
    if batch.num_tokens > layout.max_num_tokens or max(batch.num_rows, len(batch.copies)) > layout.max_num_seqs:
        raise InvariantError(
            f"step {batch.step} has {batch.num_tokens} tokens, {batch.num_rows} rows and {len(batch.copies)} block "
            f"copies; a slot holds {layout.max_num_tokens}, {layout.max_num_seqs} and {layout.max_num_seqs}"
        )
    columns = _Columns(batch)
    _check(batch, columns, layout)
    changes = _pack_changes(batch, layout, words)
    _pack_tokens(columns, layout, words)
    num_by_kind = _pack_samples(batch, columns, layout, words)
    openings = _pack_openings(batch.opening_rows, layout, words)
    told = batch.told_rows
    if told:
        _put(words, layout, Section.TOLD_ROWS, [index for index, _ in told])
    if batch.copies:
        _put(words, layout, Section.COPY_SOURCES, [source for source, _ in batch.copies])
        _put(words, layout, Section.COPY_TARGETS, [target for _, target in batch.copies])
    plan = StepPlan(
        step=batch.step,
        num_tokens=batch.num_tokens,
        num_rows=batch.num_rows,
        row_tokens=columns.num_tokens,
        row_context_lens=columns.context_lens,
        num_by_kind=num_by_kind,
        batch=batch,
        num_told=tuple([row.sequence.request.num_logprobs or 0 for _, row in told]),
        num_openings=openings,
        num_copies=len(batch.copies),
        num_changes=changes,
        awaits_masks=batch.mask_awaits_tokens,
        has_chunks=columns.has_chunks,
        num_words=layout.where_changes(changes).stop,
    )
    num_greedy = plan.num_sampled if batch.is_plain else 0
    words[layout.count(Count.TOKENS)][: Count.SLOT] = (plan.num_tokens, openings, changes, num_greedy)
    return plan


def _check(batch: Batch, columns: _Columns, layout: SlotLayout) -> None:
    seats = columns.seats_in_order
    wrong = None
    if seats.view(np.uint32).max() >= layout.max_num_seqs or columns.has_empty:  # a negative one is large there
        wrong = next(row for row in batch.rows if not (0 <= row.seat < layout.max_num_seqs and row.token_ids))
    else:
        ends = [(row, row.first_new_block + len(row.new_blocks)) for row in batch.others if row.new_blocks]
        wrong = next((row for row, end in ends if end > layout.max_num_blocks), None)
    if wrong is not None:
        raise InvariantError(
            f"step {batch.step} has a row of {wrong.num_tokens} tokens and {wrong.first_new_block + len(wrong.new_blocks)} "
            f"blocks in seat {wrong.seat}; there are {layout.max_num_seqs} seats of {layout.max_num_blocks} blocks"
        )


def _put(words: Words, layout: SlotLayout, section: Section, values: Sequence[int] | Words) -> int:
    words[layout.where(section, len(values))] = values
    return len(values)


def _pack_tokens(columns: _Columns, layout: SlotLayout, words: Words) -> None:
    """Pack what each token and each row needs; a row's value is repeated for each of its tokens."""
    counts, seats, positions = columns.num_tokens, columns.seats, columns.starts
    firsts = columns.ends - counts
    carry_seats = np.where(columns.carries, seats, NO_CARRY)
    token_seats = seats
    if columns.has_chunks:
        num_tokens = len(columns.input_ids)
        positions = np.repeat(positions - firsts, counts) + np.arange(num_tokens, dtype=np.int32)
        token_seats, carry_seats = np.repeat(seats, counts), np.repeat(carry_seats, counts)
    _put(words, layout, Section.INPUT_IDS, columns.input_ids)
    _put(words, layout, Section.POSITIONS, positions)
    _put(words, layout, Section.TOKEN_SEATS, token_seats)
    _put(words, layout, Section.CARRY_SEATS, carry_seats)
    _put(words, layout, Section.ROW_SEATS, seats)
    _put(words, layout, Section.CONTEXT_LENS, columns.context_lens)
    _put(words, layout, Section.ROW_FIRST_TOKENS, firsts)
    words[layout.where(Section.ROW_NUM_TOKENS, layout.max_num_seqs)] = 0
    _put(words, layout, Section.ROW_NUM_TOKENS, counts)


def _pack_samples(batch: Batch, columns: _Columns, layout: SlotLayout, words: Words) -> tuple[int, int, int]:
    """Pack which rows sample, in the batch's order, and return how many there are of each kind."""
    last_tokens = np.zeros(layout.max_num_seqs, np.int32)  # by seat
    last_tokens[columns.seats] = columns.ends - 1
    others = batch.sampled_others
    seats = columns.seats_in_order
    if len(others) != len(batch.others):
        seats = np.append(seats[: batch.num_steady], np.array([row.seat for row in others], np.int32))
    num_by_kind, order = _by_kind(batch)
    words[layout.where(Section.SAMPLE_TOKENS, layout.max_num_seqs)] = 0
    _put(words, layout, Section.SAMPLE_TOKENS, last_tokens[seats])
    _put(words, layout, Section.SAMPLE_SEATS, seats)
    _put(words, layout, Section.SAMPLE_ORDER, order)
    return num_by_kind


def _by_kind(batch: Batch) -> tuple[tuple[int, int, int], Words]:
    """Return how many sampled rows there are of each kind, and their indices in the order of kinds."""
    if batch.is_plain:
        return (batch.num_sampled, 0, 0), np.arange(batch.num_sampled, dtype=np.int32)
    kinds = [*map(_sample_kind, batch.steady.sequences), *[row.sequence.sample_kind for row in batch.sampled_others]]
    num_greedy = kinds.count(SampleKind.GREEDY)
    num_plain = kinds.count(SampleKind.PLAIN)
    order = np.array(kinds, np.int32).argsort(kind="stable")
    return (num_greedy, num_plain, len(kinds) - num_greedy - num_plain), order.astype(np.int32)


def _pack_openings(rows: Sequence[Row], layout: SlotLayout, words: Words) -> int:
    if not rows:
        return 0
    requests = [row.sequence.request for row in rows]
    seeds = np.array([row.sequence.seed for row in rows], dtype="<i8").view("<i4").reshape(-1, 2)
    _put(words, layout, Section.OPENING_SEATS, [row.seat for row in rows])
    _put(words, layout, Section.TEMPERATURES, _float_bits([request.temperature for request in requests]))
    _put(words, layout, Section.TOP_KS, [min(request.top_k, 2**31 - 1) for request in requests])
    _put(words, layout, Section.TOP_PS, _float_bits([request.top_p for request in requests]))
    _put(words, layout, Section.SEED_LOWS, seeds[:, 0])
    return _put(words, layout, Section.SEED_HIGHS, seeds[:, 1])


def _float_bits(values: Sequence[float]) -> Words:
    return np.array(values, dtype=np.float32).view(np.int32)


def _pack_changes(batch: Batch, layout: SlotLayout, words: Words) -> int:
    """Pack the block-table entries that the device's seats do not know yet; return how many."""
    entries: list[int] = []
    blocks: list[int] = []
    for row in batch.others:
        first = row.seat * layout.max_num_blocks + row.first_new_block
        entries += range(first, first + len(row.new_blocks))
        blocks += row.new_blocks
    where = layout.where_changes(len(blocks))
    words[where.start : where.stop : 2] = entries
    words[where.start + 1 : where.stop : 2] = blocks
    return len(blocks)
