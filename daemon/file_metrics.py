"""The metrics of pipelines: their files, and what became of the requests in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from daemon.batch_object import BatchStatus
from daemon.journal_records import Outcome
from daemon.on_done import Telling
from daemon.pause import PauseCause
from daemon.status import FileState
from daemon.value_histogram import ValueHistogram
from pipelines.core.request import FinishReason

FILE_BUCKETS_S = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 43200, 86400, 259200)
SYNC_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
FINAL = (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class PipelineGauges:
    """A pipeline at one instant."""

    files: Mapping[FileState, int] = field(default_factory=dict)  # a state that is not there has none
    oldest_waiting_s: float = 0.0  # age of the file that has waited longest in the inbox; 0: none waits
    oldest_running_s: float = 0.0  # time since the oldest claimed file was claimed; 0: there is none
    num_pending: int = 0  # requests of claimed and counted files without a result
    pause: PauseCause | None = None  # why no file is taken; None: files are


class FileMetrics:
    """All metrics with the label `pipeline`; one method an event."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_pipeline = ("pipeline",)
        self._requests = Counter(
            "gapless_requests", "Requests that ended, by outcome.", ("pipeline", "outcome"), registry=registry
        )
        self._choices = Counter(
            "gapless_choices", "Choices that ended, by finish reason.", ("pipeline", "finish_reason"), registry=registry
        )
        self._ended = Counter("gapless_files_ended", "Files that ended.", ("pipeline", "status"), registry=registry)
        self._left = Counter(
            "gapless_files_left_in_work",
            "Files whose run was ended by a fault; they stay in work/ until the next start.",
            by_pipeline,
            registry=registry,
        )
        self._files = Gauge(
            "gapless_files", "Files that are not done yet, by state.", ("pipeline", "state"), registry=registry
        )
        self._pending = Gauge(
            "gapless_requests_pending", "Requests of claimed files without a result.", by_pipeline, registry=registry
        )
        self._oldest_waiting = Gauge(
            "gapless_oldest_waiting_file_seconds", "How long a file has waited in the inbox.", by_pipeline,
            registry=registry,
        )  # fmt: skip
        self._oldest_running = Gauge(
            "gapless_oldest_running_file_seconds", "Time since the oldest file being run was claimed.", by_pipeline,
            registry=registry,
        )  # fmt: skip
        self._paused = Gauge(
            "gapless_pipeline_paused", "Whether no file is taken, by cause.", ("pipeline", "cause"), registry=registry
        )
        self._on_done = Counter(
            "gapless_on_done", "Files that on_done was told of, by outcome.", ("pipeline", "outcome"), registry=registry
        )
        self._file = ValueHistogram(
            "gapless_file_seconds", "Time from the claim of a file to its end.", "pipeline", FILE_BUCKETS_S, registry
        )
        self._journal_sync = Histogram(
            "gapless_journal_sync_seconds", "Duration of a journal's fsync.", buckets=SYNC_BUCKETS_S, registry=registry
        )

    def add_pipeline(self, pipeline: str) -> None:
        """Let a pipeline's metrics begin at 0."""
        self._left.labels(pipeline)
        for outcome in Outcome:
            self._requests.labels(pipeline, outcome.name.lower())
        for reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._choices.labels(pipeline, reason)
        for status in FINAL:
            self._ended.labels(pipeline, status)
        for telling in Telling:
            self._on_done.labels(pipeline, telling)
        self._file.begin(pipeline)
        self.set_pipeline(pipeline, PipelineGauges())

    def count_requests(self, pipeline: str, outcome: Outcome, number: int) -> None:
        """Count requests whose end is recorded in the journal."""
        self._requests.labels(pipeline, outcome.name.lower()).inc(number)

    def count_choices(self, pipeline: str, reason: FinishReason, number: int) -> None:
        """Count choices of requests whose end is recorded in the journal."""
        self._choices.labels(pipeline, reason).inc(number)

    def count_file(self, pipeline: str, status: BatchStatus, seconds: float) -> None:
        """Count a file that ended, so long after its claim."""
        self._ended.labels(pipeline, status).inc()
        self._file.add(pipeline, (seconds,))

    def count_left_file(self, pipeline: str) -> None:
        """Count a file whose run ended by a fault."""
        self._left.labels(pipeline).inc()

    def set_pipeline(self, pipeline: str, gauges: PipelineGauges) -> None:
        """Say how a pipeline stands now."""
        for state in FileState:
            self._files.labels(pipeline, state).set(gauges.files.get(state, 0))
        self._pending.labels(pipeline).set(gauges.num_pending)
        self._oldest_waiting.labels(pipeline).set(gauges.oldest_waiting_s)
        self._oldest_running.labels(pipeline).set(gauges.oldest_running_s)
        for cause in PauseCause:
            self._paused.labels(pipeline, cause).set(cause is gauges.pause)

    def count_on_done(self, pipeline: str, telling: Telling) -> None:
        """Count a file that `on_done` was told of, or could not be."""
        self._on_done.labels(pipeline, telling).inc()

    def observe_journal_sync(self, seconds: float) -> None:
        """Add the duration of one fsync."""
        self._journal_sync.observe(seconds)
