"""A packed step says on the device exactly what the batch says, in the device's order of rows."""

import struct
from dataclasses import fields

import numpy as np
import pytest
from step_driver import Sampling, make_sequence

from pipelines.core.batch import Batch, Row, SteadyRows
from pipelines.core.request import Adjustments
from pipelines.core.sequence import SampleKind
from pipelines.errors import InvariantError
from pipelines.runtime.plan import NO_CARRY, Count, Section, SlotLayout, Words, pack

LAYOUT = SlotLayout(max_num_tokens=32, max_num_seqs=4, max_num_blocks=6)


def row(
    seat: int,
    start: int,
    token_ids: tuple[int, ...],
    *,
    sampling: Sampling | None = None,
    samples: bool = True,
    carries: bool = False,
    opens_seat: bool = False,
    first_new_block: int = 0,
    new_blocks: tuple[int, ...] = (),
) -> Row:
    sequence = make_sequence(100 + seat, [1], 5, sampling or Sampling())
    return Row(sequence, seat, start, token_ids, carries, samples, opens_seat, first_new_block, new_blocks)


def words_of() -> Words:
    return np.full(LAYOUT.num_words, 77_777, dtype=np.int32)


MIXED = Batch(
    step=9,
    others=(
        row(
            2,
            0,
            (11, 12, 13),
            samples=False,
            opens_seat=True,
            new_blocks=(8, 9),
            sampling=Sampling(0.5, 7, 0.25, 2**40 + 5),
        ),
        row(0, 20, (0,), carries=True, sampling=Sampling(1.0, 0, 1.0, 1)),
        row(3, 4, (21, 22), opens_seat=True, first_new_block=1, new_blocks=(5,), sampling=Sampling(0.7, 3)),
        row(1, 6, (31,)),
    ),
    copies=((4, 5), (1, 2)),
)


def test_steady_rows_are_packed_as_the_rows_that_they_stand_for() -> None:
    """Decodes, of which the first one's token is known, in front of a chunk and of a decode with a new block."""
    others = (
        row(3, 2, (21, 22), opens_seat=True, new_blocks=(5,), sampling=Sampling(0.7, 3)),
        row(2, 8, (0,), carries=True, new_blocks=(9,)),
    )
    decodes = (row(1, 20, (44,)), row(0, 6, (0,), carries=True, sampling=Sampling(1.0)))
    steady = SteadyRows([each.sequence for each in decodes], [1, 0], [20, 6], {0: 44})
    batches = Batch(4, (*decodes, *others), ()), Batch(4, others, (), steady)
    packed = [words_of() for _ in batches]
    plans = [pack(batch, LAYOUT, words) for batch, words in zip(batches, packed, strict=True)]
    assert steady.rows() == list(decodes)
    assert np.array_equal(*packed)
    for field in fields(plans[0]):
        if field.name != "batch":
            assert np.array_equal(getattr(plans[0], field.name), getattr(plans[1], field.name)), field.name
    for name in ("num_tokens", "num_rows", "num_sampled", "context_lens", "sampled_rows", "opening_rows"):
        assert getattr(batches[0], name) == getattr(batches[1], name), name


def test_rows_of_one_token_come_first_by_length_then_chunks() -> None:
    """Tokens, positions, seats and carry-over of a mixed step."""
    words = words_of()
    plan = pack(MIXED, LAYOUT, words)

    def read(section: Section, count: int) -> list[int]:
        return words[LAYOUT.where(section, count)].tolist()

    assert read(Section.INPUT_IDS, 7) == [31, 0, 11, 12, 13, 21, 22]
    assert read(Section.POSITIONS, 7) == [6, 20, 0, 1, 2, 4, 5]
    assert read(Section.TOKEN_SEATS, 7) == [1, 0, 2, 2, 2, 3, 3]
    assert read(Section.CARRY_SEATS, 7) == [NO_CARRY, 0, *[NO_CARRY] * 5]
    assert read(Section.ROW_SEATS, 4) == [1, 0, 2, 3]
    assert read(Section.CONTEXT_LENS, 4) == [7, 21, 3, 6]
    assert (plan.step, plan.num_tokens, plan.num_rows) == (9, 7, 4)
    assert plan.attention.num_decodes == 2
    assert [(chunk.row, chunk.first_token, chunk.num_tokens, chunk.start) for chunk in plan.attention.chunks] == [
        (2, 2, 3, 0),
        (3, 5, 2, 4),
    ]


def test_tokens_come_back_in_the_batchs_order_and_are_sampled_by_kind() -> None:
    """The sampled rows keep their order; which of them the sampler takes first stands beside it."""
    words = words_of()
    plan = pack(MIXED, LAYOUT, words)
    assert plan.sampled_keys == (100, 103, 101)
    assert words[LAYOUT.where(Section.SAMPLE_SEATS, 3)].tolist() == [0, 3, 1]
    assert words[LAYOUT.where(Section.SAMPLE_TOKENS, 3)].tolist() == [1, 6, 0]
    assert words[LAYOUT.where(Section.SAMPLE_ORDER, 3)].tolist() == [2, 0, 1]
    assert [plan.num_by_kind[kind] for kind in SampleKind] == [1, 1, 1]


def test_openings_keep_every_bit_of_temperature_top_p_and_seed() -> None:
    """Floats travel as their bits, seeds as two halves."""
    words = words_of()
    plan = pack(MIXED, LAYOUT, words)
    assert plan.num_openings == 2
    bits = [int(words[LAYOUT.where(section, 1)][0]) for section in (Section.TEMPERATURES, Section.TOP_PS)]
    assert struct.unpack("<2f", struct.pack("<2i", *bits)) == (0.5, 0.25)
    low, high = (int(words[LAYOUT.where(section, 1)][0]) for section in (Section.SEED_LOWS, Section.SEED_HIGHS))
    assert (high << 32) | (low & 0xFFFFFFFF) == 2**40 + 5
    assert words[LAYOUT.where(Section.OPENING_SEATS, 2)].tolist() == [2, 3]
    assert words[LAYOUT.where(Section.TOP_KS, 2)].tolist() == [7, 3]


def test_the_copy_takes_only_the_used_end_of_the_changes() -> None:
    """Block-table changes are (seat * width + index, block) pairs at the end of what is copied."""
    words = words_of()
    plan = pack(MIXED, LAYOUT, words)
    assert plan.num_changes == 3
    assert words[LAYOUT.where_changes(3)].reshape(-1, 2).tolist() == [[12, 8], [13, 9], [19, 5]]
    assert plan.num_words == LAYOUT.where_changes(3).stop < LAYOUT.num_words
    assert (words[plan.num_words :] == 77_777).all()
    assert plan.num_copies == 2
    assert words[LAYOUT.where(Section.COPY_SOURCES, 2)].tolist() == [4, 1]
    assert words[LAYOUT.where(Section.COPY_TARGETS, 2)].tolist() == [5, 2]


def test_a_plain_step_says_so_on_the_device() -> None:
    """The forward pass samples as many rows as the device is told: of a step that is not plain none. A slot's number stays."""
    greedy = Batch(0, (row(0, 3, (1,)), row(1, 0, (5, 6), samples=False), row(2, 9, (4,))), ())
    mixed = Batch(1, (*greedy.others, row(3, 2, (1,), sampling=Sampling(0.5, 0))), ())
    biased = make_sequence(9, [1], 5, adjustments=Adjustments(logit_bias=((3, 1.0),)))
    special = Batch(2, (*greedy.others, row(3, 2, (1,))._replace(sequence=biased)), ())
    chunk = Batch(3, (row(1, 0, (5, 6), samples=False),), ())
    for batch, is_plain, num_greedy in ((greedy, True, 2), (mixed, False, 0), (special, False, 0), (chunk, True, 0)):
        words = words_of()
        assert pack(batch, LAYOUT, words).is_plain is is_plain
        assert words[[Count.GREEDY, Count.SLOT]].tolist() == [num_greedy, 77_777]


def test_a_full_step_fits_and_sections_do_not_overlap() -> None:
    """Each section's words are its own, up to the capacities."""
    ends = LAYOUT.count(Count.TOKENS).stop
    assert ends >= len(Count)
    for section in Section:
        size = LAYOUT.max_num_tokens if section <= Section.TOKEN_SEATS else LAYOUT.max_num_seqs
        where = LAYOUT.where(section, size)
        assert where.start == ends
        ends = where.stop
    assert LAYOUT.where_changes(0).start == ends
    full = tuple(row(seat, 0, (5,) * 8, opens_seat=True, new_blocks=tuple(range(6))) for seat in range(4))
    plan = pack(Batch(0, full, ((0, 1),) * 4), LAYOUT, words_of())
    assert (plan.num_tokens, plan.num_changes, plan.num_words) == (32, 24, LAYOUT.num_words)


@pytest.mark.parametrize(
    "rows",
    [
        (row(0, 0, (1,) * 33),),
        (row(4, 0, (1,)),),
        (row(-1, 0, (1,)),),
        (row(0, 0, ()),),
        (row(0, 0, (1,), first_new_block=5, new_blocks=(1, 2)),),
        tuple(row(seat % 4, 0, (1,)) for seat in range(5)),
    ],
)
def test_a_step_beyond_the_layout_is_refused(rows: tuple[Row, ...]) -> None:
    """Too many tokens or rows, a seat or block entry that does not exist: never written over something else."""
    words = words_of()
    with pytest.raises(InvariantError, match="step 3"):
        pack(Batch(3, rows, ()), LAYOUT, words)
    assert (words == 77_777).all()
