"""What Prometheus sees of the daemon and its engines; docs/reference/metrics.md lists it for people.

The metrics are written from the main loop and read from the threads of the HTTP server; each has a lock. Labels are engines,
pipelines, devices and closed lists, so their number is bounded by configuration and machine.
"""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from daemon import __version__
from daemon.engine_metrics import EngineMetrics
from daemon.exposition import Exposition
from daemon.file_metrics import FileMetrics
from daemon.gpu_metrics import GpuMetrics

RELOADED, REFUSED = "applied", "refused"


class Metrics(EngineMetrics, FileMetrics, GpuMetrics):
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else each has a second series that nothing asks for
        self.registry = registry = CollectorRegistry()
        EngineMetrics.__init__(self, registry)
        FileMetrics.__init__(self, registry)
        GpuMetrics.__init__(self, registry)
        self._disk_free = Gauge("gapless_disk_free_bytes", "Space left on the spool's disk.", registry=registry)
        self._reloads = Counter(
            "gapless_config_reloads", "Changes of the configuration, by outcome.", ("outcome",), registry=registry
        )
        self._last_reload = Gauge(
            "gapless_config_last_reload_successful",
            "Whether the configuration that the files hold is the one that runs.",
            registry=registry,
        )
        self._last_reload.set(1)
        self._loaded = Gauge(
            "gapless_config_load_time_seconds", "Unix time at which the configuration took effect.", registry=registry
        )
        self._round_s = time.monotonic()
        round_age = Gauge(
            "gapless_main_loop_age_seconds", "Time since the main loop last came round.", registry=registry
        )
        # Computed at each scrape: a loop that hangs could not set it.
        round_age.set_function(lambda: time.monotonic() - self._round_s)
        started = Gauge("gapless_start_time_seconds", "Unix time at which the daemon started.", registry=registry)
        started.set(time.time())
        self._loaded.set(time.time())
        for outcome in (RELOADED, REFUSED):
            self._reloads.labels(outcome)
        Info("gapless_build", "The version that runs.", registry=registry).info({"version": __version__})
        self._exposition = Exposition(registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as they stand and their content type: OpenMetrics where the `Accept` header names it, else text."""
        kinds = (part.partition(";")[0].strip() for part in accept.split(","))
        if "application/openmetrics-text" in kinds:
            return self._exposition.openmetrics(), CONTENT_TYPE_LATEST
        return self._exposition.text(), CONTENT_TYPE_PLAIN_0_0_4

    def note_round(self) -> None:
        """Note that the main loop came round."""
        self._round_s = time.monotonic()

    def set_disk_free(self, num_bytes: int) -> None:
        """Say how much space is left on the disk of the spool."""
        self._disk_free.set(num_bytes)

    def count_config_reload(self, *, is_applied: bool) -> None:
        """Count a change of the configuration's files; one that is faulty changes nothing."""
        self._reloads.labels(RELOADED if is_applied else REFUSED).inc()
        if is_applied:
            self._loaded.set(time.time())

    def set_config_successful(self, *, is_successful: bool) -> None:
        """Say whether the configuration that the files hold is the one that runs."""
        self._last_reload.set(is_successful)
