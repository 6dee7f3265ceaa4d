"""What NVIDIA's driver says of the GPUs, through NVML; a reader seam, since most machines that test this have no GPU.

`nvidia-ml-py` is the optional extra `nvml`. GPM, the counters of newer data-centre GPUs, gives shares of time between two
samples: how busy the multiprocessors and the memory were, which the engine's own busy time cannot tell.
"""

import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one instant; a value that it does not give is None."""

    gpu: int  # NVML's index
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None  # degrees Celsius
    dram_ratio: float | None  # share of the memory bandwidth used since the last reading, 0 .. 1
    sm_ratio: float | None  # share of the multiprocessors busy since the last reading, 0 .. 1


class GpuReader(Protocol):
    """Whatever knows of GPUs. Used from one thread."""

    def read(self) -> list[GpuReading]:
        """Return a reading of each GPU there is."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


class NvmlReader:
    """Reads by NVML."""

    def __init__(self, nvml: Any) -> None:
        """Begin with an initialised `pynvml`."""
        self._nvml = nvml
        self._gpus = [_NvmlGpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]

    def read(self) -> list[GpuReading]:
        """See `GpuReader`."""
        return [gpu.read() for gpu in self._gpus]

    def close(self) -> None:
        """See `GpuReader`."""
        for gpu in self._gpus:
            gpu.close()
        self._nvml.nvmlShutdown()


class _NvmlGpu:
    """One GPU and its two last samples of GPM, where it has GPM."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._samples: list[Any] = []  # [older, newer]
        with suppress(nvml.NVMLError):
            if nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
                nvml.nvmlGpmSampleGet(self._handle, self._samples[1])

    def read(self) -> GpuReading:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        dram_ratio, sm_ratio = self._read_gpm(nvml.NVML_GPM_METRIC_DRAM_BW_UTIL, nvml.NVML_GPM_METRIC_SM_UTIL)
        return GpuReading(
            gpu=self._index,
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            dram_ratio=dram_ratio,
            sm_ratio=sm_ratio,
        )

    def close(self) -> None:
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """Return what NVML says, None where this GPU does not say it."""
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def _read_gpm(self, *metrics: int) -> tuple[float | None, ...]:
        """Return shares between the last sample and one taken now."""
        if not self._samples:
            return (None,) * len(metrics)
        self._samples.reverse()
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(metrics)
        asked.sample1, asked.sample2 = self._samples
        for place, metric in enumerate(metrics):
            asked.metrics[place].metricId = metric
        try:
            self._nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
            self._nvml.nvmlGpmMetricsGet(asked)
        except self._nvml.NVMLError:
            return (None,) * len(metrics)
        return tuple(map(_ratio_of, asked.metrics[: len(metrics)]))


def _ratio_of(found: Any) -> float | None:
    """Return a metric's percent as a ratio; None where there is none, as between samples with next to no time in between."""
    return None if found.nvmlReturn or math.isnan(found.value) else found.value / 100


def open_nvml() -> NvmlReader | None:
    """Return a reader, or None where the package, the driver or a GPU is missing."""
    try:
        import pynvml  # noqa: PLC0415  the optional extra
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return NvmlReader(pynvml)
    except pynvml.NVMLError as error:
        log.debug("no figures of NVML: %s", error)
        return None
