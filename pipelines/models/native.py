"""Decoder-only models of the Llama family, with fused weights and a forward pass of our own.

From the outside it is what the adapter is. Whether a model is one of these, its configuration alone decides (`native_config`).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from pipelines.config import ModelConfig, Quantization
from pipelines.errors import InvariantError, ModelError
from pipelines.models.attention import LayerKv, LayerSpec, PagedAttention
from pipelines.models.float8_linear import ALIGNMENT, Float8Linear
from pipelines.models.model import ModelNeeds, check_float8, naming_model, settle_context, settle_dtype
from pipelines.models.native_config import NativeConfig, NotNative, native_config
from pipelines.models.native_decoder import Decoder, MakeLinear, assemble, run_decoder
from pipelines.models.native_files import stored_tensors
from pipelines.models.ops_cpu import (
    KernelLinear,
    PackedLinear,
    TorchInputs,
    TorchLinear,
    TorchShared,
    TorchStep,
    linear_maker,
)
from pipelines.models.quantized_config import read_quantization
from pipelines.models.weights import (
    Target,
    checkpoint_dtype,
    load_weights,
    num_elements,
    num_linear_elements,
    random_weights,
)
from pipelines.runtime.memory import check_weights

_NUM_LINEARS_A_LAYER = 4
_NUM_LINEARS_OF_ATTENTION = 2  # of those


class NativeModel:
    """See `Model`."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        device: torch.device,
        max_context: int | None,
        spare_bytes: int = 0,
        *,
        report: Callable[[float], None] = lambda _: None,
        random_seed: int | None = None,
    ) -> None:
        """Load.

        Args:
            folder: of the model.
            config: what was asked for.
            device: where it runs.
            max_context: tokens a sequence may have; None = what the model was made for.
            spare_bytes: what weights may take besides, on a CPU, for speed.
            report: hears the share of the weights that have been read.
            random_seed: make the weights by chance instead of reading any; for benchmarks.

        Raises:
            ModelError: it is no model of these, or its files are not as its configuration says.
            OutOfMemoryError: its weights do not fit.
        """
        self.device = device
        with naming_model(folder):
            self.config = _read(folder)
            self.context = settle_context(max_context, self.config.context)
            self.dtype = settle_dtype(config.dtype, device) or checkpoint_dtype(self.config, folder)
            target = Target(device, self.dtype)
            self._float8 = config.quantization is Quantization.FP8
            if self._float8:
                _check_float8(self.config, target)
            check_weights(_weight_bytes(self.config, self.dtype, config.quantization), device)
            if random_seed is None:
                tensors = load_weights(self.config, folder, target, report)
            else:
                tensors = random_weights(self.config, target, random_seed)
            keeps_plain = 4 * num_linear_elements(self.config) <= spare_bytes
            make_head = linear_maker(target, keeps_plain=keeps_plain)
            make_linear: MakeLinear[TorchLinear] = Float8Linear.make if self._float8 else make_head
            self.decoder: Decoder[TorchLinear] = assemble(tensors, make_linear, make_head)
            self.layers = _specs(self.config, self.context)

    @property
    def vocab_size(self) -> int:
        """See `Model`."""
        return self.config.vocab_size

    @property
    def name(self) -> str:
        """Of its family."""
        return f"native {self.config.model_type}" + (" of float8 projections" if self._float8 else "")

    @property
    def linear_bytes(self) -> int:
        """Bytes of all projections but experts, the head among them: what any decode step reads of the weights."""
        saved = _saved_bytes(self.config, self.dtype) if self._float8 else 0
        return num_linear_elements(self.config) * self.dtype.itemsize - saved

    @property
    def num_prepacked(self) -> int:
        """See `Model`."""
        if not isinstance(self.decoder.head, PackedLinear):
            return 0
        if self._float8:
            return 1
        num_with_experts = len(self.config.experts.layers)
        num_plain = self.config.num_layers - num_with_experts
        return _NUM_LINEARS_A_LAYER * num_plain + _NUM_LINEARS_OF_ATTENTION * num_with_experts + 1

    @cached_property
    def _shared(self) -> TorchShared:
        """What steps by `forward` share; kernels do without."""
        return TorchShared.make(self.config, self.layers, self.context, Target(self.device, self.dtype))

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        sample_tokens: Tensor,
        attention: PagedAttention,
        cache: Sequence[LayerKv],
    ) -> Tensor:
        """See `Model`."""
        inputs = TorchInputs(token_ids, positions, sample_tokens, attention, cache)
        return run_decoder(self.decoder, TorchStep(self._shared, inputs))

    @property
    def plain_decoder(self) -> Decoder[KernelLinear]:
        """The weights as kernels read them.

        Raises:
            InvariantError: they were laid out for the CPU.
        """
        if self.num_prepacked:
            raise InvariantError("kernels were asked to run weights that are laid out for the CPU")
        return cast("Decoder[KernelLinear]", self.decoder)

    def close(self) -> None:
        """See `Model`."""
        del self.decoder


def read_needs(folder: Path, config: ModelConfig, device: torch.device, max_context: int | None) -> ModelNeeds:
    """Say what a model will take, without its weights.

    Raises:
        ModelError: it is no model of these, or its files are not there.
    """
    with naming_model(folder):
        found = _read(folder)
        context = settle_context(max_context, found.context)
        dtype = settle_dtype(config.dtype, device) or checkpoint_dtype(found, folder)
        read_quantization(folder)  # that it can be decoded
        stored_tensors(folder)  # that they can be opened
        if config.quantization is Quantization.FP8:
            _check_float8(found, Target(device, dtype))
        weight_bytes = _weight_bytes(found, dtype, config.quantization)
        return ModelNeeds(f"native {found.model_type}", context, weight_bytes, dtype, _specs(found, context))


def _weight_bytes(config: NativeConfig, dtype: torch.dtype, quantization: Quantization) -> int:
    """Bytes of all weights once they are loaded."""
    saved = _saved_bytes(config, dtype) if quantization is Quantization.FP8 else 0
    return num_elements(config) * dtype.itemsize - saved


def _saved_bytes(config: NativeConfig, dtype: torch.dtype) -> int:
    """Bytes that float8 saves: of all projections but the head."""
    num_quantized = num_linear_elements(config) - config.vocab_size * config.hidden_size
    return num_quantized * (dtype.itemsize - 1)


def _read(folder: Path) -> NativeConfig:
    match native_config(folder):
        case NotNative(reason):
            raise ModelError(f"the native decoder does not run it: {reason}")
        case NativeConfig() as config:
            return config


def _check_float8(config: NativeConfig, target: Target) -> None:
    """Refuse what cannot be computed in float8.

    Raises:
        ModelError: the device, the dtype or the model's sizes.
    """
    key = "model.quantization"
    check_float8(target.device, key)
    if target.device.type == "cuda" and target.dtype != torch.bfloat16:
        found = str(target.dtype).removeprefix("torch.")
        raise ModelError(
            f"{key} is fp8, which computes in bfloat16 on a GPU; found {found}: set model.dtype to bfloat16"
        )
    if config.experts.layers:
        raise ModelError(
            f"{key} is fp8, which is for models without experts; found {config.experts.num_experts} a layer"
        )
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads times head_dim": config.num_heads * config.head_dim,
        "KV heads times head_dim": config.num_kv_heads * config.head_dim,
    }
    for name, size in sizes.items():
        if size % ALIGNMENT:
            raise ModelError(f"{key} is fp8, which needs {name} to be a multiple of {ALIGNMENT}; found {size}")


def _specs(config: NativeConfig, context: int) -> tuple[LayerSpec, ...]:
    return tuple(
        LayerSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            key_dim=config.head_dim,
            value_dim=config.head_dim,
            window=None if window is None or window >= context else window,
        )
        for window in config.windows
    )
