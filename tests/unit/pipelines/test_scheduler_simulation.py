"""The scheduler under a model of the device's time: fair between files, thrifty with blocks, and quick at the end of a job."""

import random
from collections import Counter
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig import expect_nothing, token_request
from simulation import Simulation

from pipelines.core.prefill_budget import prefill_budget


def prompt(generator, length):
    return [generator.randrange(2, 50_000) for _ in range(length)]


def rollouts(num_tokens, generator):
    """The large file: one sequence a seat."""
    return [token_request(key, prompt(generator, 256), num_tokens, file=1) for key in range(32)]


def rollouts_with(small, *, num_tokens=1024, num_blocks=4_000, **options):
    """Run the large file, with requests of 16 tokens, a file each, dropped at the given steps."""
    generator = random.Random(1)
    simulation = Simulation(seqs=32, num_blocks=num_blocks, **options)
    simulation.at(0, rollouts(num_tokens, generator))
    for number, step in enumerate(small):
        simulation.at(step, [token_request(1000 + number, prompt(generator, 16), 16, file=2 + number)])
    return simulation.run()


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("num_blocks", [4_000, 500], ids=["seats are taken", "blocks are taken too"])
def test_a_small_file_behind_a_huge_one_is_done_within_20_steps(num_blocks, prefix_caching):
    """All seats belong to one file for thousands of steps; another one of a single request comes in the middle."""
    options = {"num_blocks": num_blocks, "prefix_caching": prefix_caching}
    alone = rollouts_with([], **options)
    both = rollouts_with([500], **options)
    assert both.finished_at[1000, 0] - 500 <= 20
    assert both.scheduler.num_displacements == 1
    assert both.seconds < 1.02 * alone.seconds


def test_many_small_files_cost_the_huge_one_little():
    """With a prefix cache a displaced sequence finds its blocks again; without one the credit bounds what is computed again."""
    steps = range(50, 1000, 50)
    alone = rollouts_with([])
    cached = rollouts_with(steps, prefix_caching=True)
    assert max(cached.finished_at[1000 + n, 0] - step for n, step in enumerate(steps)) <= 20
    assert cached.seconds < 1.02 * alone.seconds
    plain = rollouts_with(steps)
    again = plain.num_computed - plain.num_generated - (32 * 256 + len(steps) * 16)
    assert again <= 8192 + plain.num_steps * 256 / 64 + 1280, "first credit, what steps earn, and one overdraft"


def test_a_higher_priority_displaces_a_lower_one():
    generator = random.Random(1)
    simulation = Simulation(seqs=32, num_blocks=4_000)
    simulation.at(0, rollouts(600, generator))
    simulation.at(100, [token_request(1000, prompt(generator, 16), 16, file=1, priority=1)])
    simulation.run()
    assert simulation.finished_at[1000, 0] - 100 <= 20


def test_files_that_keep_to_their_shares_displace_nobody():
    generator = random.Random(1)
    simulation = Simulation(seqs=8, num_blocks=1_000)
    for file in (1, 2):
        simulation.at(0, [token_request(100 * file + n, prompt(generator, 64), 200, file=file) for n in range(40)])
    simulation.run()
    assert simulation.scheduler.num_displacements == 0


WORK = {
    "max_tokens known": lambda g: (None, max(4, int(g.lognormvariate(0, 0.6) * 213))),
    "all alike": lambda _: (None, 300),
    "lognormal": lambda g: (max(4, int(g.lognormvariate(0, 0.6) * 213)), 4096),
    "exponential": lambda g: (1 + int(g.expovariate(1 / 256)), 4096),
    "narrow": lambda g: (max(4, int(g.gauss(400, 60))), 2048),
}


def offline(kind, num_requests, generator):
    requests, lengths = [], {}
    for key in range(num_requests):
        length, max_tokens = WORK[kind](generator)
        prompt_len = max(4, int(generator.lognormvariate(0, 0.6) * 427))
        requests.append(token_request(key, prompt(generator, prompt_len), max_tokens, stop_token_ids=(1,)))
        if length is not None and length < max_tokens:
            lengths[key] = length
    return requests, lengths


@pytest.mark.parametrize("kind", WORK)
def test_admission_by_expected_length_fills_the_cache_and_hardly_ever_preempts(kind):
    """Blocks for about 90 of 256 seats: fewer than 1 % preemptions, and the cache in use at its limit for most of the job."""
    requests, lengths = offline(kind, 500, random.Random(0))
    simulation = Simulation(num_blocks=1200, output_len=lengths)
    simulation.at(0, requests)
    simulation.run()
    assert len(simulation.finished_at) == 500
    assert simulation.scheduler.num_preemptions < 5
    middle = simulation.used_share[len(simulation.used_share) // 10 : len(simulation.used_share) // 2]
    assert mean(middle) > 0.75


def test_longest_first_shortens_the_end_of_a_job():
    """Against the same requests one file each, which come in the order in which they were written."""
    requests, _ = offline("max_tokens known", 300, random.Random(0))
    ordered, as_written = Simulation(seqs=64), Simulation(seqs=64)
    ordered.at(0, requests)
    for key, request in enumerate(requests):
        as_written.at(0, [token_request(key, request.prompt_token_ids, request.max_tokens, file=key)])
    assert ordered.run().seconds < 0.97 * as_written.run().seconds


def test_chunks_are_large_while_few_decode_and_small_while_many_do():
    assert prefill_budget(8192, 0) == prefill_budget(8192, 127) == 8192
    assert prefill_budget(8192, 128) == prefill_budget(8192, 256) == 512
    assert prefill_budget(8192, 600) == 856
    assert prefill_budget(300, 256) == 300


def test_steps_are_filled_to_the_last_token_while_prompts_wait():
    generator = random.Random(0)
    simulation = Simulation(seqs=4, tokens=100, block_size=16, num_blocks=400)
    simulation.at(0, [token_request(key, prompt(generator, 333), 40) for key in range(4)])
    sizes = []
    launch = simulation._launch
    simulation._launch = lambda batch: (sizes.append(sum(len(row.token_ids) for row in batch.rows)), launch(batch))
    simulation.run()
    decodes = 9  # of the three sequences whose prompts were through before the last one's, a token a step
    assert sizes[: (4 * 333 + decodes) // 100] == [100] * ((4 * 333 + decodes) // 100)


def test_a_beginning_that_many_share_is_computed_once():
    """64 requests of one file begin with the same 200 tokens (three blocks of 64): they wait for the first one to commit."""
    generator = random.Random(0)
    shared = prompt(generator, 200)
    simulation = Simulation(prefix_caching=True, checks=True)
    simulation.at(0, [token_request(key, shared + prompt(generator, 20), 4) for key in range(64)])
    simulation.run()
    assert simulation.num_computed == 192 + 64 * (28 + 3)
    counts = simulation.scheduler.take_counts()
    assert (counts.prefix_query_tokens, counts.prefix_hit_tokens) == (64 * 220, 63 * 192)


def test_a_block_is_not_shared_before_the_step_that_fills_it_is_committed():
    generator = random.Random(0)
    shared = prompt(generator, 128)
    simulation = Simulation(prefix_caching=True)
    simulation.at(0, [token_request(1, [*shared, 5], 8), token_request(2, [*shared, 6], 8)])
    simulation.turn()
    assert [row.sequence.request.key for row in simulation._flying[0].rows] == [1]
    simulation.turn()
    assert simulation.scheduler.num_running == 1, "the first step is still in flight"
    simulation.run()
    assert simulation.admitted_at[2] == 3


def test_a_preempted_sequence_finds_its_blocks_again():
    generator = random.Random(0)
    requests = [token_request(key, prompt(generator, 100), 300) for key in range(6)]
    computed = {}
    for prefix_caching in (False, True):
        simulation = Simulation(num_blocks=60, block_size=16, prefix_caching=prefix_caching, checks=True)
        expect_nothing(simulation.scheduler)
        simulation.at(0, requests)
        computed[prefix_caching] = simulation.run().num_computed
        assert simulation.scheduler.num_preemptions > 0
        assert len(simulation.finished_at) == 6
    assert computed[True] < computed[False]


shapes = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 3), st.integers(0, 3), st.integers(0, 1))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_every_sequence_ends_while_others_keep_coming(data):
    """No starvation: one-request files come at every other step without end, of the same priority, and bring everything in."""
    made = data.draw(st.lists(shapes, min_size=1, max_size=8))
    requests = [
        token_request(key, range(7 * file, 7 * file + p), m, n=n, file=file, priority=priority)
        for key, (p, m, n, file, priority) in enumerate(made)
    ]
    seqs = data.draw(st.integers(1, 4))
    simulation = Simulation(
        seqs=seqs,
        tokens=data.draw(st.integers(seqs, 64)),
        block_size=4,
        num_blocks=data.draw(st.integers(20, 40)),
        prefix_caching=data.draw(st.booleans()),
        num_in_flight=data.draw(st.integers(1, 3)),
        checks=True,
    )
    if data.draw(st.booleans()):
        expect_nothing(simulation.scheduler)
    simulation.at(0, requests)
    rival = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 10)))
    expected = {(request.key, choice) for request in requests for choice in range(request.n)}
    for step in range(20_000):
        if step % 2 == 0 and simulation.scheduler.num_waiting < 12:
            priority = 1 if any(shape[4] for shape in made) and not _low_wait(simulation, requests) else 0
            key = 10_000 + step
            simulation.scheduler.add(
                token_request(key, range(key, key + rival[0]), rival[1], file=key, priority=priority)
            )
        simulation.turn()
        if expected <= simulation.finished_at.keys():
            return
    raise AssertionError(f"not finished: {sorted(expected - simulation.finished_at.keys())}")


def _low_wait(simulation, requests):
    """Whether all that is left is of the lower priority, which a higher one may starve."""
    return all(request.priority == 0 or (request.key, 0) in simulation.finished_at for request in requests)


def test_sequences_that_started_together_name_their_blocks_in_different_steps(monkeypatch):
    """16 that reach the end of each block in one step: a commit names at most one block; all have names in the end."""
    generator = random.Random(0)
    simulation = Simulation(seqs=16, block_size=16, prefix_caching=True, checks=True)
    simulation.at(0, [token_request(key, prompt(generator, 16), 100) for key in range(16)])
    name = simulation.blocks.name
    named_at = []
    monkeypatch.setattr(simulation.blocks, "name", lambda *args: (named_at.append(simulation.num_steps), name(*args)))
    simulation.run()
    steps = Counter(named_at)
    first, last = min(steps), max(steps)
    assert len(named_at) == 16 * ((16 + 99) // 16)
    assert steps[first] == 16, "prompts are named at once"
    assert max(count for step, count in steps.items() if first < step < last) == 1


def test_a_preempted_sequence_has_its_full_blocks_named_first():
    """It may not have looked at its newest full block yet."""
    generator = random.Random(0)
    simulation = Simulation(seqs=6, block_size=16, num_blocks=100, prefix_caching=True, num_in_flight=1, checks=True)
    simulation.at(0, [token_request(key, prompt(generator, 16), 100) for key in range(6)])
    simulation.run(34)
    simulation.turn()
    newest = simulation.scheduler._roster.running[-1]
    num_full = newest.num_computed // 16
    assert not newest.num_holds
    assert newest.num_named_blocks < num_full
    simulation.scheduler._roster.preempt(newest)
    simulation.run()
    assert simulation.scheduler.take_counts().prefix_hit_tokens == 16 * num_full
