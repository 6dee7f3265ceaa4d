"""The runner's tokens are transformers' own, whatever shares a step, and every event it waits for is needed."""

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from step_driver import Sampling, StepDriver, make_sequence
from tiny_models import VOCAB_SIZE, config_of, generate, prompts, save_model

from pipelines.config import (
    BatchConfig,
    EngineConfig,
    Implementation,
    KvCacheConfig,
    ModelConfig,
    StreamKind,
    StreamsConfig,
)
from pipelines.core.batch import Batch
from pipelines.core.request import Adjustments
from pipelines.core.sequence import Sequence
from pipelines.errors import EngineError, InvariantError, ModelError
from pipelines.runtime.cpu_stream import CpuEvent, CpuStream
from pipelines.runtime.model_runner import ModelRunner, resolve_device
from pipelines.runtime.slot import DeviceSlot
from pipelines.runtime.streams import COMPUTE_DONE, D2H_DONE, H2D_DONE, MASKS_DONE, Event, StreamSet

FAMILIES = ["llama", "qwen2", "mistral", "gemma3"]
PROMPTS = prompts([3, 17, 9, 30, 1, 12])
NUM_TOKENS = 16


def engine_config(
    folder: Path, implementation: Implementation = Implementation.TRANSFORMERS, **streams: StreamKind
) -> EngineConfig:
    return EngineConfig(
        name="test",
        model=ModelConfig(str(folder), device="cpu", implementation=implementation),
        batch=BatchConfig(max_num_seqs=8, max_num_batched_tokens=96),
        streams=StreamsConfig(**streams),
        kv_cache=KvCacheConfig(block_size=4),
        num_threads=1,
    )


class Folders:
    """Models saved once, with the tokens that transformers generates for `PROMPTS`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, tuple[Path, list[list[int]]]] = {}

    def get(self, family: str) -> tuple[Path, list[list[int]]]:
        if family not in self._made:
            folder = save_model(config_of(family), self._root / family, seed=len(self._made))
            self._made[family] = folder, [generate(folder, prompt, NUM_TOKENS) for prompt in PROMPTS]
        return self._made[family]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("models"))


SERVED = [(family, Implementation.TRANSFORMERS) for family in FAMILIES]
SERVED += [(family, Implementation.NATIVE) for family in ("llama", "qwen2", "mistral")]


@pytest.fixture(scope="module", params=SERVED, ids=lambda served: f"{served[0]}-{served[1]}")
def served(request: pytest.FixtureRequest, folders: Folders) -> Iterator[tuple[ModelRunner, list[list[int]]]]:
    family, implementation = request.param
    folder, expected = folders.get(family)
    runner = ModelRunner(engine_config(folder, implementation), folder)
    yield runner, expected
    runner.close()


@pytest.fixture(scope="module")
def llama(folders: Folders) -> Iterator[ModelRunner]:
    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder)
    yield runner
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


class ForgottenEvent(CpuEvent):
    """An event that nobody waits for."""

    def wait(self) -> None:
        """Leave the wait out."""


class ForgetfulStream(CpuStream):
    """A stream whose events of one name are not waited for, neither by the host nor by other streams."""

    def __init__(self, name: str, forgotten: str, delay_s: float) -> None:
        super().__init__(name, before_each=lambda: time.sleep(delay_s))
        self._forgotten = forgotten

    def record(self, name: str) -> Event:
        event = super().record(name)
        return ForgottenEvent(name) if name == self._forgotten else event


def without_wait(forgotten: str, slow: str) -> StreamSet:
    """Return streams that leave one wait out, with a delay in the stream whose work it waits for."""
    return StreamSet.build(
        StreamsConfig(), lambda name: ForgetfulStream(name, forgotten, 0.01 if name == slow else 0.0)
    )


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


class EveryThird:
    """A grammar that allows, after each token, only tokens of the next remainder modulo 3."""

    failure = ""

    def fork(self) -> "EveryThird":
        return self

    def allowed(self, output_token_ids: list[int]) -> bytes:
        """See `TokenMask`."""
        remainder = len(output_token_ids) % 3
        bits = sum(1 << token for token in range(VOCAB_SIZE) if token % 3 == remainder)
        return bits.to_bytes(4 * -(-VOCAB_SIZE // 32), "little")


def masked_sequences(count: int) -> list[Sequence]:
    return [
        make_sequence(key, prompt, NUM_TOKENS, mask=EveryThird() if key < count else None)
        for key, prompt in enumerate(PROMPTS)
    ]


def generate_masked(folder: Path, prompt: list[int], num_tokens: int) -> list[int]:
    """Return greedy tokens under `EveryThird`, each by a forward pass of transformers' own over the whole text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = list(prompt)
    with torch.inference_mode():
        for index in range(num_tokens):
            scores = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            scores[torch.arange(VOCAB_SIZE) % 3 != index % 3] = float("-inf")
            ids.append(int(scores.argmax()))
    return ids[len(prompt) :]


def test_masks_bound_late_cut_the_tokens_of_their_rows_alone(
    folders: Folders, llama: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward first, sampler when the token before is known: masked rows obey, rows without a mask are as ever.

    Here the sampler is launched only when the device has run dry, which must not count as busy.
    """
    folder, expected = folders.get("llama")
    llama.take_step_times()
    late: list[int] = []
    launch_sample = llama.launch_sample

    def launch_behind_the_forward_pass(slot: DeviceSlot, masks: dict[int, bytes]) -> None:
        for stretch in slot.stretches:
            stretch.done.wait()
            late.append(slot.plan.step)
        launch_sample(slot, masks)

    monkeypatch.setattr(llama, "launch_sample", launch_behind_the_forward_pass)
    tokens = StepDriver(llama, chunk=8).run_sequences(masked_sequences(3))
    assert tokens[:3] == [generate_masked(folder, prompt, NUM_TOKENS) for prompt in PROMPTS[:3]]
    assert tokens[3:] == expected[3:]
    assert tokens[:3] != expected[:3]
    times = llama.take_step_times()
    assert [step.step for step in times if not step.is_proven] == late
    assert late
    assert late[0] > 0  # prefill chunks wait for no mask


ADJUSTED = [
    Adjustments(repetition_penalty=1.4),
    Adjustments(frequency_penalty=1.1, presence_penalty=0.4),
    None,
    Adjustments(presence_penalty=-1.5, repetition_penalty=0.7, logit_bias=((3, 2.5), (7, -100.0))),
    Adjustments(logit_bias=((11, 100.0),)),
    Adjustments(min_tokens=9),
]


def adjusted_sequences() -> list[Sequence]:
    sequences = []
    for key, (prompt, adjustments) in enumerate(zip(PROMPTS, ADJUSTED, strict=True)):
        sequence = make_sequence(key, prompt, NUM_TOKENS, adjustments=adjustments)
        if adjustments is not None and adjustments.min_tokens:
            sequence.stop_token_ids = tuple(range(0, VOCAB_SIZE, 2))
        sequences.append(sequence)
    return sequences


def generate_adjusted(folder: Path, sequence: Sequence) -> list[int]:
    """Return greedy tokens under a sequence's adjustments, each by a forward pass of transformers' own over the whole text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = sequence.request.adjustments or Adjustments()
    prompt, answer = sequence.token_ids[: sequence.num_prompt_tokens], list[int]()
    with torch.inference_mode():
        while len(answer) < NUM_TOKENS:
            scores = model(torch.tensor([prompt + answer]), use_cache=False).logits[0, -1]
            for token in set(prompt + answer):
                score = scores[token]
                scores[token] = score / asked.repetition_penalty if score > 0 else score * asked.repetition_penalty
            for token in set(answer):
                scores[token] -= asked.frequency_penalty * answer.count(token) + asked.presence_penalty
            for token, bias in asked.logit_bias:
                scores[token] += bias
            if len(answer) < asked.min_tokens:
                scores[list(sequence.stop_token_ids)] = float("-inf")
            answer.append(int(scores.argmax()))
    return answer


@pytest.mark.parametrize("chunk", [1000, 4])
@pytest.mark.parametrize("num_in_flight", [1, 2])
def test_scores_are_adjusted_by_the_tokens_so_far(
    folders: Folders, llama: ModelRunner, chunk: int, num_in_flight: int
) -> None:
    """Also by the newest, which the host does not know yet; the same twice, so that no count outlives its sequence."""
    folder, unadjusted = folders.get("llama")
    expected = [generate_adjusted(folder, sequence) for sequence in adjusted_sequences()]
    assert expected[2] == unadjusted[2]
    assert all(
        ours != theirs
        for ours, theirs in zip(expected[:2] + expected[3:], unadjusted[:2] + unadjusted[3:], strict=True)
    )
    for _ in range(2):
        assert StepDriver(llama, chunk, num_in_flight=num_in_flight).run_sequences(adjusted_sequences()) == expected


def test_leaving_out_the_wait_for_the_inputs_changes_adjusted_tokens(folders: Folders, llama: ModelRunner) -> None:
    """What a step carries for adjusted rows comes with its inputs, and is waited for with them."""
    expected = StepDriver(llama).run_sequences(adjusted_sequences())
    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder, without_wait(H2D_DONE, "h2d"))
    try:
        tokens = StepDriver(runner).run_sequences(adjusted_sequences())
    except (EngineError, RuntimeError):
        tokens = []
    assert tokens != expected
    runner.close()


def test_leaving_out_the_wait_for_the_masks_gives_wrong_tokens(folders: Folders, llama: ModelRunner) -> None:
    """The masks' copy is waited for too."""
    expected = StepDriver(llama).run_sequences(masked_sequences(6))
    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder, without_wait(MASKS_DONE, "h2d"))
    try:
        tokens = StepDriver(runner).run_sequences(masked_sequences(6))
    except EngineError:  # a mask not there yet allows no token
        tokens = []
    assert tokens != expected
    runner.close()


def test_a_mask_of_the_wrong_size_is_an_error_that_says_so(llama: ModelRunner) -> None:
    """Never read past its end."""
    with pytest.raises(EngineError, match="a token mask has 3 bytes, expected 28"):
        llama.slots[0].masks.stage({0: b"abc"}, CpuStream("h2d"))


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
    assert llama.detail.startswith("LlamaForCausalLM on cpu in float32, 1 threads")


@pytest.mark.parametrize("name", ["tpu7", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    """By its name, with what is expected."""
    with pytest.raises(ModelError, match=name):
        resolve_device(name)
