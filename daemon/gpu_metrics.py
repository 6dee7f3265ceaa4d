"""The metrics of GPUs as the driver sees them, read by a thread of their own, so that neither loop nor scrape waits for it."""

import logging
import threading
from contextlib import suppress

from prometheus_client import CollectorRegistry, Gauge

from daemon.gpu_reader import GpuReader, GpuReading

log = logging.getLogger(__name__)

EVERY_S = 2.0


class GpuMetrics:
    """All metrics with the label `gpu`. Filled from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"gapless_nvml_{name}", text, ("gpu",), registry=registry)

        self._gauges = {
            "memory_used_bytes": gauge("memory_used_bytes", "Memory of the GPU in use, by whomever."),
            "memory_total_bytes": gauge("memory_total_bytes", "Memory of the GPU."),
            "power_w": gauge("power_watts", "Power that the GPU draws."),
            "temperature_c": gauge("temperature_celsius", "Temperature of the GPU."),
            "dram_ratio": gauge("dram_bandwidth_ratio", "Share of the memory bandwidth in use."),
            "sm_ratio": gauge("sm_ratio", "Share of the multiprocessors that were busy."),
        }

    def observe_gpu(self, reading: GpuReading) -> None:
        """Say how a GPU stands now; what it does not say has no value, rather than the last one that it said."""
        gpu = str(reading.gpu)
        for name, gauge in self._gauges.items():
            if (value := getattr(reading, name)) is not None:
                gauge.labels(gpu).set(value)
            else:
                with suppress(KeyError):  # it never had one
                    gauge.remove(gpu)

    def forget_gpus(self) -> None:
        """Have no value for any GPU."""
        for gauge in self._gauges.values():
            gauge.clear()


class GpuSampler:
    """Reads all GPUs every few seconds, from `start` to `close`."""

    def __init__(self, reader: GpuReader, metrics: GpuMetrics, every_s: float = EVERY_S) -> None:
        self._reader = reader
        self._metrics = metrics
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and close the reader."""
        self._stop.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for reading in self._reader.read():
                    self._metrics.observe_gpu(reading)
            except Exception:  # figures beside the point must not end the daemon; said once, then there are none
                log.exception("the GPUs cannot be read any more; they have no metrics from now on")
                self._metrics.forget_gpus()
                return
            self._stop.wait(self._every_s)
