"""The device that a configuration names, and what its memory can do."""

from typing import Any

import torch

from pipelines.counted import counted
from pipelines.errors import ModelError, UnavailableError


def peak_bandwidth(properties: Any) -> float | None:
    """Return the bytes a second that a GPU's memory can be read at, by its clock and bus; None where it does not say."""
    clock_khz, bus_bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return 2 * clock_khz * 1e3 * bus_bits / 8 or None  # two transfers a clock


def resolve_device(name: str) -> torch.device:
    """Return the device that `model.device` means.

    Raises:
        ModelError: there can be none of that name.
        UnavailableError: there is none now.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"model.device is {name!r}, expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()  # a driver may be loaded late, a GPU come back
        raise UnavailableError(f"model.device is {name!r}, found {counted(found, 'CUDA device')}")
    if device.type not in {"cpu", "cuda"}:
        raise ModelError(f"model.device is {name!r}, expected auto, cpu, cuda or cuda:N")
    return device
