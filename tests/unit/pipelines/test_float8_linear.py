"""Projections of float8: what is kept of weights and rows, how far their product is off, and what cannot have them."""

import math

import pytest
import torch
from native_models import CONFIGS, Pages, make_step, torch_scores
from tiny_models import config_of, prompts, save_model

from pipelines.config import Dtype, ModelConfig, Quantization
from pipelines.errors import ModelError
from pipelines.models.adapter import TransformersModel
from pipelines.models.attention import FLOAT8
from pipelines.models.float8_linear import Float8Linear, quantize_rows
from pipelines.models.native import NativeModel
from pipelines.models.ops_cpu import PlainLinear

CPU = torch.device("cpu")


def test_each_row_has_a_scale_of_its_own():
    """The highest magnitude of a row is 448 of its scales; a row of zeros stays zero; NaN stays NaN, and in its row."""
    rows = torch.tensor(
        [[1.0, -4.0, 0.5, 1e-9], [0.0, 0.0, 0.0, 0.0], [3e4, 1e4, -2e4, 7.0], [1.0, math.nan, 2.0, 3.0]]
    )
    kept, scales = quantize_rows(rows)
    assert (kept.dtype, scales.shape) == (FLOAT8, (4, 1))
    torch.testing.assert_close(scales[:3, 0], torch.tensor([4 / 448, 1.0, 3e4 / 448]), rtol=1e-6, atol=0)
    meant = kept.float() * scales
    assert ((meant - rows)[:3].abs() <= rows[:3].abs() / 16 + scales[:3] * 2**-10).all()
    assert kept[0, 1].float() == -448
    assert meant[3].isnan().any()
    assert torch.equal(quantize_rows(rows[2:3])[0].float(), kept[2:3].float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_the_rounded_factors(dtype, has_bias):
    """Against float64: sums are exact to float32, whatever is lost is lost by rounding rows and weights."""
    torch.manual_seed(1)
    weight, rows = torch.randn(5000, 32).to(dtype), (torch.randn(7, 32) * 50).to(dtype)
    bias = torch.randn(5000).to(dtype) if has_bias else None
    linear = Float8Linear.make(weight, bias)
    kept, scales = quantize_rows(rows)
    exact = (kept.double() * scales.double()) @ (linear.weight.double() * linear.scales.double().t()).t()
    exact += 0 if bias is None else bias.double()
    found = linear(rows)
    assert found.dtype == dtype
    assert (found.double() - exact).norm() < {torch.float32: 1e-6, torch.bfloat16: 3e-3}[dtype] * exact.norm()
    plain = rows.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert 1e-3 < (found.double() - plain).norm() / plain.norm() < 0.06


def test_a_weight_of_many_rows_is_quantized_as_one_of_few():
    """It is worked through in parts, which does not show; one of no token gives none."""
    weight = torch.randn(4100, 16)
    linear = Float8Linear.make(weight, None)
    assert torch.equal(linear.weight[4095:].float(), Float8Linear.make(weight[4095:], None).weight.float())
    assert linear.scales.shape == (1, 4100)
    assert linear(weight[:0]).shape == (0, 4100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = CONFIGS["llama, all biases"]()
    config.initializer_range = 0.1  # so that attention is no choice of one position, which an error turns over
    return save_model(config, tmp_path_factory.mktemp("model") / "tiny")


def load(folder, quantization=Quantization.FP8, dtype=Dtype.FLOAT32):
    return NativeModel(folder, ModelConfig(str(folder), dtype=dtype, quantization=quantization), CPU, None)


def test_all_projections_but_the_head_are_float8(folder):
    """Its scores stay near those of the plain model, the more so as nothing else is rounded."""
    model, plain = load(folder), load(folder, Quantization.NONE)
    step = make_step([(0, prompts([40])[0], 0), (1, prompts([9])[0], 0)])
    found, expected = (torch_scores(one, Pages(one.layers, one.dtype, CPU, 2), step) for one in (model, plain))
    for layer in model.decoder.layers:
        linears = (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
        assert all(isinstance(linear, Float8Linear) and linear.bias is not None for linear in linears)
    assert not isinstance(model.decoder.head, Float8Linear)
    assert model.num_prepacked == 1
    assert model.name == "native llama of float8 projections"
    error = (found - expected).norm() / expected.norm()
    assert 1e-3 < error < 0.25


def test_bytes_of_weights_are_counted_as_they_are_kept(folder, monkeypatch):
    """One a value of a projection, those of the dtype for all else: for what must fit, and for what a step reads."""
    seen = []
    monkeypatch.setattr("pipelines.models.native.check_weights", lambda num_bytes, _: seen.append(num_bytes))
    monkeypatch.setattr("pipelines.models.ops_cpu.can_prepack", lambda: False)
    model = load(folder)
    linears = [
        linear
        for layer in model.decoder.layers
        for linear in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
    ]
    head = model.decoder.head
    assert isinstance(head, PlainLinear)
    kept = sum(linear.weight.nbytes for linear in linears)
    others = [model.decoder.embedding, model.decoder.final_norm, head.weight]
    others += [tensor for layer in model.decoder.layers for tensor in (layer.input_norm, layer.mlp_norm)]
    others += [linear.bias for linear in linears]
    assert seen == [kept + sum(tensor.nbytes for tensor in others)]
    assert model.linear_bytes == kept + head.weight.nbytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 36, "head_dim": 8}, "needs hidden_size to be a multiple of 16; found 36"),
        ({"intermediate_size": 100}, "needs intermediate_size to be a multiple of 16; found 100"),
        ({"head_dim": 4}, "needs heads times head_dim to be a multiple of 16; found 24"),
        ({"num_key_value_heads": 3}, "needs KV heads times head_dim to be a multiple of 16; found 24"),
    ],
)
def test_sizes_that_float8_does_not_take_are_refused(tmp_path, changes, message):
    """Before anything is read."""
    config = config_of("llama")
    for name, value in changes.items():
        setattr(config, name, value)
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"model.quantization is fp8, which {message}"):
        load(tmp_path)


def test_experts_are_refused(tmp_path):
    CONFIGS["qwen3_moe"]().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="for models without experts; found 6 a layer"):
        load(tmp_path)


def test_the_adapter_refuses(tmp_path):
    """Its modules are transformers' own."""
    folder = save_model(config_of("gemma3"), tmp_path / "tiny")
    config = ModelConfig(str(folder), quantization=Quantization.FP8)
    with pytest.raises(ModelError, match="is fp8, which the native decoder alone has; found a model that runs through"):
        TransformersModel(folder, config, CPU, None)


@pytest.mark.parametrize(
    ("capability", "dtype", "message"),
    [
        (
            (8, 6),
            Dtype.BFLOAT16,
            r"needs a GPU of compute capability 8\.9 \(Ada, Hopper\) or later; found 8\.6 on cuda",
        ),
        ((9, 0), Dtype.FLOAT16, "computes in bfloat16 on a GPU; found float16: set model.dtype to bfloat16"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(folder, monkeypatch, capability, dtype, message):
    """Before a byte is read."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    config = ModelConfig(str(folder), dtype=dtype, quantization=Quantization.FP8)
    with pytest.raises(ModelError, match=f"model.quantization is fp8, which {message}"):
        NativeModel(folder, config, torch.device("cuda"), None)
