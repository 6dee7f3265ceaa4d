"""Float8 on a GPU: pages and projections against torch on the CPU's terms, graphs, dependent launches, an engine's tokens."""

from dataclasses import replace

import kernel_support  # noqa: F401  before anything imports Triton
import pytest
import torch
import transformers
from kernel_support import DEVICE, attend_reference, error, make_case, poisoned
from native_kernels import STEPS, KernelDriver, compare
from native_models import linears
from rig import Rig, token_request
from tiny_models import prompts

from pipelines.config import (
    BatchConfig,
    CacheDtype,
    Dtype,
    EngineConfig,
    KvCacheConfig,
    ModelConfig,
    Quantization,
    Schedule,
)
from pipelines.kernels.attention_plan import StepLimits
from pipelines.kernels.attention_shape import AttentionShape
from pipelines.kernels.launch import can_launch_dependents
from pipelines.kernels.paged_attention import PagedKernels, StepKinds
from pipelines.models.attention import FLOAT8
from pipelines.models.float8_linear import Float8Linear, quantize_rows
from pipelines.models.kv_scales import measure_scales
from pipelines.models.native import NativeModel
from pipelines.models.projections_gpu import GpuOptions
from pipelines.runtime import model_runner
from pipelines.runtime.model_runner import ModelRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

BOTH = StepKinds(has_decodes=True, has_chunks=True)
MIXED = ((1, 1), (1, 1168), (1, 5000), (0, 0), (1, 4096), (700, 700), (300, 2345), (2, 640))


@pytest.fixture(autouse=True)
def needs_float8():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no GPU with float8, so FLOAT8 IS NOT TESTED on one here")


def save_config(folder):
    transformers.Qwen3Config(
        vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=128,
    ).save_pretrained(folder)  # fmt: skip


def random_model(folder, quantization=Quantization.NONE):
    save_config(folder)
    config = ModelConfig(str(folder), dtype=Dtype.BFLOAT16, quantization=quantization)
    return NativeModel(folder, config, DEVICE, None, random_seed=5)


def test_attention_reads_pages_of_float8():
    """A Llama's shape, each head with scales of its own; the same with dependent launches, bit for bit."""
    case = make_case(AttentionShape(32, 8, 128, 128, 64, 128**-0.5, torch.bfloat16), MIXED)
    powers = torch.arange(8, device=DEVICE, dtype=torch.float32)
    scales = (2.0 ** (powers - 4), 2.0 ** (2 - powers))
    parts = [
        (part.float() / own[:, None]).to(FLOAT8) for part, own in zip((case.keys, case.values), scales, strict=True)
    ]
    meant = [part.double() * own[:, None].double() for part, own in zip(parts, scales, strict=True)]
    outputs = []
    for dependent in (False, True)[: 1 + can_launch_dependents(DEVICE)]:
        limits = StepLimits(case.rows.seats.shape[0], case.query.shape[0], 8192)
        kernels = PagedKernels([(case.shape, None)], limits, DEVICE, dependent=dependent)
        output = poisoned(*case.query.shape, dtype=torch.bfloat16)
        kernels.plan(case.rows)
        output.fill_(float("nan"))
        kernels.attend(0, case.query, *parts, case.block_tables, output, BOTH, scales)
        outputs.append(output)
    assert error(outputs[0], attend_reference(replace(case, keys=meant[0], values=meant[1]), None)) < 8e-3
    assert torch.equal(outputs[0], outputs[-1])


@pytest.mark.parametrize("num_tokens", [1, 2, 16, 33, 256])
def test_a_projection_is_that_of_the_rounded_factors(num_tokens):
    """Row by row scaled, with a bias, for few tokens and many, into the place it is told."""
    torch.manual_seed(0)
    weight, rows = (
        torch.randn(3072, 1024, device=DEVICE).bfloat16(),
        torch.randn(num_tokens, 1024, device=DEVICE).bfloat16(),
    )
    linear = Float8Linear.make(weight, torch.randn(3072, device=DEVICE).bfloat16())
    kept, scales = quantize_rows(rows)
    exact = (kept.double() * scales) @ (linear.weight.double() * linear.scales.t()).t() + linear.bias.double()
    assert error(linear(rows), exact) < 4e-3


def test_a_row_does_not_depend_on_its_batch():
    """The same product alone and among 64 to bfloat16's rounding: its scale is its own."""
    torch.manual_seed(0)
    linear = Float8Linear.make(torch.randn(1024, 1024, device=DEVICE).bfloat16(), None)
    rows = (
        torch.randn(64, 1024, device=DEVICE).bfloat16() * torch.logspace(-3, 3, 64, device=DEVICE)[:, None].bfloat16()
    )
    assert error(linear(rows[5:6]), linear(rows)[5:6]) < 4e-3


@pytest.mark.parametrize("quantization", Quantization)
@pytest.mark.parametrize("options", [GpuOptions(), GpuOptions(dependent=False), GpuOptions(max_skinny_tokens=0)])
def test_the_decoder_by_kernels_agrees_with_torch(tmp_path, quantization, options):
    """Scores and pages of float8; a value near a border of rounding may fall to either side."""
    model = random_model(tmp_path, quantization)
    for layer in model.decoder.layers:
        assert all(isinstance(linear, Float8Linear) == (quantization is Quantization.FP8) for linear in linears(layer))
    for num_tokens in (None, 16):
        scores, _ = compare(model, options, num_tokens, measure_scales(model))
        assert scores < 0.05


def test_a_graph_gives_what_its_launches_give(tmp_path):
    """Bit for bit, with pages and projections of float8."""
    model = random_model(tmp_path, Quantization.FP8)
    scales = measure_scales(model)
    captured, eager = (KernelDriver(model, GpuOptions(), scales=scales) for _ in range(2))
    inputs = captured.inputs(STEPS[0], 16)
    captured.decoder.run(inputs)  # compiles
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        scores = captured.decoder.run(inputs)
    graph.replay()
    assert torch.equal(scores, eager.decoder.run(eager.inputs(STEPS[0], 16)))


@pytest.mark.parametrize("quantization", Quantization)
def test_an_engine_runs_on_float8(tmp_path, quantization, monkeypatch):
    """Twice the blocks in the same memory, graphs captured, every request with its tokens; the line says what runs."""
    save_config(tmp_path)
    monkeypatch.setattr(model_runner, "free_memory_bytes", lambda _: 64 << 30)  # other tests use the GPU meanwhile

    def runner_with(dtype):
        config = EngineConfig(
            "test",
            ModelConfig(str(tmp_path), device="cuda", dtype=Dtype.BFLOAT16, random_seed=5, quantization=quantization),
            batch=BatchConfig(max_num_seqs=8, max_num_batched_tokens=64),
            kv_cache=KvCacheConfig(dtype=dtype, memory_fraction=0.02),
        )
        return ModelRunner(config, tmp_path)

    plain = runner_with(CacheDtype.AUTO)
    num_blocks = plain.num_blocks
    plain.close()
    del plain
    runner = runner_with(CacheDtype.FP8)
    assert runner.num_blocks == pytest.approx(2 * num_blocks, rel=0.05)
    assert "float8_e4m3fn" in runner.detail
    requests = [token_request(key, prompt, 20) for key, prompt in enumerate(prompts([3, 40, 17, 60]))]
    rig = Rig(runner, [requests], Schedule.ASYNC, num_blocks=64, block_size=64, tokens=64, prefix_caching=True)
    assert [len(output.token_ids) for output in rig.run().values()] == [20] * 4
    runner.close()
