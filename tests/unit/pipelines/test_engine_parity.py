"""The whole engine, real runner under real scheduler and loop, says what transformers' generate says, however it is scheduled."""

import random
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rig import Rig, token_request
from runner_models import cpu_config
from tiny_models import config_of, generate, prompts, save_model, scores_of

from pipelines.config import BatchConfig, Dtype, EngineConfig, KvCacheConfig, ModelConfig, Schedule
from pipelines.core.request import Adjustments
from pipelines.errors import OutOfMemoryError
from pipelines.models.attention import PagedAttention
from pipelines.runtime.cpu_stream import CpuStream
from pipelines.runtime.model_runner import ModelRunner
from pipelines.runtime.streams import StreamSet

LENGTHS = [3, 17, 9, 30, 1, 12, 44, 5, 2, 28, 7, 61, 11, 4, 19, 8, 33, 6, 15, 23]
PROMPTS = prompts(LENGTHS)
NUM_TOKENS = 14
LIMITS = {"num_seqs": 20, "num_tokens": 400, "num_blocks": 512, "block_size": 4}


ADJUSTMENTS = st.none() | st.builds(
    Adjustments,
    repetition_penalty=st.sampled_from([1.0, 1.6]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, -1.0]),
    min_p=st.sampled_from([0.0, 0.3]),
)


class Delays:
    """Sleeps before each operation of a stream, as long as the test says; called in the stream's thread."""

    def __init__(self):
        self.longest_s = {"h2d": 0.0, "compute": 0.0, "d2h": 0.0}
        self._random = random.Random(0)
        self._lock = threading.Lock()

    def of(self, name):
        def delay():
            if self.longest_s[name]:
                with self._lock:
                    seconds = self._random.random() * self.longest_s[name]
                time.sleep(seconds)

        return delay


class TightRunner(ModelRunner):
    """Runs out of memory when it is told to, as a GPU does: in the host's thread, with a part of the step launched."""

    fails = None  # called with the plan of a step and a point of its launch

    def launch_forward(self, slot):
        self._point(slot, "staged")
        if self.fails is not None and self.fails(slot.plan, "half"):
            self._streams.compute.wait(slot.h2d_done)
            self._streams.compute.launch(self._half, slot, slot.plan)
            raise OutOfMemoryError("half of the step is launched")
        super().launch_forward(slot)
        self._point(slot, "forward")

    def _half(self, slot, plan):
        """The first layer's pages alone are written."""
        self._seats.apply(slot.device, plan)
        if plan.num_copies:
            sources, targets = self._seats.copies(slot.device, plan)
            self._cache.layers[0].copy_blocks(sources, targets)
        inputs = self._seats.attention_inputs(slot.device, plan, self.block_size)
        tokens = self._seats.input_ids(slot.device, plan)
        layers = [self._cache.layers[0], *(_copy_of(layer) for layer in self._cache.layers[1:])]
        self._model.forward(
            tokens, inputs.positions, self._seats.sample_tokens(slot.device, plan), PagedAttention(inputs), layers
        )

    def _point(self, slot, point):
        if self.fails is not None and self.fails(slot.plan, point):
            raise OutOfMemoryError(f"step {slot.plan.step} at {point}")


def _copy_of(layer):
    return type(layer)(keys=layer.keys.clone(), values=layer.values.clone())


@pytest.fixture(scope="module")
def delays():
    return Delays()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(config_of("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(folder):
    return [tuple(generate(folder, prompt, NUM_TOKENS)) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def runner(folder, delays):
    """One runner for all schedules."""
    streams = StreamSet(*(CpuStream(name, 1, delays.of(name)) for name in ("h2d", "compute", "d2h")))
    made = TightRunner(cpu_config(folder, **LIMITS), folder, streams)
    yield made
    made.close()


def plain_runner(folder):
    return ModelRunner(cpu_config(folder, **LIMITS), folder)


@pytest.fixture(scope="module")
def sliding_runner(tmp_path_factory):
    made = plain_runner(save_model(config_of("mistral"), tmp_path_factory.mktemp("mistral")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def long_runner(tmp_path_factory):
    config = config_of("qwen2")
    config.max_position_embeddings = 512
    made = plain_runner(save_model(config, tmp_path_factory.mktemp("qwen2")))
    yield made
    made.close()


def tokens_of(rig):
    return {key: output.token_ids for (key, _), output in rig.run().items()}


def without_logprobs(finished):
    return {key: replace(output, logprobs=()) for key, output in finished.items()}


def all_requests():
    return [token_request(key, prompt, NUM_TOKENS) for key, prompt in enumerate(PROMPTS)]


SCHEDULES = {
    "together": {"seqs": 20, "tokens": 400, "num_blocks": 512},
    "few seats": {"seqs": 3, "tokens": 64, "num_blocks": 512},
    "chunked prefill": {"seqs": 7, "tokens": 8, "num_blocks": 512},
    "preemption": {"seqs": 12, "tokens": 80, "num_blocks": 40, "looks_ahead": False},
}


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("limits", SCHEDULES.values(), ids=SCHEDULES)
def test_twenty_prompts_give_the_tokens_of_generate(runner, expected, limits, schedule):
    rig = Rig(runner, [all_requests()], schedule, **limits)
    assert tokens_of(rig) == dict(enumerate(expected))
    assert bool(rig.scheduler.num_preemptions) == (limits["num_blocks"] == 40)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_prompts_one_by_one_give_the_tokens_of_generate(runner, expected, schedule):
    for key, request in enumerate(all_requests()):
        assert tokens_of(Rig(runner, [[request]], schedule, tokens=400, num_blocks=64)) == {key: expected[key]}


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize(
    "limits",
    [{"seqs": 20, "tokens": 400, "num_blocks": 512}, {"seqs": 8, "tokens": 24, "num_blocks": 64, "looks_ahead": False}],
    ids=["together", "preemption and chunks"],
)
def test_a_prefix_cache_changes_no_token(runner, sliding_runner, family, schedule, limits):
    """Prompts that share beginnings of 0 to 60 tokens, mistral's over a sliding window of 7, each twice and n = 2 for some."""
    beginning = prompts([60])[0]
    made = [
        token_request(number, beginning[: 6 * (number // 2)] + PROMPTS[number // 2], NUM_TOKENS, n=1 + (number == 3))
        for number in range(22)
    ]
    outputs = {}
    for prefix_caching in (False, True):
        rig = Rig(
            {"llama": runner, "mistral": sliding_runner}[family],
            [made],
            schedule,
            prefix_caching=prefix_caching,
            **limits,
        )
        outputs[prefix_caching] = rig.run()
        assert (rig.scheduler._admission.num_hit_tokens > 0) == prefix_caching
    assert {key: output.token_ids for key, output in outputs[True].items()} == {
        key: output.token_ids for key, output in outputs[False].items()
    }
    assert sum(output.num_cached_tokens for output in outputs[True].values()) > 500


def test_a_shared_beginning_of_200_tokens_is_computed_once(long_runner):
    """Eight prompts that differ behind it: all but the first find it in the cache, and say so in their outputs."""
    beginning = prompts([200])[0]
    made = [token_request(number, beginning + PROMPTS[number], 4) for number in range(8)]
    plain = tokens_of(Rig(long_runner, [made], seqs=8, tokens=400, num_blocks=512))
    outputs = Rig(long_runner, [made], seqs=8, tokens=400, num_blocks=512, prefix_caching=True).run()
    assert {key: output.token_ids for (key, _), output in outputs.items()} == plain
    assert sorted(output.num_cached_tokens for output in outputs.values()) == [0] + [200] * 7


def test_choices_share_the_prompt_and_are_each_the_tokens_of_generate(runner, expected):
    """Copy-on-write: the choices of a greedy request are all alike, though each writes into a copy of the prompt's last block."""
    request = token_request(3, PROMPTS[3], NUM_TOKENS, n=4)
    outputs = Rig(runner, [[request]], seqs=6, tokens=64, num_blocks=128).run()
    assert {output.token_ids for output in outputs.values()} == {expected[3]}
    assert len(outputs) == 4


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("limits", SCHEDULES.values(), ids=SCHEDULES)
def test_log_probabilities_are_those_of_the_models_own_scores(runner, folder, expected, limits, schedule):
    """Of each token and of the likeliest: not of what a temperature or a bias makes of them, and each row its own number."""
    counts = [None, 0, 1, 5]
    biased = Adjustments(logit_bias=((expected[3][0], -100.0),))
    requests = [
        token_request(key, prompt, NUM_TOKENS, temperature=0.7 * (key % 2), num_logprobs=counts[key % 4])
        for key, prompt in enumerate(PROMPTS[:12])
    ]
    requests[3] = token_request(3, PROMPTS[3], NUM_TOKENS, num_logprobs=5, adjustments=biased)
    finished = Rig(runner, [requests], schedule, **limits).run()
    assert expected[3][0] not in finished[3, 0].token_ids
    for key, request in enumerate(requests):
        output = finished[key, 0]
        if request.num_logprobs is None:
            assert output.logprobs == ()
            continue
        wanted = scores_of(folder, [*PROMPTS[key], *output.token_ids])[len(PROMPTS[key]) - 1 : -1].log_softmax(-1)
        assert len(output.logprobs) == len(output.token_ids) == NUM_TOKENS
        for token, told, row in zip(output.token_ids, output.logprobs, wanted, strict=True):
            assert told.logprob == pytest.approx(row[token].item(), abs=1e-4)
            highest = row.topk(request.num_logprobs).values.tolist()
            assert [logprob for _, logprob in told.top] == pytest.approx(highest, abs=1e-4)
            assert [row[other].item() for other, _ in told.top] == pytest.approx(highest, abs=1e-4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_async_equals_sync_under_delays(runner, delays, data):
    """Random arrivals, lengths, sampling, limits and delays of each stream: the tokens are those of the synchronous run."""
    made = []
    for key in range(data.draw(st.integers(1, 8), "requests")):
        prompt = data.draw(st.sampled_from(PROMPTS))
        changes = {"temperature": data.draw(st.sampled_from([0.0, 0.9])), "n": data.draw(st.integers(1, 2))}
        changes["adjustments"] = data.draw(ADJUSTMENTS)
        changes["num_logprobs"] = data.draw(st.sampled_from([None, None, 0, 2]))
        made.append(token_request(key, prompt, data.draw(st.integers(1, 8)), **changes))
    seqs = data.draw(st.integers(1, 6))
    limits = {"seqs": seqs, "tokens": data.draw(st.integers(seqs, 60)), "num_blocks": data.draw(st.integers(32, 80))}
    waves = data.draw(st.integers(1, 3))
    arrivals = [made[wave::waves] for wave in range(waves)]
    for name in delays.longest_s:
        delays.longest_s[name] = data.draw(st.sampled_from([0.0, 0.0, 0.002]))
    try:
        overlapped = Rig(runner, arrivals, Schedule.ASYNC, **limits).run()
    finally:
        delays.longest_s = dict.fromkeys(delays.longest_s, 0.0)
    in_turn = Rig(runner, [made], Schedule.SYNC, **limits).run()
    assert without_logprobs(overlapped) == without_logprobs(in_turn)
    for key, output in overlapped.items():
        told, others = output.logprobs, in_turn[key].logprobs
        assert len(told) == len(others)
        # As far as arithmetic goes: other steps have other batches.
        assert [one.logprob for one in told] == pytest.approx([one.logprob for one in others], abs=1e-4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_steps_that_run_out_of_memory_change_no_token(runner, delays, data):
    """Launches that end half way, at random, under delays, with choices that share blocks: the tokens stay the same."""
    made = []
    for key in range(data.draw(st.integers(1, 8), "requests")):
        changes = {"temperature": data.draw(st.sampled_from([0.0, 0.9])), "n": data.draw(st.integers(1, 3))}
        changes["adjustments"] = data.draw(ADJUSTMENTS)
        made.append(token_request(key, data.draw(st.sampled_from(PROMPTS)), data.draw(st.integers(1, 8)), **changes))
    seqs = data.draw(st.integers(1, 8))
    limits = {
        "seqs": seqs,
        "tokens": data.draw(st.integers(max(seqs, 6), 60)),
        "num_blocks": data.draw(st.integers(32, 80)),
    }
    expected = Rig(runner, [made], Schedule.SYNC, **limits).run()
    generator = random.Random(data.draw(st.integers(0, 999)))
    runner.fails = lambda plan, _point: plan.num_tokens > 4 and generator.random() < 0.2
    delays.longest_s["compute"] = delays.longest_s["h2d"] = data.draw(st.sampled_from([0.0, 0.002]))
    try:
        rig = Rig(runner, [made[0::2], made[1::2]], data.draw(st.sampled_from(Schedule)), **limits)
        assert rig.run() == expected
    finally:
        runner.fails = None
        delays.longest_s = dict.fromkeys(delays.longest_s, 0.0)


class AllowOne:
    """A mask that allows one token, which depends on those before."""

    failure = ""

    def fork(self):
        return self

    def allowed(self, output_token_ids):
        token = (50 + 3 * sum(output_token_ids) + len(output_token_ids)) % 190
        return (1 << token).to_bytes(28, "little")


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_mask_goes_through_the_late_path(runner, expected, schedule):
    rig = Rig(runner, [], schedule, tokens=400, num_blocks=512)
    rig.engine.submit(token_request(0, PROMPTS[0], 6), AllowOne())
    rig.engine.submit(token_request(1, PROMPTS[1], NUM_TOKENS))
    outputs = {key: output.token_ids for (key, _), output in rig.run().items()}
    tokens = []
    for _ in range(6):
        tokens.append((50 + 3 * sum(tokens) + len(tokens)) % 190)
    assert outputs == {0: tuple(tokens), 1: expected[1]}


@pytest.mark.model
def test_the_embedded_model_says_what_generate_says(embedded_model):
    """Real weights and twenty real prompts, together, asynchronous, in chunks.

    Answers are greedy where each token is the best behind those before it, which one look at a whole answer tells for all.
    """
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_model)
    texts = [f"{question} {'very ' * number}" for number, question in enumerate(_QUESTIONS * 4)]
    asked = [tokenizer(text)["input_ids"] for text in texts]
    config = EngineConfig(
        name="test",
        model=ModelConfig(str(embedded_model), device="cpu", dtype=Dtype.FLOAT32),
        batch=BatchConfig(max_num_seqs=20, max_num_batched_tokens=96),
        kv_cache=KvCacheConfig(block_size=16, max_tokens=8192),
    )
    runner = ModelRunner(config, embedded_model)
    try:
        made = [token_request(key, prompt, 8) for key, prompt in enumerate(asked)]
        got = tokens_of(Rig(runner, [made], seqs=20, tokens=96, num_blocks=512, block_size=16))
    finally:
        runner.close()
    for key, prompt in enumerate(asked):
        assert len(got[key]) == 8
        best = scores_of(embedded_model, [*prompt, *got[key]])[len(prompt) - 1 : -1].argmax(-1)
        assert got[key] == tuple(best.tolist())
    assert got[0] == tuple(generate(embedded_model, asked[0], 8))  # which looks at its own tokens one by one


_QUESTIONS = [
    "The capital of France is",
    "def factorial(n):",
    "Water boils at",
    "Once upon a time",
    "My favourite colour",
]
