"""A quantized checkpoint is run with the weights that it stands for, or refused by the name of its format."""

import json
import re
import shutil

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from native_models import CONFIGS, Pages, make_step, torch_scores
from quantized_checkpoints import FORMATS, save_quantized
from safetensors.torch import load_file, save_file
from tiny_models import config_of, prompts, save_model

from pipelines.config import Dtype, Implementation, ModelConfig
from pipelines.errors import ModelError
from pipelines.models.adapter import TransformersModel
from pipelines.models.checkpoint import checkpoint_tensors
from pipelines.models.native import NativeModel
from pipelines.models.native_config import is_native

CPU = torch.device("cpu")
Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A Llama with biases nowhere and a head of its own."""
    return save_model(CONFIGS["llama, every head its own keys"](), tmp_path_factory.mktemp("plain") / "tiny")


def load(kind, folder, dtype=Dtype.FLOAT32):
    return kind(folder, ModelConfig(str(folder), dtype=dtype), CPU, None)


def scores(model):
    tokens = prompts([20, 9])
    step = make_step([(0, tokens[0], 0), (1, tokens[1], 0)])
    found = torch_scores(model, Pages(model.layers, model.dtype, CPU, 2), step)
    model.close()
    return found


def save_plain(plain, folder, weights):
    shutil.copytree(plain, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_what_the_format_means(plain, tmp_path, name):
    """Each projection, whole and a few rows of it that begin within a packed word, against the packer's own account."""
    meant = save_quantized(plain, tmp_path / "quantized", FORMATS[name])
    found = checkpoint_tensors(tmp_path / "quantized")
    assert {key: tuple(weight.shape) for key, weight in meant.items()}.items() <= {
        key: weight.shape for key, weight in found.items()
    }.items()
    assert all(key.endswith("_proj.bias") for key in found.keys() - meant.keys())
    for key, weight in meant.items():
        torch.testing.assert_close(found[key].read(), weight, rtol=2e-7, atol=1e-9)
        assert torch.equal(found[key].rows(3, 21), found[key].read()[3:21])


@pytest.mark.parametrize("kind", [NativeModel, TransformersModel])
@pytest.mark.parametrize("name", FORMATS)
def test_scores_are_those_of_the_weights_that_are_meant(plain, tmp_path, name, kind):
    """A folder with the decoded weights gives the same, in the native decoder and through transformers."""
    save_plain(plain, tmp_path / "plain", save_quantized(plain, tmp_path / "quantized", FORMATS[name]))
    expected = scores(load(kind, tmp_path / "plain"))
    found = scores(load(kind, tmp_path / "quantized"))
    assert (found - expected).abs().max() < 1e-5 * (expected.max() - expected.min())
    assert expected.std() > 0.1


@pytest.mark.parametrize("family", ["gemma3", "qwen3_moe"])
def test_other_families_are_decoded_too(tmp_path, family):
    """Biases, norms of another kind, and experts, which transformers keeps fused and files one by one."""
    config = CONFIGS["qwen3_moe"]() if family == "qwen3_moe" else config_of(family)
    plain = save_model(config, tmp_path / "model")
    save_plain(plain, tmp_path / "plain", save_quantized(plain, tmp_path / "quantized", FORMATS["fp8, blocks"]))
    for kind in (TransformersModel, NativeModel)[: 1 if family == "gemma3" else 2]:
        expected = scores(load(kind, tmp_path / "plain"))
        found = scores(load(kind, tmp_path / "quantized"))
        assert (found - expected).abs().max() < 1e-5 * (expected.max() - expected.min())


def test_auto_takes_the_native_decoder(plain, tmp_path):
    """Quantized weights are no reason for the adapter."""
    save_quantized(plain, tmp_path / "quantized", FORMATS["awq"])
    assert is_native(ModelConfig("", implementation=Implementation.AUTO), tmp_path / "quantized")


@pytest.mark.parametrize("kind", [NativeModel, TransformersModel])
def test_weights_are_rounded_once(plain, tmp_path, kind):
    """In bfloat16 they are the exact products rounded, whatever type the scales were stored in."""
    meant = save_quantized(plain, tmp_path / "quantized", FORMATS["awq"])
    model = load(kind, tmp_path / "quantized", Dtype.BFLOAT16)
    is_native_one = kind is NativeModel
    layer = model.decoder.layers[1] if is_native_one else model.module.model.layers[1]
    found = layer.output.weight if is_native_one else layer.self_attn.o_proj.weight
    assert torch.equal(found, meant["model.layers.1.self_attn.o_proj.weight"].bfloat16())
    model.close()


_SCHEMES = {
    "float-quantized": QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True),
    "int-quantized": QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=False),
    "pack-quantized": QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=16, symmetric=False),
    "naive-quantized": QuantizationArgs(num_bits=8, type="int", strategy="tensor", symmetric=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", _SCHEMES)
def test_weights_are_those_of_the_formats_own_library(plain, tmp_path, form, dtype):
    """compressed-tensors writes a checkpoint; what it decodes from it in its scales' type, we decode too, rounded to it."""
    args = _SCHEMES[form]
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    library = BaseCompressor.get_value_from_registry(form)
    tensors = load_file(plain / "model.safetensors")
    expected = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors.pop(name).to(dtype)
        each = weight.view(weight.shape[0], -1, 16) if args.group_size else weight[:, None]
        low, high = (each.amin(-1), each.amax(-1))
        if args.strategy == "tensor":
            low, high = low.amin().view(1), high.amax().view(1)
        scale, zero = calculate_qparams(low, high, args)
        parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        packed = library.compress(parts, scheme)
        expected[name] = library.decompress(packed, scheme)["weight"]
        tensors |= {name.removesuffix("weight") + part: value.contiguous() for part, value in packed.items()}
    shutil.copytree(plain, tmp_path / "quantized")
    save_file(tensors, tmp_path / "quantized" / "model.safetensors")
    written = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
    }
    edit_config(tmp_path / "quantized", written)
    found = checkpoint_tensors(tmp_path / "quantized")
    assert len(expected) == 21
    for name, weight in expected.items():
        assert torch.equal(found[name].read().to(dtype), weight.to(dtype))


def edit_config(folder, quantization):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))


def _group(**weights):
    return {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"} | weights, "targets": ["Linear"]}


def _compressed(form="int-quantized", **keys):
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"a": _group()}} | keys


_REFUSED = {
    "mxfp4": ({"quant_method": "mxfp4"}, "quant_method 'mxfp4'"),
    "unknown": ({"quant_method": "quark"}, "quant_method 'quark'"),
    "unnamed": ({"bits": 4}, "quant_method None"),
    "awq gemv": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMV"}, "awq with version 'gemv'"),
    "awq 3 bits": ({"quant_method": "awq", "bits": 3, "group_size": 128}, "awq with bits 3"),
    "llm-awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "backend": "llm-awq"}, "awq with backend 'llm-awq'",
    ),
    "gptq 3 bits": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "gptq with bits 3"),
    "gptq marlin": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"},
        "gptq with checkpoint_format 'marlin'",
    ),
    "gptq of several kinds": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:mlp": {"bits": 8}}},
        "gptq with dynamic {'+:mlp': {'bits': 8}}",
    ),
    "gptq without groups": ({"quant_method": "gptq", "bits": 4}, "gptq with group_size None"),
    "fp8 e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 with fmt 'e5m2'"),
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [128]}, "fp8 with blocks of [128]"),
    "nvfp4": (
        _compressed("nvfp4-pack-quantized", config_groups={"a": _group(num_bits=4, type="float")}),
        "compressed-tensors in the format 'nvfp4-pack-quantized' with weights of 4 bits of type 'float'",
    ),
    "2:4 sparse": (
        _compressed(sparsity_config={"format": "sparse-24-bitmask"}),
        "compressed-tensors sparsity with format 'sparse-24-bitmask'",
    ),
    "rotated": (_compressed(transform_config={"config_groups": {"R1": {}}}), "compressed-tensors with transform_config"),
    "several groups": (
        _compressed(config_groups={"a": _group(), "b": _group(num_bits=4)}),
        "groups of int-quantized of 8 bits and int-quantized of 4 bits",
    ),
    "no group": (_compressed(config_groups={}), "groups of no weights"),
    "strategy": (_compressed(config_groups={"a": _group(strategy="token")}), "the strategy 'token'"),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [NativeModel, TransformersModel])
@pytest.mark.parametrize("name", _REFUSED)
def test_a_format_that_is_not_supported_is_refused_by_name(plain, tmp_path, name, kind):
    """One line says what was found and what is supported, whichever code would run the model."""
    shutil.copytree(plain, tmp_path / "model")
    quantization, found = _REFUSED[name]
    edit_config(tmp_path / "model", quantization)
    with pytest.raises(ModelError, match=re.escape(found)) as refusal:
        load(kind, tmp_path / "model")
    text = str(refusal.value)
    assert text.startswith("model model: ")
    assert "expected one of compressed-tensors (" in text
    assert "\n" not in text


def _lose(*parts):
    return lambda tensors: [tensors.pop(f"{Q}.{part}") for part in parts]


def _cut(part, dim=0):
    def cut(tensors):
        tensors[f"{Q}.{part}"] = tensors[f"{Q}.{part}"].narrow(dim, 0, 1).contiguous()

    return cut


def _swap(part, to):
    return lambda tensors: tensors.update({f"{Q}.{part}": to})


_BROKEN = {
    "no scale": ("fp8, blocks", _lose("weight_scale_inv"), "has no weight_scale beside it"),
    "scale alone": ("fp8, blocks", _lose("weight"), rf"hold {Q}.weight_scale_inv, and lack {Q}.weight"),
    "other blocks": ("fp8, blocks", _cut("weight_scale_inv"), r"scales of the shape \(1, 2\), expected \(2, 2\)"),
    "int for float": ("fp8, blocks", _swap("weight", torch.zeros(48, 48, dtype=torch.int8)), "the type I8, expected F8"),
    "awq scales": ("awq", _cut("scales"), r"scales of the shape \(1, 48\), expected \(3, 48\)"),
    "awq zeros": ("awq", _cut("qzeros", 1), r"qzeros of the shape \(3, 1\), expected \(3, 6\)"),
    "gptq zeros": ("gptq 4 bits", _cut("qzeros"), r"qzeros of the shape \(1, 6\), expected \(3, 6\)"),
    "gptq order": ("gptq 4 bits", _swap("g_idx", torch.full((48,), 3)), r"above 2 \[3\], expected \[\]"),
    "packed shape": (
        "compressed-tensors w4a16", _swap("weight_shape", torch.tensor([48, 64])), r"the shape \(48, 6\), expected \(48, 8\)",
    ),
    "packed zeros": ("compressed-tensors w4a16", _cut("weight_zero_point"), "zero points of the shape"),
    "a bias": ("gptq 4 bits", _swap("bias", torch.ones(48)), rf"{Q}.bias"),
    "nf4 table": ("bitsandbytes nf4", _cut("weight.quant_map"), "the length of its quant_map 1, expected 16"),
    "nf4 state": ("bitsandbytes nf4", _lose("weight.quant_state.bitsandbytes__nf4"), "has no weight.quant_state beside it"),
    "nf4 blocks": ("bitsandbytes nf4", _cut("weight.absmax"), "the length of its absmax 1, expected 36"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [NativeModel, TransformersModel])
@pytest.mark.parametrize("name", _BROKEN)
def test_files_that_are_not_as_their_format_says_are_refused(plain, tmp_path, name, kind):
    """The line names the tensor, and what of it was found and expected."""
    form, breaks, reason = _BROKEN[name]
    save_quantized(plain, tmp_path / "model", FORMATS[form])
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    breaks(tensors)
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ModelError, match=reason) as refusal:
        load(kind, tmp_path / "model")
    assert re.search(re.escape(Q), str(refusal.value))


@pytest.mark.parametrize("kind", [NativeModel, TransformersModel])
def test_8_bit_weights_that_nothing_explains_are_refused(plain, tmp_path, kind):
    """Without a quantization_config their values would be taken for the weights themselves."""
    save_quantized(plain, tmp_path / "model", FORMATS["fp8, blocks"])
    shutil.copy(plain / "config.json", tmp_path / "model")
    with pytest.raises(ModelError, match=r"stored as (F8_E4M3|float8_e4m3fn)|the tensor .*weight_scale_inv, which"):
        load(kind, tmp_path / "model")


def test_a_configuration_of_another_type_is_named(plain, tmp_path):
    """It has to be an object."""
    shutil.copytree(plain, tmp_path / "model")
    edit_config(tmp_path / "model", "fp8")
    with pytest.raises(ModelError, match="quantization_config is a str, expected an object"):
        checkpoint_tensors(tmp_path / "model")
