"""On the path of a daemon's processes: lets one step of a real engine fail as a device's does, each fault once.

$GAPLESS_TEST_FAULT names a file; what it holds is the fault, and it is gone once that has happened.
"""

import os
import sys
import time
from pathlib import Path


def _happen(fault):
    match fault:
        case "block":
            time.sleep(3600)
        case "device":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case "memory":
            raise MemoryError("a step found no memory")
        case _:
            raise AssertionError(fault)


def _install(order):
    from pipelines.engine import Engine

    make = Engine.__init__

    def make_faulty(engine, runner, *arguments, **options):
        forward = runner._forward

        def faulty_forward(slot, plan):
            if order.exists():
                fault = order.read_text()
                order.unlink()
                _happen(fault)
            forward(slot, plan)

        runner._forward = faulty_forward
        make(engine, runner, *arguments, **options)

    Engine.__init__ = make_faulty


if "GAPLESS_TEST_FAULT" in os.environ and sys.orig_argv[1:4] == ["-m", "pipelines.worker", "engine"]:
    _install(Path(os.environ["GAPLESS_TEST_FAULT"]))
