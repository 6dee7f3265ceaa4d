"""The sections of the YAML file: every key with its default, its range, its meaning and when a change can take effect.

The reference page is generated from here (`python -m daemon.settings_reference`).
"""

from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from daemon.errors import SettingsError
from daemon.settings_fields import (
    ANSWER_TEXT,
    BLOCK_SIZE_TEXT,
    MODEL_TEXT,
    PATH_TEXT,
    SIZE_TEXT,
    TELL_TEXT,
    TOLD_TEXT,
    Answer,
    BlockSize,
    Change,
    GraphSwitch,
    LocalPath,
    ModelPath,
    Section,
    Size,
    TellTarget,
    Told,
    choice,
    key,
    section,
)
from daemon.settings_report import Written, to_problems
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

MAX_SECONDS = 86400
MAX_DAYS = 36500
MAX_LIMIT_S = 366 * 86400
MAX_TOKENS = 2**31 - 1


class Watch(StrEnum):
    """How new files are noticed; the folder's listing is the truth in each case."""

    AUTO = "auto"  # events, where a probe file shows at start that they come
    EVENTS = "events"
    POLL = "poll"


class LogLevel(StrEnum):
    """The least grave message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"  # text on a terminal, JSON elsewhere
    TEXT = "text"
    JSON = "json"


class LongPrompt(StrEnum):
    """What becomes of a prompt that does not fit into the context."""

    REJECT = "reject"  # an error line of its own


class OnBadLine(StrEnum):
    """What a line that cannot be read does to its file."""

    RECORD = "record"  # it becomes an error line, the rest runs
    REJECT = "reject"  # the whole file fails


class OutputOrder(StrEnum):
    """The order of the output lines."""

    INPUT = "input"
    COMPLETION = "completion"


class OutputFormat(StrEnum):
    """What an output line holds."""

    BATCH = "batch"  # a line of an OpenAI Batch output file
    PLAIN = "plain"  # id, text, finish_reason, usage, model


class HttpSettings(Section):
    """Where metrics, health and the status page are served."""

    host: str = key(
        "127.0.0.1",
        "Address to listen on; beyond this machine it needs `token_file` or `insecure: true`.",
        Change.RESTART,
        "an address or a host name",
        pattern=r"^[^\s/]+$",
    )
    port: int = key(9400, "TCP port; 0 takes a free one.", Change.RESTART, ge=0, le=65535)
    token_file: LocalPath | None = key(
        None, "File that holds the token which clients must send.", Change.RESTART, PATH_TEXT
    )
    insecure: bool = key(False, "Serve beyond this machine without a token.", Change.RESTART)
    names: tuple[str, ...] = key(
        (),
        "Host names besides `localhost` and `host` under which browsers may ask, as that of a proxy.",
        Change.RESTART,
        strict=False,
    )


class LogSettings(Section):
    """What the daemon says on standard error."""

    level: LogLevel = choice(LogLevel.INFO, "Least grave message that is logged.", Change.LIVE)
    format: LogFormat = choice(
        LogFormat.AUTO, "Form of the lines; `auto` is text on a terminal and JSON elsewhere.", Change.LIVE
    )


class TracingSettings(Section):
    """OpenTelemetry traces of files and requests; needs the extra `otel`."""

    endpoint: str | None = key(
        None,
        "OTLP collector (HTTP) that traces are sent to, without `/v1/traces`; null makes none.",
        Change.RESTART,
        "a URL such as http://127.0.0.1:4318",
        pattern=r"^https?://[^\s/]+(/\S*)?$",
    )
    requests_per_s: float = key(
        10.0,
        "Requests a second, over all files, that get a span of their own; those without an answer get as many again.",
        Change.RESTART,
        ge=0,
        le=1000,
    )


class RetentionSettings(Section):
    """What is removed by itself: of what Gapless put there, and nothing else."""

    done_days: float | None = key(
        None,
        "Days after which a finished file's input is removed from done/; null keeps it.",
        Change.LIVE,
        ge=0,
        le=MAX_DAYS,
    )
    outbox_days: float | None = key(
        None,
        "Days after which a finished file's results are removed from outbox/; null keeps them.",
        Change.LIVE,
        ge=0,
        le=MAX_DAYS,
    )


class DaemonSettings(Section):
    """The service itself."""

    spool: LocalPath = key(
        "./spool",
        "Folder that holds a folder for each pipeline, with its inbox, outbox and the rest.",
        Change.RESTART,
        PATH_TEXT,
        validate_default=True,
    )
    http: HttpSettings = section(HttpSettings)
    watch: Watch = choice(
        Watch.AUTO,
        "How new files are noticed; `auto` polls network file systems and tries elsewhere whether events come.",
        Change.LIVE,
    )
    settle_s: float = key(
        2.0,
        "Seconds for which a file must stay unchanged before it is taken.",
        Change.LIVE,
        ge=0,
        le=MAX_SECONDS,
    )
    rescan_s: float = key(5.0, "Seconds between two listings of an inbox.", Change.LIVE, gt=0, le=MAX_SECONDS)
    min_free_bytes: Size = key(2**30, "Free space below which no file is taken.", Change.LIVE, SIZE_TEXT)
    drain_s: float = key(
        30.0, "Seconds that running requests get to finish on SIGTERM.", Change.LIVE, ge=0, le=MAX_SECONDS
    )
    price_per_gpu_hour: float | None = key(
        None, "What an hour of one device costs, in any currency; the reports use it.", Change.CLAIM, ge=0, le=1_000_000
    )
    retention: RetentionSettings = section(RetentionSettings)
    log: LogSettings = section(LogSettings)
    tracing: TracingSettings = section(TracingSettings)


class ModelSettings(Section):
    """Which model, from where, and in which arithmetic."""

    path: ModelPath = key(
        ...,
        "Hub name, local folder or `.gguf` file (beginning with `./`, `../`, `/` or `~`, or ending in `.gguf`), "
        "or `package:NAME` for weights in an installed package; `fake:` runs no model, for trying things out.",
        Change.DRAIN,
        MODEL_TEXT,
    )
    revision: str | None = key(
        None, "Branch, tag or commit on the hub; null is its default branch.", Change.DRAIN, min_length=1
    )
    dtype: Dtype = choice(
        Dtype.AUTO, "Arithmetic; `auto` is float32 on a CPU, on a GPU what the checkpoint says.", Change.DRAIN
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
    max_tokens: int = key(512, "Tokens of the largest captured step.", Change.DRAIN, ge=1, le=8192)
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


class SamplingSettings(Section):
    """Sampling of requests that say nothing themselves; null is the model's own."""

    temperature: float | None = key(None, "0 takes the likeliest token.", Change.CLAIM, ge=0, le=2)
    top_p: float | None = key(
        None, "Share of the probability that tokens are drawn from; 1 is all.", Change.CLAIM, gt=0, le=1
    )
    top_k: int | None = key(
        None, "Number of likeliest tokens that are drawn from; 0 is all.", Change.CLAIM, ge=0, le=MAX_TOKENS
    )
    min_p: float | None = key(
        None,
        "Tokens are drawn from those whose probability is at least this share of the likeliest one's; 0 is all.",
        Change.CLAIM,
        ge=0,
        le=1,
    )
    presence_penalty: float | None = key(
        None, "Taken off the score of each token that the answer has already.", Change.CLAIM, ge=-2, le=2
    )
    frequency_penalty: float | None = key(
        None, "Taken off the score of a token for each time that the answer has it.", Change.CLAIM, ge=-2, le=2
    )
    repetition_penalty: float | None = key(
        None,
        "What the scores of tokens of prompt and answer are divided by; 1 changes nothing. The model's own is not applied.",
        Change.CLAIM,
        gt=0,
        le=10,
    )
    max_tokens: int | None = key(
        None, "Tokens of an answer at most; null is the rest of the context.", Change.CLAIM, ge=1, le=MAX_TOKENS
    )


class LimitsSettings(Section):
    """What is not run, or not to its end."""

    long_prompt: LongPrompt = choice(
        LongPrompt.REJECT, "A prompt that does not fit into the context becomes an error line.", Change.CLAIM
    )
    request_timeout_s: float | None = key(
        None,
        "Seconds in which a request must be finished once the engine has it; else it becomes a `request_timeout` line.",
        Change.CLAIM,
        gt=0,
        le=MAX_LIMIT_S,
    )
    deadline_s: float | None = key(
        None,
        "Seconds in which a file must be finished once it is taken; what is not becomes `batch_expired` lines.",
        Change.CLAIM,
        gt=0,
        le=MAX_LIMIT_S,
    )


class OutputSettings(Section):
    """What the result files look like."""

    order: OutputOrder = choice(
        OutputOrder.INPUT, "Order of the lines: as in the input, or as they are finished.", Change.CLAIM
    )
    format: OutputFormat = choice(
        OutputFormat.BATCH,
        "`batch` lines are OpenAI Batch output; `plain` ones hold id, text, finish_reason, usage, model.",
        Change.CLAIM,
    )


class PipelineSettings(Section):
    """One pipeline: a set of folders whose files an engine runs. A file keeps the settings that it was claimed with."""

    engine: str = key(
        ..., "Name of the engine that runs its requests.", Change.CLAIM, "the name of an engine", min_length=1
    )
    system: str | None = key(None, "System message for chat requests that bring none.", Change.CLAIM)
    template: str | None = key(
        None,
        "Jinja template that makes the user's message of each row of a .csv, .tsv or .parquet file.",
        Change.CLAIM,
        "a Jinja template",
    )
    chat_template_kwargs: Told = key(
        {},
        "What the model's chat template is told besides the messages, as `{enable_thinking: false}`; a request's own go first.",
        Change.CLAIM,
        TOLD_TEXT,
    )
    answer: Answer | None = key(
        None,
        "What answers must look like, to the last character, where a request does not say so: one of some texts, what a "
        "regular expression matches, or JSON by a schema.",
        Change.CLAIM,
        ANSWER_TEXT,
    )
    sampling: SamplingSettings = section(SamplingSettings)
    models: tuple[str, ...] = key(
        (),
        "Model names that requests may use; any name is served unless `strict_model` is true.",
        Change.CLAIM,
        strict=False,
    )
    strict_model: bool = key(False, "Refuse requests whose model is not in `models`.", Change.CLAIM)
    limits: LimitsSettings = section(LimitsSettings)
    priority: int = key(0, "Requests of a higher priority go first.", Change.CLAIM, ge=-1000, le=1000)
    on_bad_line: OnBadLine = choice(
        OnBadLine.RECORD,
        "`record` makes a bad line an error line and runs the rest; `reject` fails the file.",
        Change.CLAIM,
    )
    output: OutputSettings = section(OutputSettings)
    on_done: TellTarget | None = key(
        None,
        "Told of each file that is done, whatever became of it: a command gets the Batch object on standard input and "
        "`GAPLESS_PIPELINE`, `GAPLESS_STEM`, `GAPLESS_STATUS`, `GAPLESS_OUTPUT`, `GAPLESS_ERRORS`, `GAPLESS_REPORT`, "
        "`GAPLESS_BATCH`; a URL gets it by POST. At least once, at most five tries.",
        Change.CLAIM,
        TELL_TEXT,
    )

    def to_record(self) -> dict[str, Any]:
        """Return these settings as JSON knows it, for the header of a file's journal."""
        return self.model_dump(mode="json")

    @classmethod
    def from_record(cls, record: Any, file: Path) -> Self:
        """Return the settings that `to_record` gave; keys that it did not know yet have their defaults.

        Raises:
            SettingsError: the record is of another version or damaged; the problems name `file`.
        """
        try:
            return cls.read(record, file.parent)
        except ValidationError as error:
            raise SettingsError(to_problems(error, cls, Written(file, ()))) from error
