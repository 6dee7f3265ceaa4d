"""The metrics of engines: where the device's time goes, what the steps are like, how long requests wait."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from daemon.device_account import DeviceTotals
from daemon.value_histogram import ValueHistogram
from pipelines.config import Schedule
from pipelines.core.request import EngineStats, IdleCause, Ready

STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
HOST_BUCKETS_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # gaps too
TOKEN_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
WAIT_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
SEQUENCE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKEN_BUCKETS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EngineMetrics:
    """All metrics with the label `engine`; one method an event."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._add_counters(registry)
        self._add_gauges(registry)
        self._add_histograms(registry)

    def add_engine(self, engine: str) -> None:
        """Let an engine's metrics begin at 0, so that rates are right from its first event on."""
        for metric in self._counters:
            metric.labels(engine)
        for gauge in (self._ready, self._busy_ratio, self._progress_age):
            gauge.labels(engine).set(0)
        for histogram in self._histograms:
            histogram.begin(engine)
        for cause in IdleCause:
            self._idle.labels(engine, cause)
        self.note_engine_down(engine)

    def note_engine_ready(self, engine: str, ready: Ready) -> None:
        """Take note of an engine process that came up, by what it says of itself."""
        self._block_capacity.labels(engine).set(ready.num_blocks)
        self._seats.labels(engine).set(ready.max_num_seqs)

    def note_engine_down(self, engine: str) -> None:
        """Take note that an engine holds nothing: it is gone or not up yet."""
        for gauge in (self._waiting, self._running, self._used_blocks, self._block_capacity, self._seats):
            gauge.labels(engine).set(0)

    def forget_engine(self, engine: str) -> None:
        """Have no state of an engine that is gone; what was counted of it stays."""
        for gauge in (self._ready, self._busy_ratio, self._progress_age):
            gauge.remove(engine)
        for mode in Schedule:
            self._schedule.remove(engine, mode)

    def count_engine_restart(self, engine: str) -> None:
        """Count a death of the engine process or of its text process that was followed by a new start."""
        self._restarts.labels(engine).inc()

    def set_schedule(self, engine: str, schedule: Schedule) -> None:
        """Say in which mode the engine runs now."""
        for mode in Schedule:
            self._schedule.labels(engine, mode).set(mode is schedule)

    def set_engine_state(self, engine: str, *, is_ready: bool, busy_ratio: float, progress_age_s: float) -> None:
        """Say what the daemon sees of an engine now; the ratio is that of the last minute."""
        self._ready.labels(engine).set(is_ready)
        self._busy_ratio.labels(engine).set(busy_ratio)
        self._progress_age.labels(engine).set(progress_age_s)

    def observe_engine_stats(self, engine: str, stats: EngineStats) -> None:
        """Add what an engine says of itself, but for the time of its device."""
        self._prompt_tokens.labels(engine).inc(stats.prompt_tokens)
        self._generation_tokens.labels(engine).inc(stats.generation_tokens)
        self._prefix_queries.labels(engine).inc(stats.prefix_query_tokens)
        self._prefix_hits.labels(engine).inc(stats.prefix_hit_tokens)
        self._decode.labels(engine).inc(stats.decode_s)
        self._decode_floor.labels(engine).inc(stats.decode_floor_s)
        self._taken_back.labels(engine).inc(stats.steps_taken_back)
        self._padding_tokens.labels(engine).inc(stats.padding_tokens)
        self._preemptions.labels(engine).inc(stats.preemptions)
        self._waiting.labels(engine).set(stats.num_waiting)
        self._running.labels(engine).set(stats.num_running)
        self._used_blocks.labels(engine).set(stats.num_used_blocks)
        self._step.add(engine, stats.step_s)
        self._gap.add(engine, stats.gap_s)
        self._host.add(engine, stats.host_s)
        self._batch.add(engine, stats.num_batched)
        self._batch_tokens.add(engine, stats.num_batched_tokens)
        self._queue.add(engine, stats.queue_s)
        self._first_token.add(engine, stats.first_token_s)
        self._output_token.add(engine, stats.output_token_s)

    def account_device(self, engine: str, added: DeviceTotals) -> None:
        """Add seconds of the device: what the engine reported, or what the daemon knows while no engine is up."""
        self._busy.labels(engine).inc(added.busy_s)
        self._unproven.labels(engine).inc(added.unproven_s)
        for cause, seconds in added.idle_s.items():
            if seconds:
                self._idle.labels(engine, cause).inc(seconds)

    def observe_request(self, engine: str, seconds: float) -> None:
        """Add how long a request was with the engine, from being handed over to its answer."""
        self._request.add(engine, (seconds,))

    def _add_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("engine",), registry=registry)

        self._busy = counter("gapless_gpu_busy_seconds", "Device time proven busy.")
        self._unproven = counter(
            "gapless_gpu_unproven_seconds",
            "Device time within steps whose launches the host had not completed before they began.",
        )
        self._prompt_tokens = counter("gapless_prompt_tokens", "Prompt tokens of requests that got a first token.")
        self._generation_tokens = counter("gapless_generation_tokens", "Tokens generated.")
        self._prefix_queries = counter(
            "gapless_prefix_cache_query_tokens", "Tokens of sequences that got a seat, looked up in the prefix cache."
        )
        self._prefix_hits = counter(
            "gapless_prefix_cache_hit_tokens", "Tokens among them that did not have to be computed."
        )
        self._decode = counter(
            "gapless_decode_seconds", "Device time of decode steps, where their least time is known."
        )
        self._decode_floor = counter(
            "gapless_decode_floor_seconds", "The least time that reading weights and context for these steps takes."
        )
        self._padding_tokens = counter(
            "gapless_padding_tokens", "Tokens computed for nothing, to fill captured graphs."
        )
        self._preemptions = counter("gapless_preemptions", "Sequences that lost their KV cache blocks to others.")
        self._taken_back = counter(
            "gapless_steps_taken_back",
            "Steps that did not fit into the device's memory and were run again in smaller ones.",
        )
        self._restarts = counter("gapless_engine_restarts", "Times a process of the engine died and was started again.")
        self._idle = Counter(
            "gapless_gpu_idle_seconds", "Device time idle, by cause.", ("engine", "cause"), registry=registry
        )
        self._counters = (
            self._busy, self._unproven, self._prompt_tokens, self._generation_tokens, self._padding_tokens,
            self._preemptions, self._restarts, self._prefix_queries, self._prefix_hits, self._decode,
            self._decode_floor, self._taken_back,
        )  # fmt: skip

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("engine",), registry=registry)

        self._waiting = gauge("gapless_requests_waiting", "Sequences in the engine without a seat.")
        self._running = gauge("gapless_requests_running", "Sequences in the engine with a seat.")
        self._seats = gauge("gapless_seats_capacity", "Sequences that the engine can run at once.")
        self._used_blocks = gauge("gapless_kv_blocks_used", "KV cache blocks in use.")
        self._block_capacity = gauge("gapless_kv_blocks_capacity", "KV cache blocks there are, used or free.")
        self._ready = gauge("gapless_engine_ready", "1 while both processes of the engine are up, else 0.")
        self._busy_ratio = gauge("gapless_gpu_busy_ratio", "Share of the last minute in which the device was busy.")
        self._progress_age = gauge(
            "gapless_engine_progress_age_seconds", "Time since the engine last got on with what it has to do."
        )
        self._schedule = Gauge(
            "gapless_engine_schedule", "1 for the mode in which the engine runs.", ("engine", "schedule"),
            registry=registry,
        )  # fmt: skip

    def _add_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> ValueHistogram:
            return ValueHistogram(name, text, "engine", bounds, registry)

        self._step = histogram("gapless_step_seconds", "Duration of a step on the device.", STEP_BUCKETS_S)
        self._gap = histogram("gapless_step_gap_seconds", "Idle time of the device before a step.", HOST_BUCKETS_S)
        self._host = histogram("gapless_step_host_seconds", "Work of the engine's loop for a step.", HOST_BUCKETS_S)
        self._batch = histogram("gapless_batch_sequences", "Sequences in a step.", SEQUENCE_BUCKETS)
        self._batch_tokens = histogram("gapless_batch_tokens", "Tokens in a step.", TOKEN_BUCKETS)
        self._queue = histogram(
            "gapless_queue_seconds", "Time from a request's arrival at the engine to its first step.", WAIT_BUCKETS_S
        )
        self._first_token = histogram(
            "gapless_time_to_first_token_seconds",
            "Time from a request's arrival at the engine to its first token.",
            WAIT_BUCKETS_S,
        )
        self._output_token = histogram(
            "gapless_time_per_output_token_seconds",
            "Mean time a token after the first, of each finished sequence.",
            TOKEN_BUCKETS_S,
        )
        self._request = histogram(
            "gapless_request_seconds", "Time from handing a request to the engine to its answer.", WAIT_BUCKETS_S
        )
        self._histograms = (
            self._step, self._gap, self._host, self._batch, self._batch_tokens, self._queue, self._first_token,
            self._output_token, self._request,
        )  # fmt: skip
