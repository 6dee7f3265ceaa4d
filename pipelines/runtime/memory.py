"""What an engine's start takes of its device's memory, and the line that says why it ended where that is too little."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pipelines.errors import EngineError, OutOfMemoryError
from pipelines.runtime.streams import is_out_of_memory

_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+ [KMGT]iB|[0-9]+ bytes)")


class StartMemory:
    """Keeps account of a start, part by part."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: list[str] = []

    @contextmanager
    def taking(self, part: str, keys: str) -> Iterator[None]:
        """Note what `part` takes; `keys` says what can be lowered where it does not fit.

        Raises:
            OutOfMemoryError: it does not.
        """
        before = free_memory_bytes(self._device)
        try:
            yield
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error}{self._account()}") from error
        except EngineError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemoryError(self._refusal(part, keys, before, error)) from error
            raise
        self._taken.append(f"{part} {gib(max(0, before - free_memory_bytes(self._device)))}")

    def _refusal(self, part: str, keys: str, before: int, error: Exception) -> str:
        asked = _ASKED.search(str(error))
        last = f", where {asked[1]} at once could not be had" if asked else ""
        return (
            f"{self._device} has too little memory for {part}: {gib(before)} were free{last}; lower {keys}, or free "
            f"memory{self._account()}"
        )

    def _account(self) -> str:
        return f" (taken before: {', '.join(self._taken)})" if self._taken else ""


def check_weights(num_bytes: int, device: torch.device) -> None:
    """Refuse weights that cannot fit, before they are read.

    Raises:
        OutOfMemoryError: they cannot.
    """
    free_bytes = free_memory_bytes(device)
    if num_bytes > free_bytes:
        raise OutOfMemoryError(
            f"its weights need {gib(num_bytes)}, but {gib(free_bytes)} are free on {device}: choose a model.dtype of fewer "
            "bytes or a smaller model, or free memory"
        )


def free_memory_bytes(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return what is free on a GPU, or what the kernel says can be had without swapping.

    Raises:
        OutOfMemoryError: the kernel does not say.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OutOfMemoryError(
        f"{meminfo} has no MemAvailable line, so the size of the KV cache is unknown: set max_tokens"
    )


def total_memory_bytes(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return what a device has in all, of several GPUs the largest one's; None where nobody says it without a CUDA context."""
    if device.type == "cuda":
        return _largest_gpu_bytes()
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _largest_gpu_bytes() -> int | None:
    try:
        import pynvml  # noqa: PLC0415  an extra
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return max((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=None)
    except pynvml.NVMLError:
        return None


def gib(num_bytes: int) -> str:
    """Return bytes for people."""
    return f"{num_bytes / 2**30:.2f} GiB"
