"""The runner's tokens are transformers' own, whatever shares a step, and every event it waits for is needed."""

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_models import FAMILIES, NUM_TOKENS, PROMPTS, Folders, engine_config, without_wait
from step_driver import Sampling, StepDriver, make_sequence
from tiny_models import VOCAB_SIZE

from pipelines.config import (
    Implementation,
    StreamKind,
    StreamsConfig,
)
from pipelines.core.batch import Batch
from pipelines.errors import EngineError, InvariantError
from pipelines.runtime.cpu_stream import CpuStream
from pipelines.runtime.model_runner import ModelRunner
from pipelines.runtime.streams import COMPUTE_DONE, D2H_DONE, H2D_DONE, StreamSet

SERVED = [(family, Implementation.TRANSFORMERS) for family in FAMILIES]
SERVED += [(family, Implementation.NATIVE) for family in ("llama", "qwen2", "mistral")]


@pytest.fixture(scope="module", params=SERVED, ids=lambda served: f"{served[0]}-{served[1]}")
def served(request: pytest.FixtureRequest, folders: Folders) -> Iterator[tuple[ModelRunner, list[list[int]]]]:
    family, implementation = request.param
    folder, expected = folders.get(family)
    runner = ModelRunner(engine_config(folder, implementation), folder)
    yield runner, expected
    runner.close()


def test_the_expected_tokens_tell_models_and_prompts_apart(folders: Folders) -> None:
    """The comparison means something: answers differ between prompts and vary within one."""
    answers = [tuple(tokens) for family in FAMILIES for tokens in folders.get(family)[1]]
    assert len(set(answers)) == len(answers)
    assert min(len(set(answer)) for answer in answers) > 3


@pytest.mark.parametrize("num_in_flight", [1, 2])
@pytest.mark.parametrize("chunk", [1000, 4, 1])
@pytest.mark.parametrize("moves_blocks", [False, True])
def test_greedy_tokens_equal_generate(
    served: tuple[ModelRunner, list[list[int]]], num_in_flight: int, chunk: int, moves_blocks: bool
) -> None:
    """Prompts of different lengths in one batch, carried over on the device; chunked; with a block copied every step."""
    runner, expected = served
    driver = StepDriver(runner, chunk, moves_blocks, num_in_flight)
    assert driver.run(PROMPTS, NUM_TOKENS) == expected


def test_one_by_one_equals_together(served: tuple[ModelRunner, list[list[int]]]) -> None:
    """A sequence alone in its seat, the next one in the same seat after it."""
    runner, expected = served
    assert [StepDriver(runner).run([prompt], NUM_TOKENS)[0] for prompt in PROMPTS] == expected


@pytest.mark.parametrize("h2d", StreamKind)
@pytest.mark.parametrize("d2h", StreamKind)
def test_copies_may_share_the_compute_stream(folders: Folders, h2d: StreamKind, d2h: StreamKind) -> None:
    """All placements of the copies give the same tokens."""
    folder, expected = folders.get("llama")
    runner = ModelRunner(engine_config(folder, h2d=h2d, d2h=d2h), folder)
    assert StepDriver(runner).run(PROMPTS, NUM_TOKENS) == expected
    runner.close()


@given(seed=st.integers(0, 2**32), longest_s=st.tuples(*[st.sampled_from([0.0, 0.002, 0.006])] * 3))
@settings(max_examples=10, deadline=None)
def test_delays_in_any_stream_change_no_token(
    folders: Folders, seed: int, longest_s: tuple[float, float, float]
) -> None:
    """Random pauses before each piece of work in each stream's thread."""
    folder, expected = folders.get("mistral")
    chance = random.Random(seed)
    longest = dict(zip(("h2d", "compute", "d2h"), longest_s, strict=True))

    def make(name: str) -> CpuStream:
        return CpuStream(name, before_each=lambda: time.sleep(chance.uniform(0, longest[name])))

    runner = ModelRunner(engine_config(folder), folder, StreamSet.build(StreamsConfig(), make))
    assert StepDriver(runner, chunk=7).run(PROMPTS, NUM_TOKENS) == expected
    runner.close()


@pytest.mark.parametrize(
    ("forgotten", "slow"), [(H2D_DONE, "h2d"), (COMPUTE_DONE, "compute"), (D2H_DONE, "d2h"), ("none", "compute")]
)
def test_leaving_out_one_wait_gives_wrong_tokens(folders: Folders, forgotten: str, slow: str) -> None:
    """Each event is needed, and the tests would notice if one were not waited for; with all waits in, all is well."""
    folder, expected = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder, without_wait(forgotten, slow))
    try:
        tokens = StepDriver(runner).run(PROMPTS, NUM_TOKENS)
    except EngineError:
        tokens = []
    assert (tokens == expected) is (forgotten == "none")
    runner.close()


def test_sampled_tokens_are_the_same_alone_and_together(llama: ModelRunner) -> None:
    """Temperature, top-k, top-p and seed go with the row, not with the batch; another seed gives other tokens."""
    samplings = [
        Sampling(),
        Sampling(0.8, seed=3),
        Sampling(1.0, top_k=20, seed=4),
        Sampling(3.0, top_p=0.9, seed=2**62 + 1),
        Sampling(3.0, seed=6),
        Sampling(3.0, seed=7),
    ]
    prompt = [PROMPTS[2]] * len(samplings)
    together = StepDriver(llama).run(prompt, NUM_TOKENS, samplings)
    alone = [StepDriver(llama, chunk=5).run(prompt[:1], NUM_TOKENS, [sampling])[0] for sampling in samplings]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == len(samplings)


def test_step_times_are_in_order_and_within_the_run(llama: ModelRunner) -> None:
    """Each step's inputs come before its start and its start before its end; steps do not overlap; all are proven."""
    llama.take_step_times()
    began_s = time.monotonic()
    StepDriver(llama).run(PROMPTS, NUM_TOKENS)
    ended_s = time.monotonic()
    times = llama.take_step_times()
    assert [step.step for step in times] == list(range(NUM_TOKENS))
    assert began_s <= times[0].start_s
    assert times[-1].end_s <= ended_s
    for step in times:
        assert step.inputs_s <= step.start_s < step.end_s
        assert step.is_proven
    assert all(first.end_s <= second.start_s for first, second in pairwise(times))
    assert llama.take_step_times() == []


def test_host_launches_return_while_the_device_works(folders: Folders) -> None:
    """The compute thread is held up; the host still stages and launches two steps."""
    folder, expected = folders.get("llama")
    streams = StreamSet.build(StreamsConfig(), CpuStream)
    runner = ModelRunner(engine_config(folder), folder, streams)
    release = threading.Event()
    streams.compute.launch(release.wait)
    sequence = make_sequence(0, PROMPTS[0], 2)
    driver = StepDriver(runner)
    for _ in range(2):
        copies: list[tuple[int, int]] = []
        driver._launch(Batch(driver._num_steps, (driver._row(sequence, 0, [5, 6, 7], copies),), ()))
        driver._num_steps += 1
    assert not runner.slots[0]._d2h_done.is_done
    release.set()
    assert [slot.read_tokens()[0] for slot in runner.slots] == expected[0][:2]
    runner.close()


def test_scores_that_are_not_finite_fail_the_step_by_name(folders: Folders) -> None:
    """The request at fault is named; its neighbour's tokens are not given out as if nothing were."""
    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder)

    def poison() -> None:
        block = int(runner._seats.block_tables[1, 0])
        runner._cache.layers[0].values[block].fill_(float("nan"))

    driver = StepDriver(runner)
    sequences = [make_sequence(key, PROMPTS[key], 6) for key in range(2)]
    spare = [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14]]
    for step in range(2):
        rows = tuple(driver._row(sequence, seat, spare[seat], []) for seat, sequence in enumerate(sequences))
        driver._launch(Batch(step, rows, ()))
        runner._streams.compute.launch(poison)
    driver._commit()
    with pytest.raises(EngineError, match=r"step 1, request 1: the model's scores are not finite"):
        driver._commit()
    runner.close()


def test_a_failing_step_reaches_the_reader_and_hangs_nobody(folders: Folders) -> None:
    """An error in the compute thread comes out of read_tokens, of that step and of those behind it."""
    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder)

    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel")

    runner._model.forward = fail  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="a step failed on the compute stream: RuntimeError: no such kernel"):
        StepDriver(runner).run(PROMPTS, 3)
    for slot in runner.slots:
        with pytest.raises(EngineError, match="no such kernel"):
            slot.read_tokens()
    assert runner.take_step_times() == []
    runner.close()


def test_a_slot_used_out_of_turn_is_an_invariant_error(folders: Folders) -> None:
    """Launched before it is staged, sampled before its forward pass, read before its sampler."""
    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder)
    slot = runner.slots[0]
    with pytest.raises(InvariantError, match="before it was staged"):
        runner.launch_forward(slot)
    sequence = make_sequence(0, PROMPTS[0], 2)
    slot.stage(Batch(0, (StepDriver(runner)._row(sequence, 0, [5, 6, 7], []),), ()))
    with pytest.raises(InvariantError, match="before its forward pass"):
        runner.launch_sample(slot, {})
    runner.launch_forward(slot)
    with pytest.raises(InvariantError, match="sampler was not launched"):
        slot.read_tokens()
    runner.close()


def test_host_and_device_buffers_are_different_memory(llama: ModelRunner) -> None:
    """On a CPU too, or a missing wait would go unseen."""
    pointers = set()
    for slot in llama.slots:
        pointers |= {tensor.data_ptr() for tensor in (slot._host, slot._host_results, slot.device, slot.tokens)}
    assert len(pointers) == 4 * len(llama.slots)


def test_what_the_runner_says_of_itself(llama: ModelRunner) -> None:
    """What the engine's `Ready` record is made of."""
    assert (llama.context, llama.vocab_size, llama.block_size) == (128, VOCAB_SIZE, 4)
    assert llama.num_blocks == 8 * 128 // 4
    assert llama.model_name == "llama"
    assert llama.detail.startswith("LlamaForCausalLM on cpu in float32, 1 thread, ")
