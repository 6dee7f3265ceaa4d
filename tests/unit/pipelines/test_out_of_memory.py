"""A step for which there is no memory is taken back and run in smaller ones; nothing is lost and no token changes."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_fake import POINTS, PagedFake
from rig import Rig, token_request
from test_engine_loop import OnlyToken

from pipelines.config import BatchConfig, Schedule
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import Cancel
from pipelines.core.scheduler import Scheduler
from pipelines.core.step_budget import StepBudget
from pipelines.errors import OutOfMemoryError
from pipelines.fake import FakeOptions, FakeRunner

BLOCK = 4


class Parity:
    """A mask that allows half of the alphabet, by the tokens so far."""

    failure = ""

    def fork(self):
        return self

    def allowed(self, output_token_ids):
        first = 10 + sum(output_token_ids) % 2
        return sum(1 << token for token in range(first, 30, 2)).to_bytes(8, "little")


def often(share, seed):
    """Fail a share of the launches that can be made smaller, at points by chance."""
    generator = random.Random(seed)

    def fails(batch, point):
        del point
        return batch.num_tokens > BLOCK and generator.random() < share

    return fails


def made_of(shapes):
    return [
        token_request(
            key, range(100 + key % 3, 100 + key % 3 + length), most, n=n, priority=priority, file=file,
            stop_token_ids=(5,), wants_deltas=key % 2 == 0,
        )
        for key, (length, most, n, priority, file) in enumerate(shapes)
    ]  # fmt: skip


shapes = st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3), st.integers(0, 1), st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_launches_that_fail_anywhere_change_no_token(data):
    """Random requests of several files, limits and failures: choices, masks, preemption, cached prefixes, cancellations."""
    requests = made_of(data.draw(st.lists(shapes, min_size=1, max_size=8)))
    masked = data.draw(st.sets(st.sampled_from([request.key for request in requests])))
    cancelled = data.draw(st.sets(st.sampled_from([request.key for request in requests]), max_size=2))
    seqs = data.draw(st.integers(1, 6))
    limits = {
        "seqs": seqs,
        "tokens": data.draw(st.integers(max(seqs, BLOCK + 1), 48)),
        "num_blocks": data.draw(st.integers(12, 40)),
        "prefix_caching": data.draw(st.booleans()),
        "looks_ahead": data.draw(st.booleans()),
    }
    schedule, slots = data.draw(st.sampled_from(Schedule)), data.draw(st.integers(2, 3))
    fails = often(data.draw(st.sampled_from([0.02, 0.1, 0.3])), data.draw(st.integers(0, 999)))

    def run(cancels, limits, schedule, **runner):
        rig = Rig(PagedFake(eos_every=23, **runner), [[], [], [], cancels], schedule, **limits)
        for request in requests:
            rig.engine.submit(request, Parity() if request.key in masked else None)
        outputs = rig.run().items()
        return rig, {who: replace(output, num_cached_tokens=0) for who, output in outputs}

    _, expected = run([], {"seqs": 24, "tokens": 4096, "num_blocks": 4096}, Schedule.SYNC)
    rig, got = run([Cancel(tuple(cancelled))], limits, schedule, num_slots=slots, fails=fails)
    kept = {who: output for who, output in expected.items() if who[0] not in cancelled}
    assert {who: output for who, output in got.items() if who[0] not in cancelled} == kept
    assert all(expected[who] == got[who] for who in got)
    rig.engine._report()
    assert sum(stats.steps_taken_back for stats in rig.source.stats) == rig.runner.num_failures
    assert sum(len(stats.notices) for stats in rig.source.stats) >= rig.runner.num_failures


@pytest.mark.parametrize("point", POINTS)
def test_a_failure_at_each_point_is_made_good(point):
    """One failure, in a step of prompts, choices and carried tokens, after each part of the launch."""
    failed = set()

    def fails(batch, where):
        is_mixed = any(row.carries for row in batch.rows) and bool(batch.copies) and batch.num_tokens > BLOCK
        if where == point and is_mixed and not failed:
            failed.add(batch.step)
            return True
        return False

    requests = made_of([(6, 9, 1, 0, 0), (7, 6, 3, 0, 0), (11, 5, 1, 0, 0)])
    arrivals = [requests[:1], [], requests[1:]]
    limits = {"seqs": 6, "tokens": 14, "num_blocks": 60}
    expected = Rig(PagedFake(), arrivals, **limits).run()
    rig = Rig(PagedFake(fails=fails), arrivals, **limits)
    assert rig.run() == expected
    assert failed


def test_a_sampler_that_fails_late_takes_its_step_back():
    """The step waits for its masks, the older one is committed, then the sampler finds no memory."""
    asked = []

    def fails(batch, point):
        is_late = point == "sample" and batch.mask_awaits_tokens and batch.num_tokens > BLOCK
        asked.append(is_late)
        return is_late and asked.count(True) == 1

    def run(**options):
        rig = Rig(PagedFake(**options), [], seqs=8, tokens=32)
        rig.engine.submit(token_request(0, range(100, 103), 6), OnlyToken())
        for key in range(1, 7):
            rig.engine.submit(token_request(key, range(100, 100 + key), 8))
        return rig, rig.run()

    rig, got = run(fails=fails)
    assert rig.runner.num_failures == 1
    assert got == run()[1]


def test_a_late_step_taken_back_lets_go_of_what_was_cancelled_meanwhile():
    """The cancellation comes while the step waits for its masks, so the step alone still holds the sequence."""
    requests = [token_request(key, range(100, 102 + key), 8) for key in range(6)]
    rig = Rig(PagedFake(), [], seqs=8, tokens=32)
    rig.engine.submit(requests[0], OnlyToken())
    for request in requests[1:]:
        rig.engine.submit(request)
    rig.engine.turn()
    rig.engine.turn()  # the step that waits is launched
    rig.engine._take([Cancel((0, 3))])
    rig.runner.fails = lambda batch, point: point == "sample" and batch.step == 1 and not rig.runner.num_failures
    assert sorted(key for key, _ in rig.run()) == [1, 2, 4, 5]
    assert rig.runner.num_failures == 1


def test_a_copy_owed_to_a_cancelled_sequence_is_not_made():
    """Its target may be another's by then."""
    scheduler = Scheduler(BatchConfig(4, 16), BlockManager(8, BLOCK))
    scheduler.add(token_request(0, range(6), 9, n=2))
    scheduler.commit(scheduler.schedule(), [7])
    step = scheduler.schedule()
    assert len(step.copies) == 1
    scheduler.unschedule(step)
    scheduler.cancel(0)
    scheduler.add(token_request(1, range(12), 2))
    assert scheduler.schedule().copies == ()
    scheduler.check_integrity()


def test_a_copy_is_made_by_the_next_step_whoever_is_in_it():
    scheduler = Scheduler(BatchConfig(4, 16), BlockManager(8, BLOCK))
    scheduler.add(token_request(0, range(6), 9, n=2))
    scheduler.commit(scheduler.schedule(), [7])
    step = scheduler.schedule()
    scheduler.unschedule(step)
    scheduler.token_budget = 1
    again = scheduler.schedule()
    assert len(again.rows) == 1
    assert (again.step, again.copies) == (step.step, step.copies)


def test_what_cannot_be_made_smaller_ends_the_engine_with_the_reason():
    rig = Rig(PagedFake(fails=lambda _batch, point: point == "forward"), [made_of([(30, 5, 1, 0, 0)])], tokens=32)
    with pytest.raises(OutOfMemoryError, match="a step of 4 tokens cannot be made smaller: step 0 at forward"):
        rig.run()


def test_steps_become_smaller_are_told_of_and_grow_again():
    """Up to the largest that fits, with a notice for each that did not."""
    runner = FakeRunner(FakeOptions(memory=20), range(10, 30), 5)
    rig = Rig(runner, [made_of([(60, 600, 1, 0, 0)])], tokens=48, num_blocks=200)
    rig.run()
    rig.engine._report()
    notices = [notice for stats in rig.source.stats for notice in stats.notices]
    assert notices[0] == (
        "a step of 48 tokens for 1 sequence did not fit and runs again in steps of at most 24 tokens: "
        "model.path has room for 20 tokens"
    )
    assert notices[1].startswith("a step of 24 tokens")
    assert notices[-1] == "steps of 48 tokens are tried again"
    assert sum(stats.steps_taken_back for stats in rig.source.stats) == 2
    assert rig.scheduler.token_budget == 48


def test_a_budget_that_fails_again_waits_longer_and_forgets_in_the_end():
    budget = StepBudget(64, 8)

    def steps_until_full():
        for number in range(100_000):
            if budget.is_full:
                return number
            budget.note_good_step()
        raise AssertionError("it stayed small")

    assert budget.shrink(64)
    first = steps_until_full()
    assert budget.shrink(64)
    assert steps_until_full() == 2 * first
    for _ in range(10_000):
        budget.note_good_step()
    assert budget.shrink(64)
    assert steps_until_full() == first
    assert budget.shrink(20)
    assert budget.num_tokens == 10
    assert budget.shrink(10)
    assert budget.num_tokens == 8
    assert not budget.shrink(8)
