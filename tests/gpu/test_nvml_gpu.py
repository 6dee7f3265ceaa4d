"""On a GPU: the reader of the driver's figures, and that the stand-in for NVML behaves as NVML does."""

import time

import pytest
import torch

from daemon.gpu_reader import NvmlReader, open_nvml
from pipelines.runtime.device import peak_bandwidth

pynvml = pytest.importorskip("pynvml")
pytestmark = pytest.mark.gpu
APART_S = 1.0  # between two samples: shares of much shorter times are not to be had


@pytest.fixture
def reader():
    found = open_nvml()
    assert found is not None, "there is a GPU, and its driver says nothing"
    yield found
    found.close()


def read(reader):
    """The reading of the GPU that torch uses: CUDA and the driver may number differently."""
    found = reader.read()
    if len(found) == 1:
        return found[0]
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    names = [str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(reading.gpu))) for reading in found]
    ours = [reading for reading, name in zip(found, names, strict=True) if uuid in name]
    assert len(ours) == 1, f"torch uses {uuid}, the driver has {names}"
    return ours[0]


def keep_busy(values, seconds):
    """Read memory for a while, without a pause to speak of."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(20):
            values.sum()
        torch.cuda.synchronize()


def test_the_driver_gives_every_figure_within_reason(reader):
    reading = read(reader)
    print(reading)
    assert 1 << 30 < reading.memory_total_bytes < 1 << 40
    assert 0 < reading.memory_used_bytes <= reading.memory_total_bytes
    assert 20 < reading.power_w < 2000
    assert 10 < reading.temperature_c < 110


def test_shares_follow_what_the_gpu_does(reader):
    """At rest next to nothing, while memory is read nearly all of its bandwidth; where the GPU has these counters."""
    values = torch.ones(1 << 28, device="cuda")  # 1 GiB, float32: more than any cache
    keep_busy(values, 0.2)  # CUDA is up and the kernel compiled before anything is measured
    read(reader)
    time.sleep(APART_S)
    rest = read(reader)
    keep_busy(values, 2 * APART_S)
    busy = read(reader)
    print(f"at rest {rest}, busy {busy}")
    if busy.sm_ratio is None:
        pytest.skip("this GPU has no GPM, or does not show it to this user")
    assert rest.sm_ratio < 0.2
    assert rest.dram_ratio < 0.2
    assert 0.5 < busy.sm_ratio <= 1.01
    assert 0.4 < busy.dram_ratio <= 1.01
    assert busy.power_w > rest.power_w


def test_the_stand_in_answers_as_the_driver_does(reader):
    """The same fields are known, of the same types, with these counters or without; both give all they hold back."""
    from fake_nvml import FakeNvml

    time.sleep(APART_S)
    real = read(reader)
    nvml = FakeNvml(has_gpm=real.sm_ratio is not None)
    stand_in = NvmlReader(nvml)
    nvml.advance(50, 50)
    fake = stand_in.read()[0]
    for name in real.__dataclass_fields__:
        assert type(getattr(real, name)) is type(getattr(fake, name)), f"{name}: {real}"
    stand_in.close()
    assert (nvml.num_samples, nvml.is_up) == (0, False)


def test_two_readings_at_once_are_no_fault(reader):
    """A share of no time is missing or a share, never an error and never no number."""
    for _ in range(5):
        reading = read(reader)
        for ratio in (reading.sm_ratio, reading.dram_ratio):
            assert ratio is None or 0 <= ratio <= 1.01


def test_the_memorys_peak_bandwidth_is_that_of_a_data_sheet():
    peak = peak_bandwidth(torch.cuda.get_device_properties(0))
    print(f"{torch.cuda.get_device_name(0)}: {peak}")
    assert peak is not None
    assert 2e11 < peak < 2e13
