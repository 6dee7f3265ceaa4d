"""GPUs are read in a thread of their own, and a driver that fails takes nothing with it."""

import logging
import threading

import pytest
from fake_nvml import FakeNvml

from daemon.gpu_metrics import GpuSampler
from daemon.gpu_reader import GpuReading, NvmlReader
from daemon.metrics import Metrics


class Reader:
    """Counts what is asked of it; fails at the n-th reading."""

    def __init__(self, fails_at: int = 0) -> None:
        self.num_readings = 0
        self.fails_at = fails_at
        self.has_read_often = threading.Event()
        self.is_closed = False

    def read(self) -> list[GpuReading]:
        self.num_readings += 1
        if self.num_readings == self.fails_at:
            raise RuntimeError("driver gone")
        if self.num_readings >= 3:
            self.has_read_often.set()
        return [GpuReading(0, self.num_readings, 100, None, None, None, None)]

    def close(self) -> None:
        self.is_closed = True


def test_gpus_are_read_again_and_again_until_the_end() -> None:
    """The last reading is what a scrape sees."""
    reader, metrics = Reader(), Metrics()
    sampler = GpuSampler(reader, metrics, every_s=0.001)
    sampler.start()
    assert reader.has_read_often.wait(30)
    sampler.close()
    used = metrics.registry.get_sample_value("gapless_nvml_memory_used_bytes", {"gpu": "0"})
    assert used == reader.num_readings
    assert reader.is_closed


def test_a_driver_that_fails_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The thread ends; closing it still works, and no figure of before stays as if it were of now."""
    reader, metrics = Reader(fails_at=2), Metrics()
    sampler = GpuSampler(reader, metrics, every_s=0.001)
    with caplog.at_level(logging.ERROR):
        sampler.start()
        sampler._thread.join(30)
    sampler.close()
    assert reader.num_readings == 2
    assert metrics.registry.get_sample_value("gapless_nvml_memory_used_bytes", {"gpu": "0"}) is None
    assert "the GPUs cannot be read" in caplog.text


def test_nvml_is_read_with_its_units_and_shares() -> None:
    """Milliwatts become watts, percent between two samples become ratios."""
    nvml = FakeNvml(num_gpus=2)
    reader = NvmlReader(nvml)
    nvml.advance(dram_percent=80, sm_percent=95)
    first, second = reader.read()
    assert first == GpuReading(0, 60 << 30, 141 << 30, 512.5, 61, 0.8, 0.95)
    assert second.gpu == 1
    nvml.advance(dram_percent=20, sm_percent=10)
    assert reader.read()[0].dram_ratio == pytest.approx(0.2), "since the last reading, not since the start"
    reader.close()
    assert (nvml.num_samples, nvml.is_up) == (0, False)


def test_a_gpu_without_these_counters_has_the_rest() -> None:
    """What NVML refuses is None, and not an error of all."""
    nvml = FakeNvml(num_gpus=1, has_gpm=False, has_power=False)
    (reading,) = NvmlReader(nvml).read()
    assert reading == GpuReading(0, 60 << 30, 141 << 30, None, 61, None, None)


def test_between_samples_without_time_in_between_there_is_no_share() -> None:
    """NVML then gives an error or no number; neither becomes a figure."""
    nvml = FakeNvml()
    reader = NvmlReader(nvml)
    assert reader.read()[0].dram_ratio is None
    nvml.advance(dram_percent=float("nan"), sm_percent=50)
    (reading,) = reader.read()
    assert (reading.dram_ratio, reading.sm_ratio) == (None, 0.5)


def test_what_a_gpu_says_no_more_has_no_value() -> None:
    """A share of an hour ago is none."""
    metrics = Metrics()
    name, labels = "gapless_nvml_sm_ratio", {"gpu": "0"}
    metrics.observe_gpu(GpuReading(0, 1, 2, 3.0, 4, 0.5, 0.6))
    assert metrics.registry.get_sample_value(name, labels) == 0.6
    metrics.observe_gpu(GpuReading(0, 1, 2, 3.0, 4, None, None))
    assert metrics.registry.get_sample_value(name, labels) is None
    assert metrics.registry.get_sample_value("gapless_nvml_power_watts", labels) == 3.0
    metrics.observe_gpu(GpuReading(0, 1, 2, 3.0, 4, 0.5, 0.7))
    assert metrics.registry.get_sample_value(name, labels) == 0.7
