"""Runs a decoder-only transformers model on the paged KV cache, through transformers' attention interface.

The model is loaded as transformers has it; only its attention calls come here. What the engine needs to know of it (the shape
of each layer, sliding windows, whether this works at all) is learnt from a probe at load, not from lists of names:

 1. The model runs two short texts with its own attention.
 2. It runs one with a port in place of attention, which notes what each layer asks for and what its mask lets it see.
 3. It runs both through our attention, as prefills, a later chunk and decodes. The scores must agree.

What cannot be run so is refused with the reason.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from pipelines.config import ModelConfig, Quantization
from pipelines.counted import counted
from pipelines.errors import EngineError, ModelError
from pipelines.models.attention import LayerKv, LayerSpec, PagedAttention
from pipelines.models.attention_port import AttentionPort
from pipelines.models.checkpoint import plain_state, refuse_unexplained
from pipelines.models.model import ModelNeeds, naming_model, settle_context, settle_dtype
from pipelines.models.native_files import stored_tensors
from pipelines.models.prepacked import prepack_linears
from pipelines.models.probe import NUM_PROBE_TOKENS, Probe, layer_specs
from pipelines.models.quantized_config import read_quantization

_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})  # rotations change with the longest sequence of a batch


class TransformersModel:
    """See `Model`."""

    def __init__(
        self, folder: Path, config: ModelConfig, device: torch.device, max_context: int | None, spare_bytes: int = 0
    ) -> None:
        """Load and probe; on a CPU, weights may take `spare_bytes` besides for speed.

        Raises:
            ModelError: it cannot be loaded, or not be run by this engine.
        """
        self.device = device
        self._folder = folder
        with self._refusing():
            self._config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=config.trust_remote_code
            )
            self.context = _context(self._config, max_context)
            self._module = self._load(config)
            self._port = AttentionPort.register()
            self.layers: tuple[LayerSpec, ...] = ()
            self._picks_rows = True  # it computes scores for the asked rows alone
            self.vocab_size = 0
            self.num_prepacked = 0  # linear layers that run on weights laid out for the CPU
            with torch.inference_mode():
                self._probe(spare_bytes)

    @property
    def dtype(self) -> torch.dtype:
        """See `Model`."""
        dtype: torch.dtype = self._module.dtype
        return dtype

    @property
    def name(self) -> str:
        """Class of the model."""
        return type(self._module).__name__

    @property
    def module(self) -> nn.Module:
        """The model itself, for those that make its layers faster."""
        module: nn.Module = self._module
        return module

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        sample_tokens: Tensor,
        attention: PagedAttention,
        cache: Sequence[LayerKv],
    ) -> Tensor:
        """See `Model`.

        Raises:
            ModelError: not every layer called our attention.
        """
        self._port.begin(attention, cache)
        try:
            scores: Tensor = self._call(token_ids[None], positions[None], sample_tokens)[0]
        finally:
            self._port.end()
        if self._port.num_served != len(self.layers):
            raise ModelError(
                f"{self.name}: {self._port.num_served} of {counted(len(self.layers), 'layer')} called our attention"
            )
        return scores if self._picks_rows else scores[sample_tokens]

    def close(self) -> None:
        """See `Model`."""
        self._port.close()
        del self._module

    def _load(self, config: ModelConfig) -> Any:
        _check_kind(self._config, config)
        dtype = settle_dtype(config.dtype, self.device)
        with _without_progress_bar():
            if read_quantization(self._folder) is None:
                refuse_unexplained(self._folder)
                module, info = _from_files(self._folder, dtype, config)
            else:
                module, info = self._from_decoded(dtype, config)
        if missing := sorted(info["missing_keys"]):
            raise ModelError(f"its files lack {len(missing)} of its weights, such as {missing[0]}")
        return module.eval().requires_grad_(False).to(self.device)

    def _from_decoded(self, dtype: torch.dtype | None, config: ModelConfig) -> tuple[Any, dict[str, Any]]:
        """Let transformers have the weights of a quantized checkpoint as if they never had been."""
        dtype = dtype or getattr(self._config, "dtype", None) or torch.bfloat16
        state = plain_state(self._folder, dtype)
        for holder in (self._config, self._config.get_text_config()):
            if hasattr(holder, "quantization_config"):
                del holder.quantization_config
        with torch.device("meta"):  # to learn its class, which takes tensors, where the Auto class takes files alone
            empty = AutoModelForCausalLM.from_config(self._config, trust_remote_code=config.trust_remote_code)
        module, info = type(empty).from_pretrained(
            None, config=self._config, state_dict=state, dtype=dtype, output_loading_info=True
        )
        unknown = sorted(
            name for name in info["unexpected_keys"] if not (name.endswith(".bias") and not bool(state[name].any()))
        )
        if unknown:
            raise ModelError(
                f"its files hold {counted(len(unknown), 'tensor')} that it does not have, such as {unknown[0]}"
            )
        return module, info

    def _probe(self, spare_bytes: int) -> None:
        probe = Probe.make(self._config.get_text_config().vocab_size, self.device)
        positions = torch.arange(NUM_PROBE_TOKENS, device=self.device)[None]
        reference = torch.cat([self._call(ids[None], positions, 0) for ids in probe.token_ids])
        self.vocab_size = reference.shape[-1]

        self._set_attention(self._port.probe_name)
        scores = self._call(probe.token_ids[:1], positions, torch.tensor([NUM_PROBE_TOKENS - 1], device=self.device))
        self._picks_rows = scores.shape[1] == 1
        num_layers = self._config.get_text_config().num_hidden_layers
        self.layers = tuple(layer_specs(self._port.calls, num_layers, self.context))
        self._port.settle(self.layers)

        if self.device.type == "cpu" and self.dtype == torch.float32:
            self.num_prepacked = prepack_linears(self._module, spare_bytes)
        self._set_attention(self._port.name)
        probe.compare(reference, probe.paged_scores(self.forward, self.layers, self.dtype), self.dtype)

    def _call(self, token_ids: Tensor, positions: Tensor, logits_to_keep: Tensor | int) -> Tensor:
        output = self._module(
            input_ids=token_ids, position_ids=positions, use_cache=False, logits_to_keep=logits_to_keep
        )
        logits: Tensor = output.logits
        return logits

    def _set_attention(self, name: str) -> None:
        self._module.set_attn_implementation(name)
        if self._module.config._attn_implementation != name:  # noqa: SLF001  transformers has no public getter
            raise ModelError("it does not use transformers' attention interface")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn whatever loading and probing raise into one line that names the model."""
        with _refusals(self._folder):
            yield


def read_needs(folder: Path, config: ModelConfig, device: torch.device, max_context: int | None) -> ModelNeeds:
    """Say what a model will take, without its weights; its layers are known once it runs.

    Raises:
        ModelError: transformers has no such model, or it is none for this engine.
    """
    with _refusals(folder):
        found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=config.trust_remote_code)
        _check_kind(found, config)
        context = _context(found, max_context)
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(found, trust_remote_code=config.trust_remote_code)
        read_quantization(folder)  # that it can be decoded
        stored = stored_tensors(folder)  # that they can be opened
        dtype = settle_dtype(config.dtype, device)
        num_elements = sum(parameter.numel() for parameter in module.parameters())
        weight_bytes = num_elements * dtype.itemsize if dtype else sum(tensor.num_bytes for tensor in stored.values())
        return ModelNeeds(type(module).__name__, context, weight_bytes, None, None)


def _check_kind(found: Any, config: ModelConfig) -> None:
    if config.quantization is not Quantization.NONE:
        raise ModelError(
            f"model.quantization is {config.quantization}, which the native decoder alone has; found a model that runs "
            "through transformers"
        )
    if getattr(found, "is_encoder_decoder", False):
        raise ModelError("it is an encoder-decoder model, expected a decoder-only one")


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Turn whatever transformers says of a model into one line that names it."""
    with naming_model(folder):
        try:
            yield
        except EngineError:
            raise
        except Exception as error:
            text = next(iter(str(error).strip().splitlines()), "")
            raise ModelError(f"it cannot be run: {type(error).__name__}: {text}") from error


def _from_files(folder: Path, dtype: torch.dtype | None, config: ModelConfig) -> tuple[Any, dict[str, Any]]:
    loaded: tuple[Any, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype or "auto",
        local_files_only=True,
        trust_remote_code=config.trust_remote_code,
        output_loading_info=True,
    )
    return loaded


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing on the engine's standard error; its progress is reported in records."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _context(config: Any, max_context: int | None) -> int:
    """Return how many tokens a sequence may have."""
    text_config = config.get_text_config()
    native: Any = getattr(text_config, "max_position_embeddings", None)
    context = settle_context(max_context, native)
    for rope in _rope_parameters(text_config):
        limit = int(rope.get("original_max_position_embeddings") or native or context)
        if rope.get("rope_type", rope.get("type")) in _LENGTH_DEPENDENT_ROPE and context > limit:
            raise ModelError(
                f"its {rope.get('rope_type')} position embedding changes with the longest sequence of a batch once one is "
                f"longer than {counted(limit, 'token')}: set max_context to at most {limit}"
            )
    return context


def _rope_parameters(text_config: Any) -> list[dict[str, Any]]:
    """Return the position embedding's parameters, one dict or one a kind of layer."""
    parameters = getattr(text_config, "rope_parameters", None) or getattr(text_config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
