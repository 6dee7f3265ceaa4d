"""The paged KV cache: how many blocks the device can hold, and the pages of each layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from pipelines.config import KvCacheConfig
from pipelines.counted import counted
from pipelines.errors import ModelError, OutOfMemoryError
from pipelines.models.attention import KvScales, LayerKv, LayerSpec
from pipelines.runtime.memory import gib


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """What the cache is made for."""

    layers: Sequence[LayerSpec]
    dtype: torch.dtype  # of what is kept
    context: int  # tokens a sequence may have
    max_num_seqs: int
    scales: Sequence[KvScales] = ()  # of each layer, where what is kept is float8


class KvCache:
    """The pages of all layers. Untouched pages cost no memory on a CPU: they are not cleared, and never read."""

    def __init__(self, needs: CacheNeeds, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = needs.dtype
        shape = (num_blocks, block_size)
        self.layers = tuple(
            LayerKv(
                keys=torch.empty((*shape, spec.num_kv_heads, spec.key_dim), dtype=needs.dtype, device=device),
                values=torch.empty((*shape, spec.num_kv_heads, spec.value_dim), dtype=needs.dtype, device=device),
                scales=scales,
            )
            for spec, scales in zip(needs.layers, needs.scales or repeat(None), strict=False)
        )

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """Copy blocks of all layers, [C] int64 each: copy-on-write."""
        for layer in self.layers:
            layer.copy_blocks(sources, targets)


def block_bytes(layers: Sequence[LayerSpec], block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes in all layers together."""
    elements = sum(spec.num_kv_heads * (spec.key_dim + spec.value_dim) for spec in layers)
    return elements * block_size * dtype.itemsize


def count_blocks(config: KvCacheConfig, needs: CacheNeeds, device: torch.device, free_bytes: int) -> int:
    """Return how many blocks to allocate.

    On a GPU all that `memory_fraction` allows; on a CPU, where memory is shared with others, no more than what
    `max_num_seqs` full contexts can ever need. `max_tokens` caps both.

    Raises:
        OutOfMemoryError: not even one full context fits into the memory.
        ModelError: nor into `max_tokens`.
    """
    bytes_each = block_bytes(needs.layers, config.block_size, needs.dtype)
    blocks_a_context = -(-needs.context // config.block_size)
    num_blocks = int(free_bytes * config.memory_fraction) // bytes_each
    if num_blocks < blocks_a_context:
        raise OutOfMemoryError(
            f"the KV cache of one context of {counted(needs.context, 'token')} needs {gib(blocks_a_context * bytes_each)}, but "
            f"kv_cache.memory_fraction {config.memory_fraction} of the {gib(free_bytes)} free on {device} is "
            f"{gib(int(free_bytes * config.memory_fraction))}: lower max_context, or free memory"
        )
    if config.max_tokens is not None:
        num_blocks = min(num_blocks, config.max_tokens // config.block_size)
    elif device.type == "cpu":
        num_blocks = min(num_blocks, needs.max_num_seqs * blocks_a_context)
    if num_blocks < blocks_a_context:
        raise ModelError(
            f"kv_cache.max_tokens {config.max_tokens} holds {counted(num_blocks, 'block')} of "
            f"{counted(config.block_size, 'token')}, but one context of {counted(needs.context, 'token')} needs "
            f"{blocks_a_context:,}: raise it, or lower max_context"
        )
    return num_blocks
