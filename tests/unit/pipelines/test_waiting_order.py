"""Who is admitted next: by priority, by turns of tokens between files, and within a file the longest answers first."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from rig import token_request

from pipelines.core.output_lengths import OutputLengths
from pipelines.core.prefix_cache import extend_names
from pipelines.core.request import FinishReason
from pipelines.core.sequence import Sequence
from pipelines.core.waiting import WaitingQueue

keys = count()


def sequence_of(prompt_len=4, max_tokens=16, file=0, priority=0, prompt=None):
    tokens = prompt or [next(keys)] * prompt_len
    request = token_request(next(keys), tokens, max_tokens, file=file, priority=priority)
    sequence = Sequence(request, 0, list(request.prompt_token_ids))
    extend_names(sequence.block_names, sequence.token_ids, 4)
    return sequence


def queue_of(sequences):
    queue = WaitingQueue()
    for sequence in sequences:
        queue.open(sequence)
        queue.add(sequence)
    return queue


def drained(queue, may_start=lambda _: True):
    order = []
    while (head := queue.head(may_start)) is not None:
        assert queue.head(may_start) is head, "looking changes nothing"
        queue.take(head)
        order.append(head)
    queue.check_integrity([])
    return order


def test_a_higher_priority_goes_first():
    low, high = sequence_of(priority=0), sequence_of(priority=3)
    assert drained(queue_of([low, high])) == [high, low]


def test_files_get_the_same_share_of_tokens_whatever_the_size_of_their_requests():
    large = [sequence_of(400, 100, file=1) for _ in range(200)]
    small = [sequence_of(20, 5, file=2) for _ in range(4000)]
    order = drained(queue_of([*large, *small]))
    tokens = {1: 0.0, 2: 0.0}
    lengths = OutputLengths()
    for sequence in order:
        tokens[sequence.request.file] += sequence.num_tokens + lengths.expected(sequence.request.max_tokens)
        if sum(tokens.values()) < 150_000:
            assert abs(tokens[1] - tokens[2]) < 512 + 2 * 500


def test_a_file_that_was_alone_owes_nothing_to_one_that_comes():
    long = [sequence_of(400, 100, file=1) for _ in range(40)]
    queue = queue_of(long)
    for _ in range(20):
        queue.take(queue.head(lambda _: True))
    late = [sequence_of(400, 100, file=2) for _ in range(20)]
    for sequence in late:
        queue.open(sequence)
        queue.add(sequence)
    files = [sequence.request.file for sequence in drained(queue)[:20]]
    assert 8 <= files.count(1) <= 12


def test_longer_answers_go_first_within_a_file():
    sequences = [sequence_of(max_tokens=length) for length in (8, 4000, 20, 1000, 150)]
    order = [sequence.request.max_tokens for sequence in drained(queue_of(sequences))]
    assert order == [4000, 1000, 150, 20, 8]


def test_answers_of_about_one_length_go_longest_first_where_no_prompts_begin_alike():
    """The end of a job is as short as it can be: nothing but a shared beginning is worth a change of this order."""
    sequences = [sequence_of(max_tokens=length) for length in (300, 510, 257, 400, 333)]
    order = [sequence.request.max_tokens for sequence in drained(queue_of(sequences))]
    assert order == [510, 400, 333, 300, 257]


def test_prompts_that_begin_alike_stand_together_among_answers_of_one_length():
    groups = [[7, 7, 7, 7, number, 1] if number % 2 else [9, 9, 9, 9, number, 1] for number in range(8)]
    order = drained(queue_of([sequence_of(prompt=prompt) for prompt in groups]))
    assert [sequence.token_ids[0] for sequence in order] == [9] * 4 + [7] * 4


def test_none_is_passed_over_by_more_than_a_window_of_longer_ones():
    """However many longer ones keep coming: a window of 1,024 is emptied before the next one opens."""
    short = sequence_of(max_tokens=1)
    queue = queue_of([short])
    for taken in range(2000):
        for _ in range(2):
            longer = sequence_of(max_tokens=5000)
            queue.open(longer)
            queue.add(longer)
        head = queue.head(lambda _: True)
        queue.take(head)
        if head is short:
            assert taken < 1024
            return
    raise AssertionError("it was never admitted")


def test_preempted_sequences_go_first_within_their_file_and_are_not_charged_again():
    first, second = sequence_of(file=1), sequence_of(file=1)
    queue = queue_of([first, second])
    queue.take(first)
    first.num_cached_tokens = 0
    queue.resume(first)
    assert drained(queue) == [first, second]


def test_those_that_may_not_start_yet_are_passed_over():
    one, other, third = sequence_of(file=1), sequence_of(file=1), sequence_of(file=2)
    queue = queue_of([one, other, third])
    assert queue.head(lambda sequence: sequence is other) is other
    assert queue.head(lambda sequence: sequence is third) is third
    assert queue.head(lambda _: False) is None


@given(st.data())
def test_every_waiting_sequence_is_admitted_while_others_keep_coming(data):
    """No starvation: whatever else comes, files and lengths at random, each of the first ones is admitted in bounded time."""
    shapes = st.tuples(st.integers(1, 60), st.integers(1, 300), st.integers(0, 3))
    first = [sequence_of(p, m, file=f) for p, m, f in data.draw(st.lists(shapes, min_size=1, max_size=12))]
    rivals = data.draw(st.lists(shapes, min_size=1, max_size=6))
    queue = queue_of(first)
    left = set(first)
    for turn in range(6000):
        p, m, f = rivals[turn % len(rivals)]
        rival = sequence_of(p, m, file=f)
        queue.open(rival)
        queue.add(rival)
        head = queue.head(lambda _: True)
        queue.take(head)
        left.discard(head)
        if not left:
            return
    raise AssertionError(f"{len(left)} were never admitted")


def test_a_file_is_forgotten_with_its_last_sequence():
    sequence = sequence_of(file=5)
    queue = queue_of([sequence])
    queue.take(sequence)
    sequence.finish_reason = FinishReason.STOP
    queue.close(sequence)
    queue.forget_if_idle(sequence)
    assert queue.num_files(0) == 0


def test_lengths_are_the_models_own_where_answers_stop_and_max_tokens_where_nothing_else_ends_them():
    stopping, endless = OutputLengths(), OutputLengths()
    for number in range(200):
        stopping.add_tokens(100 + number)
        stopping.add_end(100 + number, is_stop=True)
        endless.add_tokens(50)
        endless.add_end(50, is_stop=False)
    assert 190 < stopping.mean < 210
    assert 0 < stopping.remaining(250, 10_000, 0.5) < 50, "one that has got to 250 ends before 300"
    assert [stopping.remaining(0, 10_000, quantile) for quantile in (0.0, 0.5, 0.99)] == [100, 200, 298]
    assert stopping.remaining(0, 40, 0.5) == 40
    assert endless.remaining(0, 77, 0.0) == 77, "those before it would have gone on"
