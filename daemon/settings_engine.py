"""The sections `engines.NAME` of the YAML file, and the engine configuration that each becomes.

Every key is declared with its default, its range, its meaning and when a change of it can take effect. The reference page is
generated from that (`python -m daemon.settings_reference`).
"""

from daemon.settings_fields import (
    BLOCK_SIZE_TEXT,
    MAX_SECONDS,
    MAX_TOKENS,
    MODEL_TEXT,
    BlockSize,
    Change,
    GraphSwitch,
    ModelPath,
    Section,
    choice,
    key,
    section,
)
from pipelines.config import (
    BatchConfig,
    BuffersConfig,
    CacheDtype,
    CudaGraphsConfig,
    Dtype,
    EngineConfig,
    GraphMode,
    Implementation,
    KvCacheConfig,
    ModelConfig,
    Priority,
    Quantization,
    Schedule,
    StreamKind,
    StreamsConfig,
)


class ModelSettings(Section):
    """Which model, from where, and in which arithmetic."""

    path: ModelPath = key(
        ...,
        "Hub name, local folder or `.gguf` file (beginning with `./`, `../`, `/` or `~`, or ending in `.gguf`), "
        "or `package:NAME` for weights in an installed package; `'fake:'`, in quotes for its colon, runs no model, for trying "
        "things out.",
        Change.DRAIN,
        MODEL_TEXT,
    )
    revision: str | None = key(
        None, "Branch, tag or commit on the hub; null is its default branch.", Change.DRAIN, min_length=1
    )
    dtype: Dtype = choice(
        Dtype.AUTO,
        "Arithmetic; `auto` is float32 on a CPU, on a GPU what the checkpoint says (a `.gguf` file bfloat16, "
        "unless it is mostly float32).",
        Change.DRAIN,
    )
    device: str = key(
        "auto",
        "Where the model runs; `auto` is the first GPU, else the CPU.",
        Change.DRAIN,
        "auto, cpu, cuda or cuda:N",
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$",
    )
    implementation: Implementation = choice(
        Implementation.AUTO,
        "Which code runs the model: our own for the families that it knows (`native`), transformers' for all others.",
        Change.DRAIN,
    )
    trust_remote_code: bool = key(False, "Run Python code that comes with the model.", Change.DRAIN)
    quantization: Quantization = choice(
        Quantization.NONE,
        "What is made of the weights at load: `fp8` keeps the projections in 8 bits (e4m3) and multiplies in them, at half the "
        "memory and some loss of precision; native models without experts, in bfloat16 on a GPU of compute capability 8.9. A "
        "checkpoint that is quantized already is decoded in any case.",
        Change.DRAIN,
    )


class BatchSettings(Section):
    """Limits of one step."""

    max_num_seqs: int = key(256, "Sequences that run at once.", Change.ALLOCATED, ge=1, le=65536)
    max_num_batched_tokens: int = key(
        8192,
        "Tokens of one step, prompts in chunks included; at least `max_num_seqs`.",
        Change.ALLOCATED,
        ge=1,
        le=2**20,
    )


class StreamsSettings(Section):
    """Where the copies between host and device run."""

    h2d: StreamKind = choice(
        StreamKind.DEDICATED,
        "Copies to the device: on a stream of their own, or in line with the arithmetic.",
        Change.DRAIN,
    )
    d2h: StreamKind = choice(StreamKind.DEDICATED, "Copies from the device, likewise.", Change.DRAIN)
    compute_priority: Priority = choice(
        Priority.HIGH, "Of the arithmetic over the copies, where there is a GPU.", Change.DRAIN
    )


class BuffersSettings(Section):
    """The buffers of the steps in flight."""

    slots: int = key(2, "Steps that can be in flight; `schedule: async` needs 2.", Change.DRAIN, ge=1, le=8)
    pinned: bool = key(True, "Keep the host's buffers in page-locked memory, where there is a GPU.", Change.DRAIN)


class CudaGraphsSettings(Section):
    """Steps captured at the start, on a GPU, for models with a native decoder."""

    enabled: GraphSwitch = choice(
        GraphMode.AUTO,
        "Launch small steps as captured graphs: `auto` where the device and the model allow, and says where they do not; "
        "`true` or not at all.",
        Change.DRAIN,
    )
    max_tokens: int = key(
        512,
        "Tokens of the largest captured step; full ones, of `batch.max_num_batched_tokens`, are captured besides.",
        Change.DRAIN,
        ge=1,
        le=8192,
    )
    per_slot: bool = key(
        False,
        "A set of graphs for each of `buffers.slots`, instead of one set and a copy in front of it.",
        Change.DRAIN,
    )
    share_pool: bool = key(True, "Let the sets of several slots take their memory from one pool.", Change.DRAIN)


class KvCacheSettings(Section):
    """The paged cache of keys and values."""

    block_size: BlockSize = key(64, "Tokens of one block.", Change.DRAIN, BLOCK_SIZE_TEXT)
    memory_fraction: float = key(
        0.9,
        "Share of the memory left beside the weights that the cache may take; of engines on one GPU at most 1 together.",
        Change.DRAIN,
        gt=0,
        le=1,
    )
    max_tokens: int | None = key(
        None,
        "Tokens that the cache holds at most; null leaves it to `memory_fraction`.",
        Change.DRAIN,
        ge=1,
        le=MAX_TOKENS,
    )
    dtype: CacheDtype = choice(
        CacheDtype.AUTO,
        "How keys and values are kept: as the model computes them, or as `fp8` (e4m3), which holds twice as many tokens of a "
        "16-bit model and loses some precision; native models then need a GPU of compute capability 8.9, or a CPU.",
        Change.DRAIN,
    )
    prefix_caching: bool = key(
        True, "Compute the beginning that several prompts share once, as long as it stays in the cache.", Change.DRAIN
    )


class EngineSettings(Section):
    """One engine: a model on a device."""

    model: ModelSettings
    schedule: Schedule = choice(
        Schedule.ASYNC,
        "`async` prepares a step while the one before runs; `sync` has at most one in flight.",
        Change.LIVE,
    )
    batch: BatchSettings = section(BatchSettings)
    streams: StreamsSettings = section(StreamsSettings)
    buffers: BuffersSettings = section(BuffersSettings)
    cuda_graphs: CudaGraphsSettings = section(CudaGraphsSettings)
    kv_cache: KvCacheSettings = section(KvCacheSettings)
    stall_s: float = key(
        120.0,
        "Seconds without any progress (loading, capturing, steps, answers) after which an engine that has work is killed "
        "and started again, and `/readyz` says that it hangs; more than its longest step takes.",
        Change.LIVE,
        gt=0,
        le=MAX_SECONDS,
    )
    idle_unload_s: float | None = key(
        None,
        "Seconds without a request after which it is unloaded, so that its memory is free for others; it is loaded when a file "
        "needs it, the first time too. null loads it at the start and keeps it.",
        Change.LIVE,
        gt=0,
        le=MAX_SECONDS,
    )
    max_restarts: int = key(
        5,
        "Times in a row, with no answer in between, that a dead engine is started again; then it is paused.",
        Change.LIVE,
        ge=0,
        le=1000,
    )
    num_threads: int | None = key(
        None, "CPU threads of the arithmetic; null is all cores that the process may use.", Change.DRAIN, ge=1, le=1024
    )
    max_context: int | None = key(
        None,
        "Tokens of prompt and answer together; null is what the model was made for.",
        Change.DRAIN,
        ge=2,
        le=MAX_TOKENS,
    )

    def to_engine_config(self, name: str) -> EngineConfig:
        """Return what the engine's processes are told."""
        return EngineConfig(
            name=name,
            model=ModelConfig(**dict(self.model)),
            schedule=self.schedule,
            batch=BatchConfig(**dict(self.batch)),
            streams=StreamsConfig(**dict(self.streams)),
            buffers=BuffersConfig(**dict(self.buffers)),
            cuda_graphs=CudaGraphsConfig(**dict(self.cuda_graphs)),
            kv_cache=KvCacheConfig(**dict(self.kv_cache)),
            num_threads=self.num_threads,
            max_context=self.max_context,
        )
