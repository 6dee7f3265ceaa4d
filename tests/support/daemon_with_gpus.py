"""`gapless run CONFIG` on a machine with two GPUs that are not there: their driver is the stand-in for NVML."""

import asyncio
import sys
from pathlib import Path

from fake_nvml import FakeNvml

from daemon.gpu_reader import NvmlReader
from daemon.logs import set_up_logging
from daemon.service import Service
from daemon.settings import load_settings


class BusyNvml(FakeNvml):
    """Its first GPU is busy, by other shares each time that it is asked."""

    def nvmlGpmSampleGet(self, handle, sample):  # noqa: N802
        self.advance(dram_percent=60 + 10 * handle[1], sm_percent=90 - 10 * handle[1])
        super().nvmlGpmSampleGet(handle, sample)


def main(arguments):
    settings = load_settings([Path(arguments[-1])])
    tail = set_up_logging(settings.daemon.log)
    return asyncio.run(Service(settings, log_tail=tail, open_gpus=lambda: NvmlReader(BusyNvml(num_gpus=2))).run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
