"""The fake runner keeps the same promises to the loop as the real one: each test runs on both."""

from itertools import pairwise

import pytest
from rig import Rig, token_request
from runner_models import cpu_config
from tiny_models import config_of, prompts, save_model

from pipelines.config import BatchConfig, Schedule
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import Cancel, FinishReason, StopSequence, TokenDelta
from pipelines.core.scheduler import Scheduler
from pipelines.fake import FakeOptions, FakeRunner
from pipelines.runtime.model_runner import ModelRunner

PROMPTS = prompts([3, 17, 9, 1, 12, 6])
LIMITS = {"seqs": 6, "tokens": 64, "num_blocks": 128}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = save_model(config_of("llama"), tmp_path_factory.mktemp("llama"))
    runner = ModelRunner(cpu_config(folder, num_seqs=6, num_tokens=64, num_blocks=128, block_size=4), folder)
    yield runner
    runner.close()


@pytest.fixture(params=["fake", "real"])
def runner(request):
    if request.param == "fake":
        return FakeRunner(FakeOptions(step_ms=0.1), alphabet=range(2, 199), eos_id=1)
    return request.getfixturevalue("real")


def sampled(key, prompt_of=None, **changes):
    prompt = PROMPTS[key % len(PROMPTS)] if prompt_of is None else PROMPTS[prompt_of]
    return token_request(key, prompt, changes.pop("max_tokens", 6), temperature=1.0, **changes)


def launched(runner, requests):
    """One step of these requests in the first slot; returns (slot, batch)."""
    scheduler = Scheduler(BatchConfig(6, 64), BlockManager(128, 4))
    for request in requests:
        scheduler.add(request)
    batch = scheduler.schedule()
    slot = runner.slots[0]
    slot.stage(batch)
    runner.launch_forward(slot)
    return slot, batch


def test_a_step_gives_one_token_a_sampling_row_in_their_order(runner):
    together = Rig(runner, [[sampled(key, max_tokens=1) for key in range(6)]], Schedule.SYNC, **LIMITS).run()
    slot, batch = launched(runner, [sampled(key, max_tokens=1) for key in range(6)])
    runner.launch_sample(slot, {})
    tokens = slot.read_tokens()
    assert tokens == [together[row.sequence.request.key, 0].token_ids[0] for row in batch.sampled_rows]
    assert all(isinstance(token, int) for token in tokens)


def test_tokens_do_not_depend_on_company_or_schedule(runner):
    requests = [sampled(key) for key in range(6)]
    alone = {}
    for request in requests:
        alone |= Rig(runner, [[request]], Schedule.SYNC, **LIMITS).run()
    assert Rig(runner, [requests], Schedule.ASYNC, **LIMITS).run() == alone
    assert Rig(runner, [requests[:2], requests[2:]], seqs=3, tokens=8, num_blocks=128).run() == alone


def test_tokens_depend_on_the_seed(runner):
    outputs = [Rig(runner, [[sampled(1, 1, seed=seed)]], **LIMITS).run()[1, 0].token_ids for seed in (1, 2, 1)]
    assert outputs[0] == outputs[2] != outputs[1]


def test_choices_have_seeds_of_their_own(runner):
    outputs = Rig(runner, [[sampled(1, 1, n=3)]], **LIMITS).run()
    assert len({output.token_ids for output in outputs.values()}) == 3


def test_a_mask_decides_among_the_sampling_rows_by_their_index(runner):
    slot, batch = launched(runner, [sampled(0), sampled(1), sampled(2)])
    runner.launch_sample(slot, {1: (1 << 77).to_bytes(28, "little")})
    tokens = slot.read_tokens()
    assert tokens[1] == 77
    assert len(tokens) == len(batch.rows) == 3


def test_stop_tokens_and_deltas_reach_the_text_side(runner):
    request = sampled(2, wants_deltas=True, max_tokens=8)
    free = Rig(runner, [[request]], **LIMITS).run()[2, 0].token_ids
    stop = free[4]
    rig = Rig(runner, [[sampled(2, wants_deltas=True, max_tokens=8, stop_token_ids=(stop,))]], **LIMITS)
    output = rig.run()[2, 0]
    length = free.index(stop) + 1
    assert (output.token_ids, output.finish_reason, output.ended_by_token) == (free[:length], FinishReason.STOP, True)
    assert [o.token_ids[0] for o in rig.source.outputs if isinstance(o, TokenDelta)] == list(free[: length - 1])


def test_cancel_and_stop_in_flight_leave_nothing_behind(runner):
    arrivals = [
        [sampled(0, max_tokens=40), sampled(1, max_tokens=40), sampled(2)],
        [],
        [],
        [],
        [Cancel((0,)), StopSequence(1, 0)],
    ]
    assert list(Rig(runner, arrivals, **LIMITS).run()) == [(2, 0)]


def test_step_times_come_in_order_and_do_not_overlap(runner):
    runner.take_step_times()
    rig = Rig(runner, [[sampled(key) for key in range(3)]], **LIMITS)
    times = []
    take = runner.take_step_times
    runner.take_step_times = lambda: times.extend(take()) or []
    try:
        rig.run()
        runner.take_step_times()
    finally:
        del runner.take_step_times
    assert [time.step for time in times] == list(range(len(times)))
    assert len(times) >= 6
    for earlier, later in pairwise(times):
        assert earlier.end_s <= later.start_s
    assert all(time.start_s <= time.end_s and time.is_proven for time in times)


def test_a_step_given_up_leaves_its_slot_to_another(runner):
    """Half launched, then abandoned: what is staged next gives the tokens that it gives alone."""
    slot, batch = launched(runner, [sampled(0), sampled(1)])
    expected = _tokens_of(runner, slot, batch)
    slot, _ = launched(runner, [sampled(4), sampled(2), sampled(3)])
    runner.abandon(slot)
    slot, batch = launched(runner, [sampled(0), sampled(1)])
    assert _tokens_of(runner, slot, batch) == expected


def _tokens_of(runner, slot, batch):
    assert len(batch.rows) == 2
    runner.launch_sample(slot, {})
    return slot.read_tokens()
