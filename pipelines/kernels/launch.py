"""What all launches share: how many programs fill the device, and the options of a dependent launch.

Dependent launch (Hopper and later): a kernel may be put onto the device while the one before it still runs, so that its start
costs no gap. Each kernel here that is launched so waits (`gdc_wait`) for the one before it and only then lets its own successor
come. So what was written two or more launches before is there from the start; what the launch before writes is there after the
wait; and nothing is written ahead of the wait. Weights, and a step's lists and tables, are read ahead of it: between the kernels
that make those lists (`begin_step`, `plan_attention`) and one that reads them there has to be another launch.
"""

from functools import cache

import torch
import triton

_NUM_PROGRAMS_INTERPRETED = 3  # of a persistent grid under Triton's interpreter: enough to share work out, and uneven
_SHARED_BYTES_INTERPRETED = 1 << 16  # enough for a loop two turns deep; nothing is really shared
_HOPPER = (9, 0)


@cache
def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; under the interpreter a small number."""
    if device.type != "cuda":
        return _NUM_PROGRAMS_INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def can_launch_dependents(device: torch.device) -> bool:
    """Return whether `dependent=True` works on a device."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory that one program may have at most."""
    if device.type != "cuda":
        return _SHARED_BYTES_INTERPRETED
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def launch_options(*, dependent: bool) -> dict[str, bool]:
    """Return the launch's extra options; the interpreter and older GPUs get none."""
    return {"launch_pdl": True} if dependent else {}


def power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`: blocks have such sizes, masks cut them to the true one."""
    return int(triton.next_power_of_2(number))
