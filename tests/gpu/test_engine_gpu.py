"""The whole engine on a GPU: async equals sync, graph equals eager, all equal transformers' generate; races shake out."""

import random
from itertools import pairwise

import pytest
import torch
from rig import Rig, token_request

from pipelines.config import (
    BatchConfig,
    CudaGraphsConfig,
    EngineConfig,
    GraphMode,
    KvCacheConfig,
    ModelConfig,
    Schedule,
)
from pipelines.core.request import Adjustments

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NUM_TOKENS = 14
LENGTHS = [3, 17, 9, 30, 1, 12, 44, 5, 2, 28, 7, 61, 11, 4, 19, 8, 33, 6, 15, 23]


@pytest.fixture(scope="module", autouse=True)
def _needs_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import transformers
    from tiny_models import save_model

    config = transformers.LlamaConfig(
        vocab_size=199, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=256, initializer_range=0.25, bos_token_id=1,
        eos_token_id=None, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    return save_model(config, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def prompts():
    from tiny_models import prompts

    return prompts(LENGTHS)


@pytest.fixture(scope="module")
def expected(folder, prompts):
    from tiny_models import generate

    return {key: tuple(generate(folder, prompt, NUM_TOKENS)) for key, prompt in enumerate(prompts)}


def make_runner(folder, *, graphs, streams=None, implementation="auto"):
    from pipelines.config import Implementation
    from pipelines.runtime.model_runner import ModelRunner

    config = EngineConfig(
        name="test",
        model=ModelConfig(str(folder), device="cuda", implementation=Implementation(implementation)),
        batch=BatchConfig(max_num_seqs=20, max_num_batched_tokens=400),
        cuda_graphs=CudaGraphsConfig(enabled=GraphMode.ON if graphs else GraphMode.OFF, max_tokens=64),
        kv_cache=KvCacheConfig(block_size=16, max_tokens=16 * 256),
    )
    return ModelRunner(config, folder, streams)


@pytest.fixture(scope="module", params=[True, False], ids=["graphs", "eager"])
def runner(request, folder):
    made = make_runner(folder, graphs=request.param)
    yield made
    made.close()


def tokens_of(rig):
    return {key: output.token_ids for (key, _), output in rig.run().items()}


def all_requests(prompts):
    return [token_request(key, prompt, NUM_TOKENS) for key, prompt in enumerate(prompts)]


SCHEDULES = {
    "together": {"seqs": 20, "tokens": 400, "num_blocks": 256, "block_size": 16},
    "few seats": {"seqs": 3, "tokens": 64, "num_blocks": 256, "block_size": 16},
    "chunked prefill": {"seqs": 7, "tokens": 8, "num_blocks": 256, "block_size": 16},
    "preemption": {"seqs": 12, "tokens": 80, "num_blocks": 16, "block_size": 16},
}


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("limits", SCHEDULES.values(), ids=SCHEDULES)
def test_the_tokens_are_those_of_generate(runner, prompts, expected, limits, schedule):
    rig = Rig(runner, [all_requests(prompts)], schedule, **limits)
    assert tokens_of(rig) == expected


def test_a_runner_is_whole_before_its_first_step(folder, prompts, expected, monkeypatch):
    """What it makes, it makes in the default stream, which is far behind here, and which no stream of a step waits for."""
    from pipelines.runtime import model_runner

    make_seats = model_runner.Seats

    def make_seats_late(*args):
        torch.cuda._sleep(2_000_000_000)  # more than a second
        return make_seats(*args)

    monkeypatch.setattr(model_runner, "Seats", make_seats_late)
    made = make_runner(folder, graphs=False)
    try:
        assert tokens_of(Rig(made, [all_requests(prompts)], **SCHEDULES["together"])) == expected
    finally:
        made.close()


def test_the_adapter_on_the_gpu_says_the_same(folder, prompts, expected):
    made = make_runner(folder, graphs=False, implementation="transformers")
    try:
        assert tokens_of(Rig(made, [all_requests(prompts)], **SCHEDULES["together"])) == expected
    finally:
        made.close()


def test_sampled_tokens_do_not_depend_on_schedule_or_graphs(folder, prompts):
    requests = [
        token_request(key, p, NUM_TOKENS, temperature=0.9, top_p=0.9, n=1 + key % 2) for key, p in enumerate(prompts)
    ]
    outputs = []
    for graphs in (True, False):
        made = make_runner(folder, graphs=graphs)
        outputs += [Rig(made, [requests], schedule, **SCHEDULES["chunked prefill"]).run() for schedule in Schedule]
        made.close()
    assert all(output == outputs[0] for output in outputs)


def _slow_streams(generator, skipped=None):
    """CUDA streams that sleep at random in front of what is launched, and may leave out one wait."""
    from pipelines.runtime.cuda_stream import CudaClock, CudaStream
    from pipelines.runtime.streams import StreamSet

    class Slow(CudaStream):
        def launch(self, fn, *args, **kwargs):
            cycles = (
                generator.choice([0, 0, 20_000, 200_000]) if skipped is None else 3_000_000 * (self.name == slow_stream)
            )

            def delayed(*inner, **named):
                if cycles:
                    torch.cuda._sleep(cycles)
                return fn(*inner, **named)

            super().launch(delayed, *args, **kwargs)

        def wait(self, event):
            if event.name != skipped:
                super().wait(event)

    slow_stream = {"h2d_done": "h2d", "compute_done": "compute"}.get(skipped)
    device = torch.device("cuda")
    clock = CudaClock.start(device)
    return StreamSet(*(Slow(name, device, clock) for name in ("h2d", "compute", "d2h")))


ADJUSTED = (
    Adjustments(repetition_penalty=1.4),
    Adjustments(frequency_penalty=1.1, presence_penalty=0.4, min_p=0.05),
    Adjustments(logit_bias=((11, 100.0),)),
    None,
)


def test_adjusted_scores_depend_on_neither_schedule_nor_graphs(folder, prompts):
    """Counts on the device follow carried tokens, preemptions and choices; rows that are not adjusted stay as they are."""
    made = [
        token_request(
            key, prompt, NUM_TOKENS, adjustments=ADJUSTED[key % 4], temperature=0.9 * (key % 3 == 0), n=1 + key % 2
        )
        for key, prompt in enumerate(prompts)
    ]
    found = []
    for graphs in (True, False):
        runner = make_runner(folder, graphs=graphs)
        try:
            for schedule in Schedule:
                for name in ("together", "preemption"):
                    outputs = Rig(runner, [made], schedule, **SCHEDULES[name]).run()
                    found.append({place: output.token_ids for place, output in outputs.items()})
        finally:
            runner.close()
    assert all(tokens == found[0] for tokens in found)
    assert all(set(found[0][key, 0]) == {11} for key in range(2, len(prompts), 4))


def test_two_hundred_random_schedules_under_delays_give_the_same_tokens(folder, prompts, expected):
    generator = random.Random(0)
    made = make_runner(folder, graphs=True, streams=_slow_streams(generator))
    try:
        for _ in range(200):
            seqs = generator.randint(1, 20)
            limits = {
                "seqs": seqs,
                "tokens": generator.randint(seqs, 120),
                "num_blocks": generator.randint(16, 120),
                "block_size": 16,
            }
            chosen = generator.sample(all_requests(prompts), generator.randint(1, 20))
            waves = generator.randint(1, 3)
            rig = Rig(made, [chosen[wave::waves] for wave in range(waves)], generator.choice(list(Schedule)), **limits)
            assert tokens_of(rig) == {request.key: expected[request.key] for request in chosen}
    finally:
        made.close()


@pytest.mark.parametrize("skipped", ["h2d_done", "compute_done"])
def test_a_variant_that_leaves_out_a_wait_fails(folder, prompts, expected, skipped):
    from pipelines.errors import EngineError

    made = make_runner(folder, graphs=True, streams=_slow_streams(random.Random(0), skipped))
    try:
        got = tokens_of(Rig(made, [all_requests(prompts)], **SCHEDULES["few seats"]))
    except EngineError:
        got = None
    finally:
        made.close()
    assert got != expected


def test_a_long_mixed_run_leaves_nothing_behind(runner, prompts):
    from pipelines.core.request import Cancel

    generator = random.Random(1)
    for turn in range(6):
        before = torch.cuda.memory_allocated() if turn == 1 else None
        arrivals = []
        for key in range(60):
            prompt = generator.choice(prompts)
            arrivals.append([token_request(key, prompt, generator.randint(1, 30), n=generator.randint(1, 3))])
            if generator.random() < 0.2:
                arrivals.append([Cancel((generator.randint(0, key),))])
        Rig(runner, arrivals, seqs=20, tokens=100, num_blocks=60, block_size=16).run()
        if before is not None:
            kept = before
    assert torch.cuda.memory_allocated() <= kept


def test_an_eager_step_is_proven_stretch_by_stretch(folder, prompts):
    """A step without a graph has a mark every four layers; asynchronous, all but the first steps' launches lie ahead."""
    made = make_runner(folder, graphs=False)
    try:
        rig = Rig(made, [all_requests(prompts)], **SCHEDULES["few seats"])
        times, take = [], made.take_step_times
        made.take_step_times = lambda: times.extend(take()) or []
        rig.run()
    finally:
        made.close()
    assert all(step.start_s <= step.end_s <= step.read_s for step in times)
    assert all(0 <= step.unproven_s <= step.end_s - step.start_s for step in times)
    assert all(first.end_s <= second.start_s + 2e-6 for first, second in pairwise(times)), "one clock for all streams"
