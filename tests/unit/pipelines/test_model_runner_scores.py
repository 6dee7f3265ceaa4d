"""Scores that a step masks or adjusts are those that transformers would, and what they need is waited for."""

from pathlib import Path

import pytest
import torch
import transformers
from runner_models import NUM_TOKENS, PROMPTS, Folders, engine_config, without_wait
from step_driver import StepDriver, make_sequence
from tiny_models import VOCAB_SIZE

from pipelines.core.request import Adjustments
from pipelines.core.sequence import Sequence
from pipelines.errors import EngineError
from pipelines.runtime.cpu_stream import CpuStream
from pipelines.runtime.model_runner import ModelRunner
from pipelines.runtime.slot import DeviceSlot
from pipelines.runtime.streams import H2D_DONE, MASKS_DONE


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
