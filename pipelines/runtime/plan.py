"""A step as the device gets it: packed into 32-bit words, and as frozen numbers for the threads that launch it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pipelines.core.batch import Batch, Row
from pipelines.core.request import TokenRequest
from pipelines.errors import InvariantError
from pipelines.models.attention import AttentionPlan, plan_attention

Words = NDArray[np.int32]

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


class SampleKind(IntEnum):
    """How much work a row's sampling is, in the order in which the sampler takes them."""

    GREEDY = 0
    PLAIN = 1  # temperature alone
    FILTERED = 2  # top-k, top-p or min-p besides


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the host knows of a step, for whoever launches it; frozen, while sequences move on."""

    step: int
    num_tokens: int
    num_rows: int
    attention: AttentionPlan
    num_by_kind: tuple[int, int, int]  # sampled rows of each `SampleKind`
    sampled_keys: tuple[int, ...]  # requests of the sampled rows, to name the one at fault
    num_told: tuple[int, ...]  # log-probabilities of how many likeliest tokens each of the rows wants that want any
    num_openings: int
    num_copies: int
    num_changes: int  # of block tables
    awaits_masks: bool  # its sampler is launched late
    has_chunks: bool  # a row has more than one token
    num_words: int  # of the buffer that are used

    @property
    def num_logprobs(self) -> int:
        """Of the likeliest tokens that come back for each of those rows: as many as the one that wants most wants."""
        return max(self.num_told, default=0)

    @property
    def num_sampled(self) -> int:
        """Tokens that come back."""
        return len(self.sampled_keys)


def pack(batch: Batch, layout: SlotLayout, words: Words) -> StepPlan:
    """Write a step into a host buffer; return its plan.

    Raises:
        InvariantError: the step is larger than the layout, or names a seat or a block-table entry that does not exist.
    """
    _check(batch, layout)
    rows = _device_order(batch.rows)
    changes = _pack_changes(rows, layout, words)
    _pack_tokens(rows, layout, words)
    kinds = _pack_samples(batch, rows, layout, words)
    openings = _pack_openings([row for row in rows if row.opens_seat], layout, words)
    told = batch.told_rows
    _put(words, layout, Section.TOLD_ROWS, [index for index, _ in told])
    _put(words, layout, Section.COPY_SOURCES, [source for source, _ in batch.copies])
    _put(words, layout, Section.COPY_TARGETS, [target for _, target in batch.copies])
    plan = StepPlan(
        step=batch.step,
        num_tokens=batch.num_tokens,
        num_rows=len(rows),
        attention=plan_attention([row.num_tokens for row in rows], [row.context_len for row in rows]),
        num_by_kind=(kinds.count(SampleKind.GREEDY), kinds.count(SampleKind.PLAIN), kinds.count(SampleKind.FILTERED)),
        sampled_keys=tuple(row.sequence.request.key for row in batch.rows if row.samples),
        num_told=tuple([row.sequence.request.num_logprobs or 0 for _, row in told]),
        num_openings=openings,
        num_copies=len(batch.copies),
        num_changes=changes,
        awaits_masks=batch.mask_awaits_tokens,
        has_chunks=any(row.num_tokens > 1 for row in rows),
        num_words=layout.where_changes(changes).stop,
    )
    words[layout.count(Count.TOKENS)][: len(Count)] = (plan.num_tokens, openings, changes, plan.num_sampled)
    return plan


def _check(batch: Batch, layout: SlotLayout) -> None:
    if batch.num_tokens > layout.max_num_tokens or max(len(batch.rows), len(batch.copies)) > layout.max_num_seqs:
        raise InvariantError(
            f"step {batch.step} has {batch.num_tokens} tokens, {len(batch.rows)} rows and {len(batch.copies)} block "
            f"copies; a slot holds {layout.max_num_tokens}, {layout.max_num_seqs} and {layout.max_num_seqs}"
        )
    for row in batch.rows:
        end = row.first_new_block + len(row.new_blocks)
        if not (0 <= row.seat < layout.max_num_seqs and row.num_tokens and end <= layout.max_num_blocks):
            raise InvariantError(
                f"step {batch.step} has a row of {row.num_tokens} tokens and {end} blocks in seat {row.seat}; "
                f"there are {layout.max_num_seqs} seats of {layout.max_num_blocks} blocks"
            )


def _device_order(rows: Sequence[Row]) -> list[Row]:
    """Rows of one token first, by context length, so that those of similar length lie side by side; then the chunks."""
    decodes = [row for row in rows if row.num_tokens == 1]
    decodes.sort(key=lambda row: row.context_len)
    return decodes + [row for row in rows if row.num_tokens > 1]


def _put(words: Words, layout: SlotLayout, section: Section, values: Sequence[int] | Words) -> int:
    words[layout.where(section, len(values))] = values
    return len(values)


def _pack_tokens(rows: Sequence[Row], layout: SlotLayout, words: Words) -> None:
    _put(words, layout, Section.INPUT_IDS, _chain(row.token_ids for row in rows))
    _put(words, layout, Section.POSITIONS, _chain(range(row.start, row.context_len) for row in rows))
    _put(words, layout, Section.TOKEN_SEATS, _chain([row.seat] * row.num_tokens for row in rows))
    carry_seats = ([row.seat if row.carries else NO_CARRY] * row.num_tokens for row in rows)
    _put(words, layout, Section.CARRY_SEATS, _chain(carry_seats))
    _put(words, layout, Section.ROW_SEATS, [row.seat for row in rows])
    _put(words, layout, Section.CONTEXT_LENS, [row.context_len for row in rows])
    counts = [row.num_tokens for row in rows]
    _put(words, layout, Section.ROW_FIRST_TOKENS, list(accumulate(counts, initial=0))[:-1])
    words[layout.where(Section.ROW_NUM_TOKENS, layout.max_num_seqs)] = 0
    _put(words, layout, Section.ROW_NUM_TOKENS, counts)


def _chain(parts: Iterable[Iterable[int]]) -> list[int]:
    return [value for part in parts for value in part]


def _pack_samples(batch: Batch, rows: Sequence[Row], layout: SlotLayout, words: Words) -> list[SampleKind]:
    """Pack which rows sample, in the batch's order, and return their kinds."""
    last_tokens = {}
    token = -1
    for row in rows:
        token += row.num_tokens
        last_tokens[row.seat] = token
    sampled = batch.sampled_rows
    kinds = [_kind(row.sequence.request) for row in sampled]
    words[layout.where(Section.SAMPLE_TOKENS, layout.max_num_seqs)] = 0
    _put(words, layout, Section.SAMPLE_TOKENS, [last_tokens[row.seat] for row in sampled])
    _put(words, layout, Section.SAMPLE_SEATS, [row.seat for row in sampled])
    _put(words, layout, Section.SAMPLE_ORDER, sorted(range(len(kinds)), key=kinds.__getitem__))
    return kinds


def _kind(request: TokenRequest) -> SampleKind:
    if request.temperature <= 0:
        return SampleKind.GREEDY
    has_min_p = request.adjustments is not None and request.adjustments.min_p > 0
    return SampleKind.FILTERED if request.top_k > 0 or request.top_p < 1 or has_min_p else SampleKind.PLAIN


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


def _pack_changes(rows: Sequence[Row], layout: SlotLayout, words: Words) -> int:
    """Pack the block-table entries that the device's seats do not know yet; return how many."""
    entries: list[int] = []
    blocks: list[int] = []
    for row in rows:
        first = row.seat * layout.max_num_blocks + row.first_new_block
        entries += range(first, first + len(row.new_blocks))
        blocks += row.new_blocks
    where = layout.where_changes(len(blocks))
    words[where.start : where.stop : 2] = entries
    words[where.start + 1 : where.stop : 2] = blocks
    return len(blocks)
