"""Reads a llama-architecture GGUF as a LlamaForCausalLM: names of the tensors, order of their rows, configuration.

llama.cpp rotates neighbouring pairs of a head where transformers rotates its two halves, so its converter interleaves the
rows of the query and key projections; here they are put back. Rows are put in order before they are dequantised: a
quantised block never spans two rows.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from pipelines.counted import counted
from pipelines.errors import ModelError
from pipelines.models.safetensors_file import TensorSource

_SLAB_ELEMENTS = 1 << 24  # values dequantised at a time: 64 MiB
_ROPE_FACTORS = "rope_freqs.weight"
_OUTPUT = "output.weight"
_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _OUTPUT: "lm_head.weight",
}
_PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What the file's metadata says of the model."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    rms_eps: float
    rope_theta: float
    rope_linear_factor: float | None  # positions are divided by it

    @classmethod
    def read(cls, reader: GGUFReader) -> "LlamaShape":
        """Read it.

        Raises:
            ModelError: a value is missing, or asks for what a LlamaForCausalLM has not.
        """
        if _value(reader, "llama.expert_count", 0):
            raise ModelError("a llama-architecture GGUF with experts is not supported: use the safetensors checkpoint")
        hidden = int(_value(reader, "llama.embedding_length"))
        num_heads = _same_in_all_layers(reader, "llama.attention.head_count")
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        if "token_embd.weight" not in tensors:
            raise ModelError("tensor token_embd.weight is missing")
        head_dim = _value(reader, "llama.attention.key_length", _value(reader, "llama.rope.dimension_count", 0))
        return cls(
            num_layers=int(_value(reader, "llama.block_count")),
            hidden=hidden,
            intermediate=_same_in_all_layers(reader, "llama.feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=_same_in_all_layers(reader, "llama.attention.head_count_kv", num_heads),
            head_dim=int(head_dim or hidden // num_heads),
            vocab_size=int(tensors["token_embd.weight"].shape[1]),
            context=int(_value(reader, "llama.context_length")),
            rms_eps=_shortest(_value(reader, "llama.attention.layer_norm_rms_epsilon")),
            rope_theta=_shortest(_value(reader, "llama.rope.freq_base", 10000.0)),
            rope_linear_factor=_linear_factor(reader),
        )

    @property
    def rows(self) -> dict[str, tuple[int, ...]]:
        """Shape of each weight matrix of a layer, output features first."""
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "attn_q": (query, self.hidden),
            "attn_k": (key, self.hidden),
            "attn_v": (key, self.hidden),
            "attn_output": (self.hidden, query),
            "ffn_gate": (self.intermediate, self.hidden),
            "ffn_up": (self.intermediate, self.hidden),
            "ffn_down": (self.hidden, self.intermediate),
        }


def llama_config(reader: GGUFReader, shape: LlamaShape) -> dict[str, Any]:
    """Return the content of `config.json`, special token ids and dtype apart.

    Raises:
        ModelError: the file scales its rotary frequencies in a way that cannot be told from it.
    """
    names = {tensor.name for tensor in reader.tensors}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_k.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_eps,
        "rope_parameters": _rope_parameters(reader, shape),
        "tie_word_embeddings": _OUTPUT not in names,
        "vocab_size": shape.vocab_size,
    }


def llama_tensors(reader: GGUFReader, shape: LlamaShape) -> list[TensorSource]:
    """Return the model's tensors under transformers' names.

    Raises:
        ModelError: a tensor is missing, unknown, or of another shape than the metadata implies.
    """
    sources = [_source(tensor, shape) for tensor in reader.tensors if tensor.name != _ROPE_FACTORS]
    found = {source.name for source in sources}
    if missing := sorted(_expected_names(shape, {tensor.name for tensor in reader.tensors}) - found):
        raise ModelError(f"it lacks {counted(len(missing), 'tensor')}, the first of them {missing[0]}")
    return sources


def _expected_names(shape: LlamaShape, in_file: set[str]) -> set[str]:
    """Return the names a model must have. A LlamaForCausalLM has the biases of all its projections of a kind, or none."""
    kinds = ("attn_q", "attn_k", "attn_v", "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")
    biased = {part for kind in kinds if f"blk.0.{kind[1]}.bias" in in_file for part in kind}
    in_layer = [f"{part}.weight" for part in (*_PROJECTIONS.values(), *_NORMS.values())]
    in_layer += [f"{_PROJECTIONS[part]}.bias" for part in biased]
    names = {f"model.layers.{layer}.{part}" for layer in range(shape.num_layers) for part in in_layer}
    return names | {_GLOBAL["token_embd.weight"], _GLOBAL["output_norm.weight"]}


def _source(tensor: ReaderTensor, shape: LlamaShape) -> TensorSource:
    dims = tuple(int(dim) for dim in reversed(tensor.shape))
    name, expected, num_heads = _place(tensor.name, shape)
    if dims != expected:
        raise ModelError(f"tensor {tensor.name}: found shape {list(dims)}, expected {list(expected)}")
    order = None if num_heads == 0 else _half_split_order(dims[0], num_heads)
    return TensorSource(name, dims, lambda: _slabs(tensor, order))


def _place(name: str, shape: LlamaShape) -> tuple[str, tuple[int, ...], int]:
    """Return a tensor's name in transformers, its shape, and the number of heads whose rows are interleaved (0: none are)."""
    if name in _GLOBAL:
        vector = name == "output_norm.weight"
        return _GLOBAL[name], (shape.hidden,) if vector else (shape.vocab_size, shape.hidden), 0
    if not (match := _IN_LAYER.fullmatch(name)) or int(match[1]) >= shape.num_layers:
        raise ModelError(f"tensor {name} is unknown in a llama of {counted(shape.num_layers, 'layer')}")
    layer, part, kind = match.groups()
    if part in _NORMS and kind == "weight":
        return f"model.layers.{layer}.{_NORMS[part]}.weight", (shape.hidden,), 0
    if part not in _PROJECTIONS:
        raise ModelError(f"tensor {name} is unknown in a llama")
    matrix = shape.rows[part]
    num_heads = {"attn_q": shape.num_heads, "attn_k": shape.num_kv_heads}.get(part, 0)
    return f"model.layers.{layer}.{_PROJECTIONS[part]}.{kind}", matrix if kind == "weight" else matrix[:1], num_heads


def _half_split_order(num_rows: int, num_heads: int) -> npt.NDArray[np.intp]:
    """Return which row of the file comes where: of each head first those of even number, then those of odd number."""
    pairs = np.arange(num_rows, dtype=np.intp).reshape(num_heads, -1, 2)
    return pairs.swapaxes(1, 2).reshape(-1)


def _slabs(tensor: ReaderTensor, order: npt.NDArray[np.intp] | None) -> Iterable[npt.NDArray[np.float32]]:
    """Yield a tensor's values as float32, some rows at a time."""
    rows = tensor.data if order is None else tensor.data[order]
    step = max(_SLAB_ELEMENTS * len(rows) // max(tensor.n_elements, 1), 1)
    for start in range(0, len(rows), step):
        try:
            values = dequantize(rows[start : start + step], tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise ModelError(f"tensor {tensor.name}: its quantization {kind} cannot be read") from None
        yield values.astype(np.float32, copy=False)


def _rope_parameters(reader: GGUFReader, shape: LlamaShape) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_linear_factor is not None:
        parameters |= {"rope_type": "linear", "factor": shape.rope_linear_factor}
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS:
            factors = dequantize(tensor.data, tensor.tensor_type)
            parameters |= _llama3_scaling(factors, shape.rope_theta, shape.head_dim)
    return parameters


def _llama3_scaling(factors: npt.NDArray[np.float32], theta: float, head_dim: int) -> dict[str, Any]:
    """Return the `llama3` scaling that yields these divisors of the rotary frequencies.

    The file holds the divisors and not what they were made from. All Llama 3 models share three of the four numbers, and
    the fourth is the largest divisor; that guess is then checked against every divisor.
    """
    largest, low, high, context = float(factors.max()), 1.0, 4.0, 8192
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / largest + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelError(
            f"tensor {_ROPE_FACTORS} scales rotary frequencies in an unknown way: use the safetensors checkpoint"
        )
    return {
        "rope_type": "llama3",
        "factor": largest,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }


def _linear_factor(reader: GGUFReader) -> float | None:
    kind = _value(
        reader, "llama.rope.scaling.type", "linear" if _value(reader, "llama.rope.scale_linear", 0) else "none"
    )
    if kind not in ("none", "linear"):
        raise ModelError(
            f"llama.rope.scaling.type: found {kind!r}, expected none or linear: use the safetensors checkpoint"
        )
    factor = float(_value(reader, "llama.rope.scaling.factor", _value(reader, "llama.rope.scale_linear", 0)))
    return _shortest(factor) if kind == "linear" and factor not in (0.0, 1.0) else None


def _same_in_all_layers(reader: GGUFReader, key: str, default: Any = None) -> int:
    value = _value(reader, key, default)
    distinct = set(value) if isinstance(value, list) else {value}
    if len(distinct) != 1:
        raise ModelError(f"{key}: found {value}, expected the same in all layers")
    return int(distinct.pop())


def _value(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    if field is not None:
        return field.contents()
    if default is None:
        raise ModelError(f"metadata {key} is missing")
    return default


def _shortest(value: float) -> float:
    """Return the shortest decimal that is this float32: the number that the model's authors wrote."""
    return float(str(np.float32(value)))
