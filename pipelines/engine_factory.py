"""Builds an engine from its configuration: the one place where a runner meets a scheduler."""

import time
from collections.abc import Callable
from typing import Any

from pipelines.config import EngineConfig
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import CAPTURE_PHASE, Progress, Ready
from pipelines.core.scheduler import Scheduler
from pipelines.engine import Engine, Source
from pipelines.errors import ModelError
from pipelines.fake import FakeOptions, FakeRunner
from pipelines.text.vocabulary import VocabularyMasks

_MIN_FAKE_CONTEXTS = 4  # full contexts that the cache of a fake engine holds at least


def build_engine(config: EngineConfig, source: Source, report: Callable[[Progress], None]) -> tuple[Engine[Any], Ready]:
    """Return the engine and what it says of itself.

    Raises:
        ModelError: the model cannot be found or run.
        OutOfMemoryError: weights or cache do not fit.
    """
    if config.model.is_fake:
        return _build_fake(config, source)
    from pipelines.models.source import resolve_model  # noqa: PLC0415  a model that is not there is told without torch

    folder = resolve_model(config.model, report)
    report(Progress("load", 0.0))
    from pipelines.runtime.model_runner import ModelRunner  # noqa: PLC0415  torch: not for the fake engine

    runner = ModelRunner(
        config,
        folder,
        report=lambda done: report(Progress("load", done)),
        report_capture=lambda done: report(Progress(CAPTURE_PHASE, done)),
    )
    ready = Ready(
        model=runner.model_name,
        context=runner.context,
        vocab_size=runner.vocab_size,
        max_num_seqs=config.batch.max_num_seqs,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        detail=runner.detail,
        warnings=runner.warnings,
    )
    return _assemble(config, source, runner, ready), ready


def _build_fake(config: EngineConfig, source: Source) -> tuple[Engine[Any], Ready]:
    from pipelines.text.byte_tokenizer import ByteTokenizer  # noqa: PLC0415  beside FakeRunner, for this model alone

    options = FakeOptions.parse(config.model.path)
    time.sleep(options.load_ms / 1e3)
    if options.load_fails:
        raise ModelError(f"model.path {config.model.path}: loading it fails, as it says")
    tokenizer = ByteTokenizer(options.context)
    alphabet = tokenizer.encode_text("etaoin shrdlu cmfwyp")
    runner = FakeRunner(options, alphabet, tokenizer.eos_id, config.buffers.slots)
    context = min(options.context, config.max_context or options.context)
    ready = Ready(
        model="fake",
        context=context,
        vocab_size=tokenizer.vocab_size,
        max_num_seqs=config.batch.max_num_seqs,
        num_blocks=max(_MIN_FAKE_CONTEXTS, config.batch.max_num_seqs) * -(-context // config.kv_cache.block_size),
        block_size=config.kv_cache.block_size,
        detail="no model: tokens are a hash of seed and position",
    )
    return _assemble(config, source, runner, ready), ready


def _assemble(config: EngineConfig, source: Source, runner: Any, ready: Ready) -> Engine[Any]:
    blocks = BlockManager(ready.num_blocks, ready.block_size, prefix_caching=config.kv_cache.prefix_caching)
    scheduler = Scheduler(config.batch, blocks)
    masks = VocabularyMasks(ready.vocab_size)
    return Engine(
        runner,
        scheduler,
        source,
        config.schedule,
        traffic=runner.traffic,
        new_mask=masks.mask,
        learn=masks.learn,
    )
