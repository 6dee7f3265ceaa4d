"""The cache is as large as the configuration and the memory allow, and says which key to change where it cannot be."""

from pathlib import Path

import pytest
import torch

from pipelines.config import KvCacheConfig
from pipelines.errors import ModelError, OutOfMemoryError
from pipelines.models.attention import LayerSpec
from pipelines.runtime.kv_cache import CacheNeeds, KvCache, block_bytes, count_blocks
from pipelines.runtime.memory import free_memory_bytes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LAYERS = (LayerSpec(8, 2, 16, 16, None), LayerSpec(8, 4, 8, 24, 5))
NEEDS = CacheNeeds(LAYERS, torch.float32, context=1000, max_num_seqs=3)
BLOCK = 64 * 4 * (2 * 32 + 4 * 32)  # bytes: Z * itemsize * sum of K * (H + Hv)
GIB = 2**30


def test_a_block_counts_keys_and_values_of_all_layers() -> None:
    """Layers of different shapes."""
    assert block_bytes(LAYERS, 64, torch.float32) == BLOCK
    assert block_bytes(LAYERS, 64, torch.bfloat16) == BLOCK // 2


def test_on_a_cpu_the_cache_holds_what_all_sequences_can_need() -> None:
    """Three contexts of 16 blocks, however much memory there is."""
    assert count_blocks(KvCacheConfig(), NEEDS, CPU, 64 * GIB) == 3 * 16


def test_on_a_cpu_with_little_memory_the_fraction_decides() -> None:
    """Half of 40 blocks' worth."""
    assert count_blocks(KvCacheConfig(memory_fraction=0.5), NEEDS, CPU, 40 * BLOCK) == 20


def test_on_a_gpu_the_cache_takes_the_fraction() -> None:
    """Free memory there is for nothing else."""
    assert count_blocks(KvCacheConfig(memory_fraction=0.5), NEEDS, CUDA, 1000 * BLOCK) == 500


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_max_tokens_caps_both(device: torch.device) -> None:
    """1,300 tokens are 20 whole blocks; on a CPU it may also ask for more than the default."""
    assert count_blocks(KvCacheConfig(max_tokens=1300), NEEDS, device, 64 * GIB) == 20
    assert count_blocks(KvCacheConfig(max_tokens=64 * 100), NEEDS, device, 64 * GIB) == 100


def test_too_little_memory_for_one_context_is_refused_with_numbers_and_key() -> None:
    """What was needed, what is free, what to lower."""
    with pytest.raises(OutOfMemoryError) as error:
        count_blocks(KvCacheConfig(memory_fraction=0.9), NEEDS, CPU, 17 * BLOCK)
    text = str(error.value)
    assert "context of 1,000 tokens" in text
    assert "memory_fraction 0.9" in text
    assert "lower max_context" in text


def test_max_tokens_under_one_context_is_refused_by_its_name() -> None:
    """The engine could never run the longest request it promises, whatever memory there is: an edit mends it."""
    with pytest.raises(ModelError, match=r"kv_cache.max_tokens 960 holds 15 blocks .* needs 16"):
        count_blocks(KvCacheConfig(max_tokens=960), NEEDS, CPU, 64 * GIB)


def test_copying_blocks_copies_all_layers_and_nothing_else() -> None:
    """Sources stay, targets are equal to them, in keys and in values."""
    cache = KvCache(NEEDS, 6, 4, CPU)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    cache.copy_blocks(torch.tensor([0, 3]), torch.tensor([5, 1]))
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        expected = [0, 3, 2, 3, 4, 0]
        assert torch.equal(layer.keys, keys[expected])
        assert torch.equal(layer.values, values[expected])


def test_free_memory_is_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    """MemAvailable, in kB, not MemFree."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable:     50 kB\n")
    assert free_memory_bytes(CPU, meminfo) == 51_200
    meminfo.write_text("MemTotal: 100 kB\n")
    with pytest.raises(OutOfMemoryError, match="no MemAvailable"):
        free_memory_bytes(CPU, meminfo)
