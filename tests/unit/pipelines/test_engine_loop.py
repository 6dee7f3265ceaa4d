"""The loop and the scheduler under the fake runner: every request ends once, with the same tokens, however it is scheduled."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig import Rig, token_request

from pipelines.config import Schedule
from pipelines.core.request import Cancel, FinishReason, Limits, StopSequence, TokenDelta
from pipelines.errors import InvariantError
from pipelines.fake import FakeOptions, FakeRunner

ALPHABET = range(10, 30)
EOS = 5


def request(key, prompt_len=5, max_tokens=6, **changes):
    return token_request(key, range(100, 100 + prompt_len), max_tokens, stop_token_ids=(EOS,), **changes)


LIMITS = {"num_blocks", "seqs", "tokens", "prefix_caching", "looks_ahead", "new_mask"}


def fake_rig(arrivals=(), schedule=Schedule.ASYNC, slots=2, **options):
    """An engine over the fake runner; options are limits of the rig and what the fake is told."""
    fake = {name: value for name, value in options.items() if name not in LIMITS}
    limits = {name: value for name, value in options.items() if name in LIMITS}
    return Rig(FakeRunner(FakeOptions(**fake), ALPHABET, EOS, slots), arrivals, schedule, **limits)


def expected_tokens(req, choice=0):
    """What the fake model says, computed alone."""
    alone = fake_rig([[req]], Schedule.SYNC, seqs=16, tokens=4096, num_blocks=4096, eos_every=17).run()
    return alone[req.key, choice]


requests = st.builds(
    lambda prompt_len, max_tokens, n, file, priority: (prompt_len, max_tokens, n, file, priority),
    st.integers(1, 30), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2), st.integers(0, 1),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_schedule_gives_each_request_the_tokens_it_has_alone(data):
    """Random arrivals, lengths, choices, budgets, slots and block counts.

    Preemption, chunking, copy-on-write and shared prefixes (each prompt is the beginning of the longest one) included.
    """
    shapes = data.draw(st.lists(requests, min_size=1, max_size=10))
    made = [
        request(key, p, m, n=n, file=f, priority=pr, wants_deltas=key % 2 == 0)
        for key, (p, m, n, f, pr) in enumerate(shapes)
    ]
    arrivals = [[req] if data.draw(st.booleans()) else [] for req in made]
    arrivals.append([req for req, came in zip(made, arrivals, strict=True) if not came])
    seqs = data.draw(st.integers(1, 5))
    rig = fake_rig(
        arrivals,
        data.draw(st.sampled_from(Schedule)),
        num_blocks=data.draw(st.integers(12, 30)),
        seqs=seqs,
        tokens=data.draw(st.integers(seqs, 40)),
        slots=data.draw(st.integers(2, 3)),
        eos_every=17,
        prefix_caching=data.draw(st.booleans()),
        looks_ahead=data.draw(st.booleans()),
    )
    finished = rig.run()
    assert sorted(finished) == sorted((r.key, c) for r in made for c in range(r.n))
    for req in made:
        for choice in range(req.n):
            output = finished[req.key, choice]
            assert output.num_cached_tokens < len(req.prompt_token_ids)
            assert replace(output, num_cached_tokens=0) == expected_tokens(req, choice)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_limits_that_change_at_any_turn_change_no_token(data):
    """Sync and async, fewer and more sequences and tokens a step, while steps are in flight: as each request has it alone."""
    seqs, tokens = 5, 24
    shapes = data.draw(st.lists(requests, min_size=2, max_size=10))
    made = [request(key, p, m, n=n, file=f, priority=pr) for key, (p, m, n, f, pr) in enumerate(shapes)]
    limits = st.builds(Limits, st.booleans(), st.integers(1, seqs), st.integers(seqs, tokens))
    arrivals = [[req, *data.draw(st.lists(limits, max_size=1))] for req in made]
    arrivals += data.draw(st.lists(st.lists(limits, max_size=1), max_size=40))
    rig = fake_rig(arrivals, num_blocks=30, seqs=seqs, tokens=tokens, eos_every=17)
    finished = rig.run()
    assert sorted(finished) == sorted((r.key, c) for r in made for c in range(r.n))
    for req in made:
        for choice in range(req.n):
            assert replace(finished[req.key, choice], num_cached_tokens=0) == expected_tokens(req, choice)


def test_limits_hold_from_the_next_step_on():
    """Steps in flight, sequences that run and tokens of a step are seen to follow the change."""
    rig = fake_rig([[request(key, 2, 40) for key in range(4)]], seqs=4)
    in_flight, running = [], []

    def turns(number):
        in_flight.clear(), running.clear()
        for _ in range(number):
            rig.engine.turn()
            rig.scheduler.check_integrity()
            in_flight.append(len(rig.engine._inflight))
            running.append(rig.scheduler.num_running)

    turns(10)
    assert (max(in_flight), max(running)) == (2, 4)
    rig.source.arrivals.append([Limits(is_async=False, max_num_seqs=2, max_num_batched_tokens=8)])
    turns(4)
    turns(10)
    assert (max(in_flight), running[-1]) == (1, 4)  # what runs goes on
    assert rig.scheduler.token_budget == 8
    rig.run()
    rig.source.arrivals.append([request(key, 2, 40) for key in range(10, 14)])
    turns(20)
    assert max(running) == 2
    rig.source.arrivals.append([Limits(is_async=True, max_num_seqs=3, max_num_batched_tokens=16)])
    turns(20)
    assert (max(in_flight), max(running)) == (2, 3)
    assert len(rig.run()) == 8


def test_more_sequences_than_seats_are_refused():
    rig = fake_rig([[Limits(is_async=True, max_num_seqs=5, max_num_batched_tokens=16)]], seqs=4)
    with pytest.raises(InvariantError, match="5 sequences were asked for, 4 have seats"):
        rig.engine.turn()


def test_deltas_and_the_final_output_agree():
    rig = fake_rig([[request(1, max_tokens=9, wants_deltas=True)]])
    output = rig.run()[1, 0]
    deltas = [t for o in rig.source.outputs if isinstance(o, TokenDelta) for t in o.token_ids]
    assert tuple(deltas) + output.token_ids[-1:] == output.token_ids


def test_a_shortage_of_blocks_preempts_and_everything_still_ends():
    rig = fake_rig([[request(key, 8, 16) for key in range(4)]], num_blocks=10, looks_ahead=False)
    assert len(rig.run()) == 4
    assert rig.scheduler.num_preemptions > 0


def test_a_long_prompt_is_computed_in_chunks_beside_decodes():
    rig = fake_rig([[request(0, 2, 20)], [request(1, 60, 2)]], tokens=8)
    steps = []
    launch = rig.runner.launch_forward
    rig.runner.launch_forward = lambda slot: (steps.append(slot.batch), launch(slot))
    rig.run()
    mixed = [batch for batch in steps if len(batch.rows) == 2]
    assert len(mixed) >= 7
    assert all(batch.num_tokens <= 8 for batch in steps)
    assert all(min(row.num_tokens for row in batch.rows) == 1 for batch in mixed), "the decode is never left out"


def test_async_launches_the_next_step_before_the_tokens_are_known():
    rig = fake_rig([[request(0, 3, 5)]])
    carried = []
    launch = rig.runner.launch_forward
    rig.runner.launch_forward = lambda slot: (carried.extend(row.carries for row in slot.batch.rows), launch(slot))
    rig.run()
    assert carried == [False, True, True, True, True]


def test_sync_keeps_one_step_in_flight():
    rig = fake_rig([[request(0, 3, 5)]], Schedule.SYNC)
    launch = rig.runner.launch_forward
    rig.runner.launch_forward = lambda slot: (_assert_none_carries(slot.batch), launch(slot))
    rig.run()


def _assert_none_carries(batch):
    assert not any(row.carries for row in batch.rows)


def test_a_cancelled_request_says_nothing_more_and_gives_everything_back():
    rig = fake_rig([[request(0, 5, 50, n=2), request(1, 5, 5)], [], [], [], [], [Cancel((0, 99))]])
    assert [key for key, _ in rig.run()] == [1]


def test_a_stop_string_found_late_ends_the_sequence_without_a_word():
    rig = fake_rig([[request(0, 5, 50, wants_deltas=True)], [], [], [], [StopSequence(0, 0)], [StopSequence(0, 0)]])
    assert rig.run() == {}
    assert sum(isinstance(o, TokenDelta) for o in rig.source.outputs) < 10


def test_end_of_sequence_stops_and_its_overrun_is_dropped():
    rig = fake_rig([[request(0, 5, 400)]], num_blocks=200, eos_every=20)
    output = rig.run()[0, 0]
    assert output.token_ids[-1] == EOS
    assert EOS not in output.token_ids[:-1]
    assert (output.finish_reason, output.ended_by_token) == (FinishReason.STOP, True)


def test_files_take_turns_and_priority_goes_first():
    """A turn is 512 tokens: five of the large file's requests of 103 tokens fit into what it gets in the first two."""
    big = [request(key, 100, 3, file=1) for key in range(20)]
    small = request(100, 100, 3, file=2)
    urgent = request(101, 4, 2, file=1, priority=5)
    rig = fake_rig([[*big, small, urgent]], seqs=1, tokens=100)
    rig.run()
    order = [o.key for o in rig.source.outputs]
    assert order.index(101) == 0
    assert order.index(100) <= 6


class OnlyToken:
    """A mask that allows one token, which depends on the tokens before: it has to be asked late."""

    failure = ""

    def __init__(self):
        self.asked = []

    def fork(self):
        return self

    def allowed(self, output_token_ids):
        self.asked.append(list(output_token_ids))
        token = 10 + len(output_token_ids)
        return (1 << token).to_bytes(8, "little")


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_mask_that_needs_the_last_token_is_bound_between_forward_and_sampler(schedule):
    """The late path: the forward pass is launched ahead, its sampler once the older tokens are known."""
    rig = fake_rig([], schedule)
    mask = OnlyToken()
    calls = []
    forward, sample = rig.runner.launch_forward, rig.runner.launch_sample
    rig.runner.launch_forward = lambda slot: (calls.append(("forward", slot.batch.step)), forward(slot))
    rig.runner.launch_sample = lambda slot, masks: (calls.append(("sample", slot.batch.step)), sample(slot, masks))
    rig.engine.submit(request(0, 3, 5), mask)
    rig.engine.submit(request(1, 3, 5))
    finished = rig.run()
    assert finished[0, 0].token_ids == (10, 11, 12, 13, 14)
    assert finished[1, 0].token_ids == expected_tokens(request(1, 3, 5)).token_ids
    assert mask.asked == [list(range(10, 10 + count)) for count in range(5)]
    if schedule is Schedule.ASYNC:
        assert calls[:4] == [("forward", 0), ("sample", 0), ("forward", 1), ("sample", 1)]
    assert [step for kind, step in calls if kind == "sample"] == sorted({step for _, step in calls})


class SumsToNine:
    """A mask by which a token is 10 to 19, the sum of the tokens' last digits at most 9, and at 9 the end alone may come."""

    def __init__(self, grammar):
        self.grammar = grammar
        self.failure = ""

    def fork(self):
        return SumsToNine(self.grammar)

    def allowed(self, output_token_ids):
        if self.grammar == "fails" and len(output_token_ids) == 2:
            self.failure = "too costly"
        left = 9 - sum(token - 10 for token in output_token_ids if token != EOS)
        words = 1 << EOS if self.failure or not left else sum(1 << 10 + digit for digit in range(1, left + 1))
        return words.to_bytes(8, "little")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_under_any_schedule_each_choice_follows_its_own_grammar(data):
    """Preempted or not, alone or beside others with grammars and without, each choice gets what it gets alone."""
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    made = [
        request(key, data.draw(st.integers(1, 12)), 12, n=n, grammar=data.draw(st.sampled_from(["sums", ""])))
        for key, n in enumerate(counts)
    ]
    limits = {"seqs": data.draw(st.integers(1, 4)), "tokens": 16, "num_blocks": data.draw(st.integers(8, 20))}
    finished = fake_rig(
        [made], data.draw(st.sampled_from(Schedule)), new_mask=SumsToNine, looks_ahead=False, **limits
    ).run()
    for req in made:
        alone = fake_rig([[req]], Schedule.SYNC, new_mask=SumsToNine, seqs=8, tokens=256, num_blocks=256).run()
        for choice in range(req.n):
            output = finished[req.key, choice]
            assert output.token_ids == alone[req.key, choice].token_ids
            if req.grammar:
                assert output.token_ids[-1] == EOS
                assert sum(token - 10 for token in output.token_ids[:-1]) == 9
                assert not output.failure


def test_a_grammar_that_fails_on_its_way_is_told_and_the_others_go_on():
    finished = fake_rig([[request(0, grammar="fails", max_tokens=20), request(1)]], new_mask=SumsToNine).run()
    assert (finished[0, 0].failure, finished[0, 0].token_ids[2:]) == ("too costly", (EOS,))
    assert finished[1, 0].token_ids == expected_tokens(request(1)).token_ids


def test_stats_add_up():
    rig = fake_rig([[request(key, 5, 6) for key in range(8)]], step_ms=0.2)
    rig.engine._report_every_s = 0.002
    rig.run()
    rig.engine._report()
    stats = rig.source.stats
    assert sum(s.generation_tokens for s in stats) == 8 * 6
    assert sum(s.prompt_tokens for s in stats) == 8 * 5
    assert sum(len(s.step_s) for s in stats) == sum(len(s.num_batched) for s in stats), "no step's time is left out"
    times = [s.device_time for s in stats]
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(times))
    busy = sum(t.busy_s for t in times)
    assert busy == pytest.approx(sum(len(s.step_s) for s in stats) * 0.2e-3)
    parts = sum(t.busy_s + t.unproven_s + t.empty_s + t.host_s + t.h2d_s for t in times)
    assert parts == pytest.approx(times[-1].end_s - times[0].start_s)
