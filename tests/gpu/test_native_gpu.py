"""The native decoder on a GPU: all paths against torch, graphs against eager launches, weights against their files."""

import dataclasses

import kernel_support  # noqa: F401  before anything imports Triton
import pytest
import torch
import transformers
from native_kernels import STEPS, KernelDriver, compare
from native_models import CONFIGS, Pages, generate_greedily, linears, make_step, torch_scores

from pipelines.config import Dtype, ModelConfig
from pipelines.kernels.attention_plan import StepLimits
from pipelines.models.native import NativeModel
from pipelines.models.ops_gpu import GpuInputs
from pipelines.models.projections_gpu import GpuOptions

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE = torch.device("cuda")
CPU = torch.device("cpu")
PATHS = {
    "own projections": GpuOptions(),
    "own projections, norms apart": GpuOptions(fuses_norms=False),
    "own projections, no dependent launches": GpuOptions(dependent=False),
    "own projections of few tokens": GpuOptions(max_skinny_tokens=3),
    "torch's projections": GpuOptions(max_skinny_tokens=0),
}


def random_model(folder, config, dtype, device=DEVICE):
    config.save_pretrained(folder)
    return NativeModel(folder, ModelConfig(str(folder), dtype=dtype), device, None, random_seed=5)


def medium_config(**changes):
    """Small enough for any GPU, and of the shapes that kernels see: heads of 128, rows of 1,024."""
    return transformers.Qwen3Config(
        vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=128, **changes,
    )  # fmt: skip


def medium_experts_config():
    """The same with 32 experts a layer, of which four are chosen."""
    return transformers.Qwen3MoeConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=128, num_experts=32, num_experts_per_tok=4,
        moe_intermediate_size=384, norm_topk_prob=True,
    )  # fmt: skip


MEDIUM = {"one MLP": medium_config, "experts": medium_experts_config}


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("name", ["llama, all biases", "qwen3", "ministral, two windows", "smollm3", "qwen3_moe"])
def test_all_paths_agree_with_torch_in_float32(tmp_path, name, options):
    """Chunks, chunks beside decodes, decodes alone, padded; scores and pages."""
    model = random_model(tmp_path, CONFIGS[name](), Dtype.FLOAT32)
    for num_tokens in (None, 16):
        scores, pages = compare(model, options, num_tokens)
        assert scores < 1e-4
        assert pages < 1e-4


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
def test_greedy_tokens_equal_generate_in_float32(tmp_path, options):
    """Real files, loaded onto the GPU; every token as transformers says on the CPU."""
    torch.manual_seed(0)
    reference = transformers.AutoModelForCausalLM.from_config(CONFIGS["qwen3"](), dtype=torch.float32).eval()
    reference.save_pretrained(tmp_path)
    model = NativeModel(tmp_path, ModelConfig(str(tmp_path), dtype=Dtype.FLOAT32), DEVICE, None)
    prompts = [torch.randint(2, 199, (length,)).tolist() for length in (3, 17, 9, 30)]
    driver = KernelDriver(model, options, StepLimits(max_rows=4, max_tokens=80, max_context=128))
    tokens = generate_greedily(driver.scores, prompts, 16, 12)
    for prompt, own in zip(prompts, tokens, strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, min_new_tokens=16, do_sample=False
        )
        assert own == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
def test_bfloat16_is_no_further_from_float32_than_torch_is(tmp_path, options):
    """Root mean square error of all scores of a prompt's steps, at shapes that matter."""
    exact = random_model(tmp_path, medium_config(), Dtype.FLOAT32)
    rounded = random_model(tmp_path, medium_config(), Dtype.BFLOAT16)
    for name in ("embedding", "final_norm"):
        getattr(exact.decoder, name).copy_(getattr(rounded.decoder, name))
    exact.decoder.head.weight.copy_(rounded.decoder.head.weight)
    for wide, short in zip(exact.decoder.layers, rounded.decoder.layers, strict=True):
        for own, other in zip(linears(wide), linears(short), strict=True):
            own.weight.copy_(other.weight)
    pages = [Pages(model.layers, model.dtype, DEVICE, 4) for model in (exact, rounded)]
    driver = KernelDriver(rounded, options)
    ours = theirs = 0.0
    for step in STEPS:
        expected = torch_scores(exact, pages[0], step)
        theirs += float((torch_scores(rounded, pages[1], step).float() - expected).square().mean())
        ours += float((driver.scores(step).float() - expected).square().mean())
    assert ours <= 1.3 * theirs


def copy_inputs(target: GpuInputs, source: GpuInputs) -> None:
    """Put one step's inputs where another's lie."""
    target.token_ids.copy_(source.token_ids)
    target.places.positions.copy_(source.places.positions)
    target.places.seats.copy_(source.places.seats)
    target.sample_tokens.copy_(source.sample_tokens)
    for field in dataclasses.fields(target.rows):
        getattr(target.rows, field.name).copy_(getattr(source.rows, field.name))


class Graphed:
    """The graphs of a decoder for one bucket: decodes alone, and decodes beside chunks; from one pool."""

    def __init__(self, driver, num_tokens, first_steps):
        self._driver, self._num_tokens = driver, num_tokens
        self._graphs = {}
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        for step in first_steps:
            inputs = driver.inputs(step, num_tokens)
            driver.decoder.run(inputs)  # compiles
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                scores = driver.decoder.run(inputs)
            self._graphs[inputs.kinds] = graph, inputs, scores

    def scores(self, step):
        inputs = self._driver.inputs(step, self._num_tokens)
        graph, place, scores = self._graphs[inputs.kinds]
        copy_inputs(place, inputs)
        graph.replay()
        return scores[: len(step.sample_tokens)].clone()


@pytest.mark.parametrize("config", MEDIUM.values(), ids=MEDIUM)
@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
def test_graphs_give_what_eager_launches_give_bit_for_bit(tmp_path, options, config):
    """Replayed over steps of other lengths, rows and kinds than those they were captured with."""
    model = random_model(tmp_path, config(), Dtype.BFLOAT16)
    eager, graphed = KernelDriver(model, options), KernelDriver(model, options)
    graphs = Graphed(graphed, 16, [make_step([(0, [5, 6], 0), (1, [7], 0)]), make_step([(1, [8], 1)])])
    for pages in graphed.pages.layers:
        pages.keys.fill_(float("nan"))
        pages.values.fill_(float("nan"))
    for step in STEPS:
        assert torch.equal(eager.scores(step, 16), graphs.scores(step))
    for one, other in zip(eager.pages.layers, graphed.pages.layers, strict=True):
        assert torch.equal(one.keys.nan_to_num(), other.keys.nan_to_num())
        assert torch.equal(one.values.nan_to_num(), other.values.nan_to_num())


@pytest.mark.parametrize("config", MEDIUM.values(), ids=MEDIUM)
def test_dependent_launches_change_no_bit_over_many_steps(tmp_path, config):
    """1,000 decode steps of four sequences in a graph, with and without; a missing wait would show as other scores."""
    model = random_model(tmp_path, config(), Dtype.BFLOAT16)
    runs = []
    for dependent in (True, False):
        driver = KernelDriver(model, GpuOptions(dependent=dependent))
        driver.scores(make_step([(seat, [seat + 5, 9, 2], 0) for seat in range(4)]))
        graphs = Graphed(driver, 4, [make_step([(seat, [1], 3) for seat in range(4)])])
        tokens, seen = [1, 2, 3, 4], []
        for turn in range(1000):
            position = 3 + turn % 100
            scores = graphs.scores(make_step([(seat, [tokens[seat]], position) for seat in range(4)]))
            tokens = scores.argmax(-1).tolist()
            seen.append(scores)
        runs.append(torch.stack(seen))
    assert torch.equal(runs[0], runs[1])
    assert bool(runs[0].isfinite().all())


@pytest.mark.parametrize("config", MEDIUM.values(), ids=MEDIUM)
def test_a_token_does_not_depend_on_what_shares_its_step(tmp_path, config):
    """Our own projections and attention: the scores of a decode alone are those beside three others, bit for bit."""
    model = random_model(tmp_path, config(), Dtype.BFLOAT16)
    options = GpuOptions()
    together, alone = KernelDriver(model, options), KernelDriver(model, options)
    prompt = make_step([(seat, [seat + 5, 9, 2], 0) for seat in range(4)])
    together.scores(prompt)
    alone.scores(prompt)
    scores = together.scores(make_step([(seat, [seat + 1], 3) for seat in range(4)]))
    for seat in range(4):
        assert torch.equal(scores[seat], alone.scores(make_step([(seat, [seat + 1], 3)]))[0])


@pytest.mark.parametrize("dtype", [Dtype.AUTO, Dtype.FLOAT32])
def test_weights_on_the_gpu_are_those_of_the_files(tmp_path, monkeypatch, dtype):
    """Through page-locked slabs, several a tensor, several files; converted on the way where asked for."""
    torch.manual_seed(0)
    reference = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama, all biases"](), dtype=torch.bfloat16)
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    monkeypatch.setattr("pipelines.models.weights.SLAB_BYTES", 4096)
    monkeypatch.setattr("pipelines.models.ops_cpu.can_prepack", lambda: False)
    model = NativeModel(tmp_path, ModelConfig(str(tmp_path), dtype=dtype), DEVICE, None)
    expected = torch.bfloat16 if dtype is Dtype.AUTO else torch.float32
    assert model.dtype == expected
    host = NativeModel(
        tmp_path, ModelConfig(str(tmp_path), dtype=Dtype(str(expected).removeprefix("torch."))), CPU, None
    )
    assert torch.equal(model.decoder.embedding.cpu(), host.decoder.embedding)
    for own, other in zip(model.decoder.layers, host.decoder.layers, strict=True):
        for there, here in zip(linears(own), linears(other), strict=True):
            assert torch.equal(there.weight.cpu(), here.weight)
            assert torch.equal(there.bias.cpu(), here.bias)
