"""On a GPU: the reader of the driver's figures, and that the stand-in for NVML behaves as NVML does."""

import time

import pytest
import torch
from fake_nvml import FakeNvml

from daemon.gpu_reader import NvmlReader, open_nvml
from pipelines.runtime.model_runner import peak_bandwidth

pynvml = pytest.importorskip("pynvml")
pytestmark = pytest.mark.gpu


@pytest.fixture
def reader():
    found = open_nvml()
    assert found is not None, "there is a GPU, and its driver says nothing"
    yield found
    found.close()


def keep_busy(seconds):
    """Read memory and multiply for a while."""
    values = torch.ones(1 << 28, device="cuda")  # 1 GiB, float32
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(20):
            values.sum()
        torch.cuda.synchronize()


def test_the_driver_gives_every_figure_within_reason(reader):
    reading = reader.read()[0]
    assert 1 << 30 < reading.memory_used_bytes + (1 << 30) < reading.memory_total_bytes + (2 << 30)
    assert 20 < reading.power_w < 2000
    assert 10 < reading.temperature_c < 110


def test_shares_follow_what_the_gpu_does(reader):
    """At rest next to nothing, while memory is read nearly all of its bandwidth; where the GPU has these counters."""
    reader.read()
    time.sleep(1.0)
    rest = reader.read()[0]
    if rest.sm_ratio is None:
        pytest.skip("this GPU has no GPM")
    keep_busy(1.5)
    busy = reader.read()[0]
    print(f"at rest {rest}, busy {busy}")
    assert rest.sm_ratio < 0.2
    assert rest.dram_ratio < 0.2
    assert 0.5 < busy.sm_ratio <= 1
    assert 0.4 < busy.dram_ratio <= 1


def test_the_stand_in_answers_as_the_driver_does(reader):
    """The same fields are known, of the same types; both give all they hold back."""
    stand_in = NvmlReader(FakeNvml())
    real = reader.read()[0]
    stand_in._nvml.advance(50, 50)
    fake = stand_in.read()[0]
    for name in real.__dataclass_fields__:
        assert type(getattr(real, name)) is type(getattr(fake, name)), name
    stand_in.close()


def test_the_memorys_peak_bandwidth_is_that_of_a_data_sheet():
    peak = peak_bandwidth(torch.cuda.get_device_properties(0))
    print(f"{torch.cuda.get_device_name(0)}: {peak}")
    assert peak is not None
    assert 2e11 < peak < 2e13
