"""What can be known of an engine's settings without loading its model: whether a start with them has a chance.

It runs in a process of its own while another engine may hold the device's memory, so it makes no CUDA context and compares with
what the device has in all, not with what is free now. What passes here can still fail to load; what fails here would.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from pipelines.config import CacheDtype, EngineConfig
from pipelines.core.request import Progress, Ready
from pipelines.errors import OutOfMemoryError
from pipelines.models.attention import FLOAT8
from pipelines.models.model import ModelNeeds
from pipelines.models.native import read_needs
from pipelines.models.native_config import is_native
from pipelines.models.source import resolve_model
from pipelines.runtime.device import resolve_device
from pipelines.runtime.kv_cache import CacheNeeds, count_blocks
from pipelines.runtime.memory import gib, total_memory_bytes
from pipelines.text.loading import load_text_model


def preflight(config: EngineConfig, report: Callable[[Progress], None]) -> Ready:
    """Check a model's tokenizer, configuration, implementation and memory; download or convert it if need be.

    Raises:
        ModelError: the model cannot be found, or not be run with these settings.
        OutOfMemoryError: its weights, or the cache of one context beside them, can never fit.
        EngineError: the model cannot be kept on this machine.
    """
    device = resolve_device(config.model.device)
    folder = resolve_model(config.model, report)
    needs = _needs(folder, config, device)
    total_bytes = total_memory_bytes(device)
    if total_bytes is not None:
        check_memory(needs, config, device, total_bytes)
    text = load_text_model(config, report)
    return Ready(text.name, needs.context, text.vocab_size, detail=f"{needs.name} on {device}")


def check_memory(needs: ModelNeeds, config: EngineConfig, device: torch.device, total_bytes: int) -> None:
    """Refuse what can never fit on a device of this size.

    Raises:
        OutOfMemoryError: it cannot.
    """
    if needs.weight_bytes > total_bytes:
        raise OutOfMemoryError(
            f"its weights need {gib(needs.weight_bytes)}, and {device} has {gib(total_bytes)} in all: choose a model.dtype "
            "of fewer bytes or a smaller model"
        )
    if needs.layers is not None and needs.dtype is not None:
        kept_as = FLOAT8 if config.kv_cache.dtype is CacheDtype.FP8 else needs.dtype
        cache = CacheNeeds(needs.layers, kept_as, needs.context, config.batch.max_num_seqs)
        count_blocks(config.kv_cache, cache, device, total_bytes - needs.weight_bytes)


def _needs(folder: Path, config: EngineConfig, device: torch.device) -> ModelNeeds:
    if is_native(config.model, folder):
        return read_needs(folder, config.model, device, config.max_context)
    from pipelines.models import adapter  # noqa: PLC0415  takes seconds, and native models do without

    return adapter.read_needs(folder, config.model, device, config.max_context)
