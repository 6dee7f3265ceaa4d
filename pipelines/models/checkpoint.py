"""The weights of a model folder as plain tensors, whatever form its files have them in.

A quantized weight is several stored tensors (values, scales, zero points); here it is one of the usual name and shape, decoded
a slab at a time when it is read. Activations are not quantized: scales for them are left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipelines.errors import ModelError
from pipelines.models.native_files import StoredTensor, WeightTensor, stored_tensors
from pipelines.models.quantized_config import Packing, StoredQuantization, read_quantization
from pipelines.models.quantized_weights import Decoded, Parts, decode_awq, decode_bnb, decode_gptq, decode_scaled

_OF_ACTIVATIONS = (
    "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point", "activation_scale",
    "q_scale", "k_scale", "v_scale", "q_zero_point", "k_zero_point", "v_zero_point", "weight_format",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Form:
    """What belongs together in a packing: ends of names, behind what comes before `weight`."""

    values: str
    others: tuple[str, ...]
    decode: Callable[[Parts, StoredQuantization], Decoded]


_SCALES = ("weight_scale", "weight_scale_inv", "weight_zero_point")
_BNB_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_BNB_STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
_FORMS = {
    Packing.FLOAT8: _Form("weight", _SCALES, decode_scaled),
    Packing.INT8: _Form("weight", _SCALES, decode_scaled),
    Packing.PACKED_ROWS: _Form("weight_packed", (*_SCALES, "weight_shape", "weight_g_idx"), decode_scaled),
    Packing.AWQ: _Form("qweight", ("qzeros", "scales"), decode_awq),
    Packing.GPTQ: _Form("qweight", ("qzeros", "scales", "g_idx"), decode_gptq),
    Packing.BNB_4BIT: _Form("weight", tuple(f"weight.{part}" for part in (*_BNB_PARTS, *_BNB_STATES)), decode_bnb),
    Packing.BNB_8BIT: _Form("weight", ("SCB",), decode_scaled),
}


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A weight that is decoded when it is read."""

    name: str
    file: Path  # of its values
    decoded: Decoded

    @property
    def shape(self) -> tuple[int, ...]:
        """Once decoded."""
        return self.decoded.shape

    def rows(self, first: int, end: int) -> Tensor:
        """Return the rows `first` .. `end` - 1, float32."""
        return self.decoded.rows(first, end)

    def read(self) -> Tensor:
        """Return all of it, float32."""
        return self.rows(0, self.shape[0])


def checkpoint_tensors(folder: Path) -> Mapping[str, WeightTensor]:
    """Return the weights of a model folder by name.

    Raises:
        ModelError: files are missing or damaged, or quantized in a way that cannot be decoded.
    """
    quantization = read_quantization(folder)
    stored = stored_tensors(folder)
    return stored if quantization is None else _decoded(stored, quantization)


def refuse_unexplained(folder: Path) -> None:
    """Refuse 8-bit weights of which a configuration says nothing: read as numbers they would be wrong ones.

    Raises:
        ModelError: there are some.
    """
    if not any(folder.glob("*.safetensors")):
        return
    for name, tensor in stored_tensors(folder).items():
        if tensor.kind in {"I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"}:
            raise ModelError(
                f"{tensor.file}: tensor {name} is stored as {tensor.kind}, and its config.json has no quantization_config "
                "that says what its values mean"
            )


def _decoded(stored: dict[str, StoredTensor], quantization: StoredQuantization) -> dict[str, WeightTensor]:
    form = _FORMS[quantization.packing]
    groups: dict[str, dict[str, StoredTensor]] = {}
    plain: dict[str, WeightTensor] = {}
    for name, tensor in stored.items():
        part = next((end for end in (*form.others, form.values) if name.endswith(f".{end}")), None)
        if part is not None and (part != form.values or _is_packed(tensor)):
            groups.setdefault(name.removesuffix(part), {})[part] = tensor
        elif not name.endswith(_OF_ACTIVATIONS):
            plain[name] = tensor
    for prefix, tensors in groups.items():
        if form.values not in tensors:
            raise ModelError(f"its files hold {prefix}{next(iter(tensors))}, and lack {prefix}{form.values} beside it")
        values = tensors.pop(form.values)
        parts = Parts(f"{prefix}{form.values}", values, tensors)
        plain[f"{prefix}weight"] = QuantizedTensor(f"{prefix}weight", values.file, form.decode(parts, quantization))
    return plain


def _is_packed(tensor: StoredTensor) -> bool:
    """Whether values are no plain weight, as layers that were left out of the quantization have it."""
    return tensor.kind not in {"F32", "F16", "BF16", "F64"}


def plain_state(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return all weights of a quantized model folder, decoded to `dtype`; those that are not quantized are as stored.

    Raises:
        ModelError: see `checkpoint_tensors`.
    """
    return {
        name: tensor.read().to(dtype) if isinstance(tensor, QuantizedTensor) else tensor.read()
        for name, tensor in checkpoint_tensors(folder).items()
    }
