"""Finds the scales of a float8 KV cache: a short text is run once at load, and each KV head's highest magnitudes are noted.

e4m3 is a floating-point format: its error relative to a value is the same over 15 octaves (6 % at most), so a scale has only to
keep values within them. It is a power of two, which costs no rounding, and leaves `_HEADROOM` above what the text showed; still
11 octaves lie below that. A scale of 1 for all, the usual default, clips the keys of models whose biases drive them beyond 448.
Fixed scales let a block be shared, copied and written by parts like any other.
"""

import math

import torch
from torch import Tensor

from pipelines.errors import ModelError
from pipelines.models.attention import (
    FLOAT8_MAX,
    AttentionInputs,
    KvScales,
    LayerKv,
    PagedAttention,
    plan_attention,
)
from pipelines.models.model import Model

_NUM_TOKENS = 64
_HEADROOM = 8.0  # how much more other texts may show
_STRIDE = 7919  # through the vocabulary


def measure_scales(model: Model) -> tuple[KvScales, ...]:
    """Return the scales of each layer.

    Raises:
        ModelError: keys or values are not finite.
    """
    with torch.inference_mode():
        cache = _run(model)
        return tuple(KvScales(_scales(layer.keys), _scales(layer.values), model.dtype) for layer in cache)


def _run(model: Model) -> list[LayerKv]:
    """Run the text as one chunk; each layer's keys and values come back as one block."""
    device, num_tokens = model.device, min(_NUM_TOKENS, model.context)
    positions = torch.arange(num_tokens, device=device)
    row = torch.zeros(1, dtype=torch.int64, device=device)
    cache = [
        LayerKv(
            torch.zeros((1, num_tokens, spec.num_kv_heads, spec.key_dim), dtype=model.dtype, device=device),
            torch.zeros((1, num_tokens, spec.num_kv_heads, spec.value_dim), dtype=model.dtype, device=device),
        )
        for spec in model.layers
    ]
    inputs = AttentionInputs(
        plan=plan_attention([num_tokens], [num_tokens]),
        token_tables=torch.zeros_like(positions),
        row_tables=row,
        block_tables=torch.zeros((1, 1), dtype=torch.int32, device=device),
        positions=positions,
        context_lens=row + num_tokens,
        block_size=num_tokens,
    )
    token_ids = (positions + 1) * _STRIDE % model.vocab_size
    model.forward(token_ids, positions, row, PagedAttention(inputs), cache)
    return cache


def _scales(block: Tensor) -> Tensor:
    """Return the scale of each KV head from a block [1, Z, K, H]: [K] float32."""
    highest: list[float] = block.float().abs().amax(dim=(0, 1, 3)).tolist()
    if not all(map(math.isfinite, highest)):
        raise ModelError("its keys and values are not finite, so there is no scale for a kv_cache.dtype of fp8")
    exponents = [math.ceil(math.log2(each * _HEADROOM / FLOAT8_MAX)) if each else 0 for each in highest]
    return torch.tensor([2.0**exponent for exponent in exponents], device=block.device)
