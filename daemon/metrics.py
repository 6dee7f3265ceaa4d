"""What Prometheus sees of the daemon and its engines; docs/reference/metrics.md lists it for people.

The metrics are written from the main loop and read from the threads of the HTTP server; prometheus_client locks each of them.
Labels are engines, pipelines and closed lists, so their number is bounded by the configuration.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, exposition
from prometheus_client.openmetrics import exposition as openmetrics

from daemon import __version__
from daemon.journal_records import Outcome
from daemon.on_done import Telling
from daemon.pause import PauseCause
from daemon.status import FileState
from pipelines.core.request import EngineStats, IdleCause

STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SYNC_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """All metrics, in a registry of their own; one method an event."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        by_engine = ("engine",)
        self._requests = Counter(
            "gapless_requests", "Requests that ended, by outcome.", ("pipeline", "outcome"), registry=registry
        )
        self._files = Gauge(
            "gapless_files", "Files that are not done yet, by state.", ("pipeline", "state"), registry=registry
        )
        self._paused = Gauge(
            "gapless_pipeline_paused", "Whether no file is taken, by cause.", ("pipeline", "cause"), registry=registry
        )
        self._on_done = Counter(
            "gapless_on_done", "Files that on_done was told of, by outcome.", ("pipeline", "outcome"), registry=registry
        )
        self._prompt_tokens = Counter("gapless_prompt_tokens", "Prompt tokens computed.", by_engine, registry=registry)
        self._generation_tokens = Counter(
            "gapless_generation_tokens", "Tokens generated.", by_engine, registry=registry
        )
        self._waiting = Gauge(
            "gapless_requests_waiting", "Sequences in the engine without a seat.", by_engine, registry=registry
        )
        self._running = Gauge(
            "gapless_requests_running", "Sequences in the engine with a seat.", by_engine, registry=registry
        )
        self._used_blocks = Gauge("gapless_kv_blocks_used", "KV cache blocks in use.", by_engine, registry=registry)
        self._block_capacity = Gauge(
            "gapless_kv_blocks_capacity", "KV cache blocks there are, used or free.", by_engine, registry=registry
        )
        self._busy = Counter("gapless_gpu_busy_seconds", "Device time proven busy.", by_engine, registry=registry)
        self._unproven = Counter(
            "gapless_gpu_unproven_seconds",
            "Device time within steps whose launches the host had not completed before they began.",
            by_engine,
            registry=registry,
        )
        self._idle = Counter(
            "gapless_gpu_idle_seconds", "Device time idle, by cause.", ("engine", "cause"), registry=registry
        )
        self._step = Histogram(
            "gapless_step_seconds", "Duration of a step.", by_engine, buckets=STEP_BUCKETS_S, registry=registry
        )
        self._batch = Histogram(
            "gapless_batch_sequences", "Sequences in a step.", by_engine, buckets=BATCH_BUCKETS, registry=registry
        )
        self._preemptions = Counter(
            "gapless_preemptions", "Sequences that lost their KV cache blocks to others.", by_engine, registry=registry
        )
        self._taken_back = Counter(
            "gapless_steps_taken_back",
            "Steps that did not fit into the device's memory and were run again in smaller ones.",
            by_engine,
            registry=registry,
        )
        self._prefix_queries = Counter(
            "gapless_prefix_cache_query_tokens",
            "Tokens of sequences that got a seat, looked up in the prefix cache.",
            by_engine,
            registry=registry,
        )
        self._prefix_hits = Counter(
            "gapless_prefix_cache_hit_tokens",
            "Tokens among them that did not have to be computed.",
            by_engine,
            registry=registry,
        )
        self._restarts = Counter(
            "gapless_engine_restarts",
            "Times a process of the engine died and was started again.",
            by_engine,
            registry=registry,
        )
        self._journal_sync = Histogram(
            "gapless_journal_sync_seconds", "Duration of a journal's fsync.", buckets=SYNC_BUCKETS_S, registry=registry
        )
        self._disk_free = Gauge("gapless_disk_free_bytes", "Space left on the spool's disk.", registry=registry)
        Info("gapless_build", "The version that runs.", registry=registry).info({"version": __version__})

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as they stand and their content type: OpenMetrics where the `Accept` header names it, else text."""
        kinds = (part.partition(";")[0].strip() for part in accept.split(","))
        if "application/openmetrics-text" in kinds:
            text: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return exposition.generate_latest(self.registry), exposition.CONTENT_TYPE_PLAIN_0_0_4

    def add_engine(self, engine: str) -> None:
        """Let an engine's metrics begin at 0, so that rates are right from its first event on."""
        for metric in (self._prompt_tokens, self._generation_tokens, self._busy, self._unproven):
            metric.labels(engine)
        for metric in (self._preemptions, self._taken_back, self._restarts):
            metric.labels(engine)
        for metric in (self._prefix_queries, self._prefix_hits):
            metric.labels(engine)
        for histogram in (self._step, self._batch):
            histogram.labels(engine)
        for cause in IdleCause:
            self._idle.labels(engine, cause)
        self.note_engine_down(engine)

    def add_pipeline(self, pipeline: str) -> None:
        """Let a pipeline's metrics begin at 0."""
        for outcome in Outcome:
            self._requests.labels(pipeline, outcome.name.lower())
        self.set_files(pipeline, {})
        self.set_paused(pipeline, None)
        for telling in Telling:
            self._on_done.labels(pipeline, telling)

    def count_on_done(self, pipeline: str, telling: Telling) -> None:
        """Count a file that `on_done` was told of, or could not be."""
        self._on_done.labels(pipeline, telling).inc()

    def set_paused(self, pipeline: str, cause: PauseCause | None) -> None:
        """Say why a pipeline takes no files now; None: it does."""
        for each in PauseCause:
            self._paused.labels(pipeline, each).set(each is cause)

    def count_requests(self, pipeline: str, outcome: Outcome, number: int) -> None:
        """Count requests whose end is recorded in the journal."""
        self._requests.labels(pipeline, outcome.name.lower()).inc(number)

    def set_files(self, pipeline: str, counts: Mapping[FileState, int]) -> None:
        """Say how many files are in which state now; a state that is not given has none."""
        for state in FileState:
            self._files.labels(pipeline, state).set(counts.get(state, 0))

    def note_engine_ready(self, engine: str, num_blocks: int) -> None:
        """Take note of an engine that came up with `num_blocks` blocks of KV cache."""
        self._block_capacity.labels(engine).set(num_blocks)

    def note_engine_down(self, engine: str) -> None:
        """Take note that an engine holds nothing: it is gone or not up yet."""
        for gauge in (self._waiting, self._running, self._used_blocks, self._block_capacity):
            gauge.labels(engine).set(0)

    def count_engine_restart(self, engine: str) -> None:
        """Count a death of the engine process or of its text process that was followed by a new start."""
        self._restarts.labels(engine).inc()

    def observe_engine_stats(self, engine: str, stats: EngineStats, *, starved_for_feed: bool) -> None:
        """Add what an engine says of itself.

        The time in which it held no request was idle for `feed` where `starved_for_feed` (files waited), else for `no_work`.
        """
        time = stats.device_time
        self._busy.labels(engine).inc(time.busy_s)
        self._unproven.labels(engine).inc(time.unproven_s)
        self.account_idle(engine, IdleCause.FEED if starved_for_feed else IdleCause.NO_WORK, time.empty_s)
        self.account_idle(engine, IdleCause.HOST, time.host_s)
        self.account_idle(engine, IdleCause.H2D, time.h2d_s)
        self._prompt_tokens.labels(engine).inc(stats.prompt_tokens)
        self._generation_tokens.labels(engine).inc(stats.generation_tokens)
        self._preemptions.labels(engine).inc(stats.preemptions)
        self._taken_back.labels(engine).inc(stats.steps_taken_back)
        self._prefix_queries.labels(engine).inc(stats.prefix_query_tokens)
        self._prefix_hits.labels(engine).inc(stats.prefix_hit_tokens)
        self._waiting.labels(engine).set(stats.num_waiting)
        self._running.labels(engine).set(stats.num_running)
        self._used_blocks.labels(engine).set(stats.num_used_blocks)
        step, batch = self._step.labels(engine), self._batch.labels(engine)
        for seconds in stats.step_s:
            step.observe(seconds)
        for num_sequences in stats.num_batched:
            batch.observe(num_sequences)

    def account_idle(self, engine: str, cause: IdleCause, seconds: float) -> None:
        """Add idle time that the daemon knows of: before an engine is up, while it is down, while it drains."""
        self._idle.labels(engine, cause).inc(seconds)

    def observe_journal_sync(self, seconds: float) -> None:
        """Add the duration of one fsync."""
        self._journal_sync.observe(seconds)

    def set_disk_free(self, num_bytes: int) -> None:
        """Say how much space is left on the disk of the spool."""
        self._disk_free.set(num_bytes)
