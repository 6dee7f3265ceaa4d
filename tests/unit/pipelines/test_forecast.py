"""The forecast's cheap answers are those of the peak, and the peak is the most that is ever in use."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from rig import token_request

from pipelines.core.block_manager import BlockManager
from pipelines.core.forecast import Forecast, peak_blocks
from pipelines.core.output_lengths import OutputLengths
from pipelines.core.sequence import Sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 200

shapes = st.tuples(st.integers(1, 30), st.integers(1, 80), st.integers(0, 40), st.floats(0.0, 0.99))


def sequence_of(key, shape, lengths):
    """A sequence of so many prompt tokens, max_tokens and output tokens, and a quantile."""
    num_prompt, max_tokens, num_output, quantile = shape
    request = token_request(key, range(num_prompt), max_tokens)
    sequence = Sequence(request, 0, [*range(num_prompt), *range(min(num_output, max_tokens))])
    sequence.lengths, sequence.quantile = lengths, quantile
    return sequence


def start(sequence, blocks, forecast):
    blocks.make_writable(sequence.block_table, 0, sequence.num_tokens)
    forecast.note_seat(sequence)


@given(
    st.lists(shapes, max_size=8),
    st.lists(shapes, min_size=1, max_size=8),
    st.lists(st.integers(1, 60), max_size=50),
    st.floats(0.0, NUM_BLOCKS),
)
def test_what_fits_is_what_the_peak_says(running_shapes, coming_shapes, ends, limit):
    """One after the other is admitted in a step, however the answer was found; against the peak worked out anew each time."""
    blocks, lengths = BlockManager(NUM_BLOCKS, BLOCK_SIZE), OutputLengths()
    for length in ends:
        lengths.add_end(length, is_stop=True)
    forecast = Forecast(blocks)
    keys = count()
    running = [sequence_of(next(keys), shape, lengths) for shape in running_shapes]
    for sequence in running:
        start(sequence, blocks, forecast)
    forecast.start_anew()
    for shape in coming_shapes:
        candidate = sequence_of(next(keys), shape, lengths)
        needed = blocks.num_blocks_for(candidate.num_tokens)
        if needed > blocks.num_free:
            return
        holdings = [(forecast.remaining(each), float(len(each.block_table))) for each in running]
        holdings.append((forecast.remaining(candidate), float(needed)))
        expected = peak_blocks(blocks.num_used + needed, holdings, BLOCK_SIZE) <= limit
        assert forecast.fits(candidate, needed, running, limit) == expected
        if expected:
            start(candidate, blocks, forecast)
            forecast.note_admission(candidate)
            running.append(candidate)
            forecast.check_integrity(running)


def test_nobody_is_looked_at_where_even_max_tokens_of_all_fit():
    """The first of the cheap answers: what running sequences are expected to get is not asked for."""
    blocks, lengths = BlockManager(NUM_BLOCKS, BLOCK_SIZE), OutputLengths()
    forecast = Forecast(blocks)
    running = [sequence_of(key, (8, 16, 3, 0.5), lengths) for key in range(10)]
    for sequence in running:
        start(sequence, blocks, forecast)
    asked = []
    forecast.remaining = asked.append
    assert forecast.fits(sequence_of(10, (8, 16, 0, 0.5), lengths), 2, running, NUM_BLOCKS)
    assert asked == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=8), st.integers(0, 20))
def test_the_peak_is_the_most_in_use_of_every_later_time(holdings, num_others):
    """Against adding up what is in use at each of the times to come; blocks of one token, so that growth has no corners."""
    num_used = num_others + sum(own for _, own in holdings)
    in_use = [
        num_others + sum(own + now for remaining, own in holdings if remaining >= now)
        for now in range(1 + max([remaining for remaining, _ in holdings], default=0))
    ]
    peak = peak_blocks(num_used, [(float(remaining), float(own)) for remaining, own in holdings], 1)
    assert peak == max(in_use)


def test_a_sequence_in_anothers_place_may_not_make_a_shortage_worse():
    blocks, lengths = BlockManager(20, BLOCK_SIZE), OutputLengths()
    forecast = Forecast(blocks)
    running = [sequence_of(key, (8, 24, 4, 0.5), lengths) for key in range(3)]
    for sequence in running:
        start(sequence, blocks, forecast)
    small, large = (sequence_of(9, (num_prompt, 24, 0, 0.5), lengths) for num_prompt in (8, 40))
    assert forecast.fits_for(small, 2, running[0], running)
    assert not forecast.fits_for(large, 10, running[0], running)
