"""A step as the device gets it: packed into 32-bit words, and as frozen numbers for the threads that launch it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from pipelines.core.batch import Batch, Row
from pipelines.core.request import TokenRequest
from pipelines.core.sequence import SampleKind
from pipelines.errors import InvariantError
from pipelines.models.attention import AttentionPlan, plan_attention

Words = NDArray[np.int32]

_start = attrgetter("start")
NO_CARRY = -1  # in `CARRY_SEATS`: the token's id stands in the slot itself


class Count(IntEnum):
    """What stands at the head of a slot's buffers: how much of the sections is used, for graphs that serve steps of any size."""

    TOKENS = 0
    OPENINGS = 1
    CHANGES = 2  # of block tables
    SAMPLES = 3


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
    SAMPLE_TOKENS = (
        8  # [S] index of the token whose scores are sampled, in the order of `Batch.sampled_rows`; then zeros
    )
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


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Where each section lies; offsets are fixed for the engine's life. Behind the sections: changes of block tables."""

    max_num_tokens: int  # T
    max_num_seqs: int  # S, also the number of seats
    max_num_blocks: int  # B, entries of one seat's block table

    def where(self, section: Section, count: int) -> slice:
        """Return the first `count` words of a section."""
        start = _HEAD_WORDS + min(section, _NUM_TOKEN_SECTIONS) * self.max_num_tokens
        start += max(0, section - _NUM_TOKEN_SECTIONS) * self.max_num_seqs
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
    row_tokens: tuple[int, ...]  # of each row in the device's order
    row_context_lens: tuple[int, ...]  # likewise
    num_by_kind: tuple[int, int, int]  # sampled rows of each `SampleKind`
    sampled_requests: tuple[TokenRequest, ...]  # of the sampled rows
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
        return plan_attention(self.row_tokens, self.row_context_lens)

    @property
    def num_logprobs(self) -> int:
        """Of the likeliest tokens that come back for each of those rows: as many as the one that wants most wants."""
        return max(self.num_told, default=0)

    @property
    def num_sampled(self) -> int:
        """Tokens that come back."""
        return len(self.sampled_requests)

    @property
    def sampled_keys(self) -> tuple[int, ...]:
        """Keys of the sampled rows' requests, to name the one at fault."""
        return tuple(request.key for request in self.sampled_requests)


class _Columns:
    """The fields of a step's rows, each as a column; a loop over rows would take several times as long."""

    def __init__(self, rows: Sequence[Row]) -> None:
        (self.sequences, seats, starts, self.token_ids, carries, _, _, first_new_blocks, self.new_blocks) = zip(
            *rows, strict=True
        )
        self.seats = np.array(seats, np.int32)
        self.starts = np.array(starts, np.int32)
        self.num_tokens = np.fromiter(map(len, self.token_ids), np.int32, len(rows))
        self.carries = np.array(carries, np.bool_)
        self.first_new_blocks = np.array(first_new_blocks, np.int32)
        self.num_new_blocks = np.fromiter(map(len, self.new_blocks), np.int32, len(rows))
        self.ends = np.cumsum(self.num_tokens, dtype=np.int32)  # of each row's tokens within the step
        self.context_lens = self.starts + self.num_tokens


def pack(batch: Batch, layout: SlotLayout, words: Words) -> StepPlan:
    """Write a step into a host buffer; return its plan.

    Raises:
        InvariantError: the step is larger than the layout, or names a seat or a block-table entry that does not exist.
    """
    has_chunks = batch.num_tokens > len(batch.rows)
    columns = _Columns(_device_order(batch.rows, has_chunks=has_chunks))
    _check(batch, columns, layout)
    changes = _pack_changes(columns, layout, words)
    _pack_tokens(columns, layout, words)
    kinds = _pack_samples(batch, columns, layout, words)
    openings = _pack_openings([row for row in batch.rows if row.opens_seat], layout, words)
    told = batch.told_rows
    _put(words, layout, Section.TOLD_ROWS, [index for index, _ in told])
    _put(words, layout, Section.COPY_SOURCES, [source for source, _ in batch.copies])
    _put(words, layout, Section.COPY_TARGETS, [target for _, target in batch.copies])
    plan = StepPlan(
        step=batch.step,
        num_tokens=batch.num_tokens,
        num_rows=len(batch.rows),
        row_tokens=tuple(columns.num_tokens.tolist()),
        row_context_lens=tuple(columns.context_lens.tolist()),
        num_by_kind=(kinds.count(SampleKind.GREEDY), kinds.count(SampleKind.PLAIN), kinds.count(SampleKind.FILTERED)),
        sampled_requests=tuple([row.sequence.request for row in batch.sampled_rows]),
        num_told=tuple([row.sequence.request.num_logprobs or 0 for _, row in told]),
        num_openings=openings,
        num_copies=len(batch.copies),
        num_changes=changes,
        awaits_masks=batch.mask_awaits_tokens,
        has_chunks=has_chunks,
        num_words=layout.where_changes(changes).stop,
    )
    words[layout.count(Count.TOKENS)][: len(Count)] = (plan.num_tokens, openings, changes, plan.num_sampled)
    return plan


def _device_order(rows: Sequence[Row], *, has_chunks: bool) -> list[Row]:
    """Rows of one token first, by context length, so that those of similar length lie side by side; then the chunks."""
    decodes = [row for row in rows if len(row.token_ids) == 1] if has_chunks else list(rows)
    decodes.sort(key=_start)
    return decodes + [row for row in rows if len(row.token_ids) != 1] if has_chunks else decodes


def _check(batch: Batch, columns: _Columns, layout: SlotLayout) -> None:
    if batch.num_tokens > layout.max_num_tokens or max(len(batch.rows), len(batch.copies)) > layout.max_num_seqs:
        raise InvariantError(
            f"step {batch.step} has {batch.num_tokens} tokens, {len(batch.rows)} rows and {len(batch.copies)} block "
            f"copies; a slot holds {layout.max_num_tokens}, {layout.max_num_seqs} and {layout.max_num_seqs}"
        )
    seats, ends = columns.seats, columns.first_new_blocks + columns.num_new_blocks
    is_wrong = (seats < 0) | (seats >= layout.max_num_seqs) | (columns.num_tokens == 0) | (ends > layout.max_num_blocks)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise InvariantError(
            f"step {batch.step} has a row of {columns.num_tokens[row]} tokens and {ends[row]} blocks in seat {seats[row]}; "
            f"there are {layout.max_num_seqs} seats of {layout.max_num_blocks} blocks"
        )


def _put(words: Words, layout: SlotLayout, section: Section, values: Sequence[int] | Words) -> int:
    words[layout.where(section, len(values))] = values
    return len(values)


def _pack_tokens(columns: _Columns, layout: SlotLayout, words: Words) -> None:
    """Pack what each token and each row needs; a row's value is repeated for each of its tokens."""
    counts, firsts = columns.num_tokens, columns.ends - columns.num_tokens
    num_tokens = int(columns.ends[-1])
    input_ids = np.fromiter(chain.from_iterable(columns.token_ids), np.int32, num_tokens)
    _put(words, layout, Section.INPUT_IDS, input_ids)
    _put(
        words,
        layout,
        Section.POSITIONS,
        np.repeat(columns.starts - firsts, counts) + np.arange(num_tokens, dtype=np.int32),
    )
    _put(words, layout, Section.TOKEN_SEATS, np.repeat(columns.seats, counts))
    _put(words, layout, Section.CARRY_SEATS, np.repeat(np.where(columns.carries, columns.seats, NO_CARRY), counts))
    _put(words, layout, Section.ROW_SEATS, columns.seats)
    _put(words, layout, Section.CONTEXT_LENS, columns.context_lens)
    _put(words, layout, Section.ROW_FIRST_TOKENS, firsts)
    words[layout.where(Section.ROW_NUM_TOKENS, layout.max_num_seqs)] = 0
    _put(words, layout, Section.ROW_NUM_TOKENS, counts)


def _pack_samples(batch: Batch, columns: _Columns, layout: SlotLayout, words: Words) -> list[SampleKind]:
    """Pack which rows sample, in the batch's order, and return their kinds."""
    last_tokens = np.zeros(layout.max_num_seqs, np.int32)  # by seat
    last_tokens[columns.seats] = columns.ends - 1
    sampled = batch.sampled_rows
    seats = np.fromiter([row.seat for row in sampled], np.int32, len(sampled))
    kinds = [row.sequence.sample_kind for row in sampled]
    words[layout.where(Section.SAMPLE_TOKENS, layout.max_num_seqs)] = 0
    _put(words, layout, Section.SAMPLE_TOKENS, last_tokens[seats])
    _put(words, layout, Section.SAMPLE_SEATS, seats)
    _put(words, layout, Section.SAMPLE_ORDER, sorted(range(len(kinds)), key=kinds.__getitem__))
    return kinds


def _pack_openings(rows: Sequence[Row], layout: SlotLayout, words: Words) -> int:
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


def _pack_changes(columns: _Columns, layout: SlotLayout, words: Words) -> int:
    """Pack the block-table entries that the device's seats do not know yet; return how many."""
    entries: list[int] = []
    blocks: list[int] = []
    for row in columns.num_new_blocks.nonzero()[0].tolist():
        new = columns.new_blocks[row]
        first = int(columns.seats[row]) * layout.max_num_blocks + int(columns.first_new_blocks[row])
        entries += range(first, first + len(new))
        blocks += new
    where = layout.where_changes(len(blocks))
    words[where.start : where.stop : 2] = entries
    words[where.start + 1 : where.stop : 2] = blocks
    return len(blocks)
