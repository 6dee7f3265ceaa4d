"""A stand-in for the module `pynvml`, as far as the reader uses it; tests/gpu holds it to the real one on a GPU."""

from dataclasses import dataclass

import pynvml


@dataclass
class _Memory:
    used: int
    total: int


@dataclass
class _Support:
    isSupportedDevice: int  # noqa: N815  NVML's name


class _Sample:
    """What a sample holds: time-weighted shares so far."""

    def __init__(self):
        self.ticks = 0
        self.dram = 0.0
        self.sm = 0.0


class FakeNvml:
    """GPUs whose shares `advance` as a test says."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_GPM_METRIC_DRAM_BW_UTIL = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    NVML_GPM_METRIC_SM_UTIL = pynvml.NVML_GPM_METRIC_SM_UTIL
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION

    def __init__(self, num_gpus=1, *, has_gpm=True, has_power=True):
        self.num_gpus = num_gpus
        self.has_gpm = has_gpm
        self.has_power = has_power
        self.is_up = True
        self.num_samples = 0
        self._now = _Sample()

    def advance(self, dram_percent, sm_percent):
        """Let a while pass in which the shares were these."""
        self._now.ticks += 1
        self._now.dram += dram_percent
        self._now.sm += sm_percent

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return ("gpu", index)

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        del handle
        return _Memory(60 << 30, 141 << 30)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        del handle
        if not self.has_power:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 512_500

    def nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        del handle
        return 61

    def nvmlGpmQueryDeviceSupport(self, handle):  # noqa: N802
        del handle
        return _Support(int(self.has_gpm))

    def nvmlGpmSampleAlloc(self):  # noqa: N802
        self.num_samples += 1
        return _Sample()

    def nvmlGpmSampleFree(self, sample):  # noqa: N802
        assert isinstance(sample, _Sample)
        self.num_samples -= 1

    def nvmlGpmSampleGet(self, handle, sample):  # noqa: N802
        assert handle[0] == "gpu"
        sample.__dict__.update(self._now.__dict__)

    @staticmethod
    def c_nvmlGpmMetricsGet_t():  # noqa: N802
        return _MetricsGet()

    def nvmlGpmMetricsGet(self, asked):  # noqa: N802
        assert asked.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        ticks = asked.sample2.ticks - asked.sample1.ticks
        if ticks <= 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        for metric in asked.metrics[: asked.numMetrics]:
            name = {pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram", pynvml.NVML_GPM_METRIC_SM_UTIL: "sm"}[metric.metricId]
            metric.value = (getattr(asked.sample2, name) - getattr(asked.sample1, name)) / ticks

    def nvmlShutdown(self):  # noqa: N802
        self.is_up = False


class _MetricsGet:
    """As the structure of the same name, but that it holds our samples."""

    def __init__(self):
        self.version = 0
        self.numMetrics = 0  # NVML's name
        self.sample1 = self.sample2 = None
        self.metrics = (pynvml.c_nvmlGpmMetric_t * 8)()
