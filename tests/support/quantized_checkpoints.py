"""Writes small models as quantized checkpoints, packed word by word as each format's documentation has it.

Each packer returns what is stored for one projection and the weight that it stands for, so that what the engine decodes can be
compared with it. Nothing of the engine is used here.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Weight = npt.NDArray[np.float32]  # [O, I]
Packed = tuple[dict[str, Tensor], Weight]

GROUP = 16
_AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each nibble of a word, lowest first
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A way to store projections."""

    config: dict[str, Any]  # as quantization_config
    pack: Callable[[Weight], Packed]


def save_quantized(plain: Path, folder: Path, form: Format) -> dict[str, Tensor]:
    """Copy a model folder with its projections quantized, head and norms as they are; returns what its weights then are."""
    folder.mkdir()
    for file in plain.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": form.config}))
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            parts, weight = form.pack(tensor.numpy())
            stored |= {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
            meant[name] = torch.from_numpy(np.ascontiguousarray(weight))
        else:
            stored[name] = meant[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return meant


def _half(values: npt.NDArray[Any]) -> Weight:
    """Round as a float16 holds it."""
    return values.astype(np.float16).astype(np.float32)


def _to_float8(values: Weight) -> tuple[Tensor, Weight]:
    stored = torch.from_numpy(np.ascontiguousarray(values)).to(torch.float8_e4m3fn)
    return stored, stored.float().numpy()


def float8_channels(weight: Weight) -> Packed:
    """As compressed-tensors, float-quantized: a scale an output, in bfloat16."""
    scale = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 448).bfloat16()
    stored, values = _to_float8(weight / scale.float().numpy() * 0.99)
    return {"weight": stored, "weight_scale": scale}, values * scale.float().numpy()


def float8_tensor(weight: Weight) -> Packed:
    """One scale for all, and scales of activations and cache, which decoding leaves out."""
    scale = np.float32(np.abs(weight).max() / 448)
    stored, values = _to_float8(weight / scale)
    extra = {"input_scale": torch.tensor([0.5]), "k_scale": torch.tensor([2.0]), "v_scale": torch.tensor([2.0])}
    return {"weight": stored, "weight_scale": torch.tensor([scale]), **extra}, values * scale


def float8_blocks(weight: Weight) -> Packed:
    """As DeepSeek-V3 and Qwen3 have it: a scale a block of 32 x 32, the last ones smaller."""
    rows, columns = -(-weight.shape[0] // 32), -(-weight.shape[1] // 32)
    scales = np.zeros((rows, columns), np.float32)
    values, meant = np.zeros_like(weight), np.zeros_like(weight)
    for row in range(rows):
        for column in range(columns):
            block = np.s_[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32]
            scales[row, column] = np.abs(weight[block]).max() / 448
            values[block] = weight[block] / scales[row, column]
            meant[block] = _to_float8(values[block])[1] * scales[row, column]
    return {"weight": _to_float8(values)[0], "weight_scale_inv": torch.from_numpy(scales)}, meant


def int8_channels(weight: Weight) -> Packed:
    """As compressed-tensors, int-quantized: a scale and a zero point an output."""
    low, high = weight.min(1, keepdims=True), weight.max(1, keepdims=True)
    scale = ((high - low) / 255).astype(np.float32)
    zero = np.round(-128 - low / scale).clip(-128, 127)
    values = np.round(weight / scale + zero).clip(-128, 127)
    parts = {
        "weight": torch.from_numpy(values.astype(np.int8)),
        "weight_scale": torch.from_numpy(scale),
        "weight_zero_point": torch.from_numpy(zero.astype(np.int8)),
    }
    return parts, ((values - zero) * scale).astype(np.float32)


@dataclass(frozen=True)
class _Codes:
    """A weight in unsigned codes, by groups of input dims."""

    codes: npt.NDArray[np.int64]  # [O, I]
    scales: Weight  # [O, G]
    zeros: npt.NDArray[np.int64]  # [O, G]
    groups: npt.NDArray[np.int64]  # [I] group of each input dim

    @property
    def weight(self) -> Weight:
        shifted = self.codes - self.zeros[:, self.groups]
        return (shifted * self.scales[:, self.groups].astype(np.float64)).astype(np.float32)


def _to_codes(weight: Weight, bits: int, groups: npt.NDArray[np.int64] | None = None) -> _Codes:
    size = weight.shape[1]
    groups = np.arange(size) // GROUP if groups is None else groups
    number = int(groups.max()) + 1
    low = np.stack([weight[:, groups == group].min(1) for group in range(number)], axis=1)
    high = np.stack([weight[:, groups == group].max(1) for group in range(number)], axis=1)
    highest = 2**bits - 1
    scales = _half(np.maximum(high - low, 1e-3) / highest)
    zeros = np.round(-low / scales).clip(0, highest).astype(np.int64)
    codes = np.round(weight / scales[:, groups] + zeros[:, groups]).clip(0, highest).astype(np.int64)
    return _Codes(codes, scales, zeros, groups)


def _words(codes: npt.NDArray[np.int64], bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Pack [n, m] codes along their second dim, lowest bits first, `order` being the code of each place in a word."""
    each = 32 // bits
    order = order or tuple(range(each))
    num_words = -(-codes.shape[1] // each)
    words = np.zeros((codes.shape[0], num_words), np.uint32)
    for word in range(num_words):
        for place, at in enumerate(order):
            if (column := word * each + at) < codes.shape[1]:
                words[:, word] |= codes[:, column].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32).copy())


def packed_rows(bits: int, *, shuffles: bool = False) -> Callable[[Weight], Packed]:
    """As compressed-tensors, pack-quantized, with zero points; `shuffles` puts input dims into groups at random."""

    def pack(weight: Weight) -> Packed:
        groups = np.arange(weight.shape[1]) // GROUP
        if shuffles:
            groups = np.random.default_rng(3).permutation(groups)
        coded = _to_codes(weight, bits, groups)
        parts = {
            "weight_packed": _words(coded.codes, bits),
            "weight_scale": torch.from_numpy(coded.scales),
            "weight_zero_point": _words(coded.zeros.T, bits).T,
            "weight_shape": torch.tensor(weight.shape),
        }
        if shuffles:
            parts["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return parts, coded.weight

    return pack


def awq(weight: Weight) -> Packed:
    """AutoAWQ's gemm: along the outputs, interleaved."""
    coded = _to_codes(weight, 4)
    parts = {
        "qweight": _words(coded.codes.T, 4, _AWQ_NIBBLES),
        "qzeros": _words(coded.zeros.T, 4, _AWQ_NIBBLES),
        "scales": torch.from_numpy(coded.scales.T.copy()).half(),
    }
    return parts, coded.weight


def gptq(bits: int, *, taken_off: int = 1, shuffles: bool = False) -> Callable[[Weight], Packed]:
    """AutoGPTQ's: along the inputs; 1 is taken off zero points (in its second version not), and 0 becomes the highest."""

    def pack(weight: Weight) -> Packed:
        groups = np.arange(weight.shape[1]) // GROUP
        if shuffles:
            groups = np.random.default_rng(4).permutation(groups)
        coded = _to_codes(weight, bits, groups)
        parts = {
            "qweight": _words(coded.codes, bits).T,
            "qzeros": _words((coded.zeros.T - taken_off) % 2**bits, bits),
            "scales": torch.from_numpy(coded.scales.T.copy()).half(),
            "g_idx": torch.from_numpy(groups.astype(np.int32)),
            "bias": torch.zeros(weight.shape[0], dtype=torch.float16),
        }
        return parts, coded.weight

    return pack


def bnb_4bit(weight: Weight) -> Packed:
    """As bitsandbytes NF4 in blocks of 64 values, whose magnitudes are quantized by a table in blocks of 256."""
    table = np.array(NF4, np.float32)
    blocks = weight.reshape(-1, 64)
    highest = np.abs(blocks).max(1)
    offset = float(highest.mean())
    nested_table = np.linspace(-1, 1, 256).astype(np.float32)
    shifted = highest - offset
    nested = np.array([np.abs(part).max() for part in np.split(shifted, range(256, len(shifted), 256))], np.float32)
    share = shifted / nested[np.arange(len(shifted)) // 256]
    magnitude_codes = np.abs(share[:, None] - nested_table).argmin(1)
    magnitudes = nested_table[magnitude_codes] * nested[np.arange(len(shifted)) // 256] + np.float32(offset)
    codes = np.abs(blocks[:, :, None] / magnitudes[:, None, None] - table).argmin(2).reshape(-1)
    state = {
        "quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(weight.shape),
        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset,
    }  # fmt: skip
    parts = {
        "weight": torch.from_numpy((codes[0::2] << 4 | codes[1::2]).astype(np.uint8)[:, None]),
        "weight.absmax": torch.from_numpy(magnitude_codes.astype(np.uint8)),
        "weight.quant_map": torch.from_numpy(table),
        "weight.nested_absmax": torch.from_numpy(nested),
        "weight.nested_quant_map": torch.from_numpy(nested_table),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    return parts, (table[codes].reshape(-1, 64) * magnitudes[:, None]).reshape(weight.shape).astype(np.float32)


def bnb_8bit(weight: Weight) -> Packed:
    """As bitsandbytes LLM.int8: a row's highest magnitude is 127."""
    highest = np.abs(weight).max(1).astype(np.float32)
    values = np.round(weight / highest[:, None] * 127).astype(np.int8)
    parts = {"weight": torch.from_numpy(values), "SCB": torch.from_numpy(highest), "weight_format": torch.tensor(0)}
    return parts, (values * (highest / np.float32(127))[:, None]).astype(np.float32)


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    base = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    group = {"targets": ["Linear"], "weights": base | weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
    }


_GROUPS = {"strategy": "group", "group_size": GROUP, "symmetric": False}
_GPTQ = {"quant_method": "gptq", "group_size": GROUP, "sym": False, "desc_act": False, "lm_head": False}
FORMATS = {
    "compressed-tensors fp8, channels": Format(_compressed("float-quantized", type="float"), float8_channels),
    "compressed-tensors fp8, tensor": Format(
        _compressed("float-quantized", type="float", strategy="tensor"), float8_tensor
    ),
    "compressed-tensors w8a8 int8": Format(_compressed("int-quantized", symmetric=False), int8_channels),
    "compressed-tensors w4a16": Format(_compressed("pack-quantized", num_bits=4, **_GROUPS), packed_rows(4)),
    "compressed-tensors w4a16, actorder": Format(
        _compressed("pack-quantized", num_bits=4, actorder="group", **_GROUPS), packed_rows(4, shuffles=True)
    ),
    "compressed-tensors w8a16": Format(_compressed("pack-quantized", num_bits=8, **_GROUPS), packed_rows(8)),
    "fp8, blocks": Format(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        float8_blocks,
    ),
    "fp8, tensor": Format({"quant_method": "fp8", "activation_scheme": "static"}, float8_tensor),
    "awq": Format({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, awq),
    "gptq 4 bits": Format(_GPTQ | {"bits": 4}, gptq(4)),
    "gptq 8 bits, desc_act": Format(_GPTQ | {"bits": 8, "desc_act": True}, gptq(8, shuffles=True)),
    "gptq 2 bits": Format(_GPTQ | {"bits": 2}, gptq(2)),
    "gptq_v2": Format(_GPTQ | {"bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, taken_off=0)),
    "bitsandbytes nf4": Format(
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, bnb_4bit
    ),
    "bitsandbytes int8": Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_8bit),
}
