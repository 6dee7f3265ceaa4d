"""Small models that a runner serves, what transformers makes of them, and streams that leave a wait out."""

import time
from pathlib import Path

from tiny_models import config_of, generate, prompts, save_model

from pipelines.config import (
    BatchConfig,
    EngineConfig,
    Implementation,
    KvCacheConfig,
    ModelConfig,
    StreamKind,
    StreamsConfig,
)
from pipelines.runtime.cpu_stream import CpuEvent, CpuStream
from pipelines.runtime.streams import Event, StreamSet

FAMILIES = ["llama", "qwen2", "mistral", "gemma3"]
PROMPTS = prompts([3, 17, 9, 30, 1, 12])
NUM_TOKENS = 16


def engine_config(
    folder: Path, implementation: Implementation = Implementation.TRANSFORMERS, **streams: StreamKind
) -> EngineConfig:
    return EngineConfig(
        name="test",
        model=ModelConfig(str(folder), device="cpu", implementation=implementation),
        batch=BatchConfig(max_num_seqs=8, max_num_batched_tokens=96),
        streams=StreamsConfig(**streams),
        kv_cache=KvCacheConfig(block_size=4),
        num_threads=1,
    )


def cpu_config(folder: Path, *, num_seqs: int, num_tokens: int, num_blocks: int, block_size: int) -> EngineConfig:
    """Return an engine of these limits, with a cache of a known size."""
    return EngineConfig(
        name="test",
        model=ModelConfig(str(folder), device="cpu"),
        batch=BatchConfig(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens),
        kv_cache=KvCacheConfig(block_size=block_size, max_tokens=block_size * num_blocks),
        num_threads=1,
    )


class Folders:
    """Models saved once, with the tokens that transformers generates for `PROMPTS`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, tuple[Path, list[list[int]]]] = {}

    def get(self, family: str) -> tuple[Path, list[list[int]]]:
        if family not in self._made:
            folder = save_model(config_of(family), self._root / family, seed=FAMILIES.index(family))
            self._made[family] = folder, [generate(folder, prompt, NUM_TOKENS) for prompt in PROMPTS]
        return self._made[family]


class ForgottenEvent(CpuEvent):
    """An event that nobody waits for."""

    def wait(self) -> None:
        """Leave the wait out."""


class ForgetfulStream(CpuStream):
    """A stream whose events of one name are not waited for, neither by the host nor by other streams."""

    def __init__(self, name: str, forgotten: str, delay_s: float) -> None:
        super().__init__(name, before_each=lambda: time.sleep(delay_s))
        self._forgotten = forgotten

    def record(self, name: str) -> Event:
        event = super().record(name)
        return ForgottenEvent(name) if name == self._forgotten else event


def without_wait(forgotten: str, slow: str) -> StreamSet:
    """Return streams that leave one wait out, with a delay in the stream whose work it waits for."""
    return StreamSet.build(
        StreamsConfig(), lambda name: ForgetfulStream(name, forgotten, 0.01 if name == slow else 0.0)
    )
