"""Writes a safetensors file tensor by tensor, so that a model larger than the memory can be converted, and without torch."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 8  # bytes; tensors begin on it


class StoredDtype(StrEnum):
    """How values lie in the file, in the format's own words."""

    FLOAT32 = "F32"
    BFLOAT16 = "BF16"

    @property
    def num_bytes(self) -> int:
        """Bytes a value."""
        return 4 if self is StoredDtype.FLOAT32 else 2


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor to be written; its values are made only when it is its turn."""

    name: str
    shape: tuple[int, ...]
    slabs: Callable[[], Iterable[npt.NDArray[np.float32]]]  # its values in row-major order, cut anywhere

    @property
    def num_elements(self) -> int:
        """Values in all."""
        return int(np.prod(self.shape, dtype=np.int64))


def write_safetensors(
    file: Path, tensors: list[TensorSource], dtype: StoredDtype, report: Callable[[float], None]
) -> None:
    """Write the tensors in this order. `report` hears the share of bytes written.

    Raises:
        ValueError: a tensor yields more or fewer values than its shape has.
        OSError: the file cannot be written.
    """
    header, num_bytes = _header(tensors, dtype)
    with file.open("wb") as stream:
        stream.write(header)
        done = 0
        for tensor in tensors:
            written = 0
            for slab in tensor.slabs():
                stream.write(_encoded(slab, dtype))
                written += slab.size
                done += slab.size * dtype.num_bytes
                report(done / num_bytes)
            if written != tensor.num_elements:
                raise ValueError(f"tensor {tensor.name}: found {written} values, expected {tensor.num_elements}")


def _header(tensors: list[TensorSource], dtype: StoredDtype) -> tuple[bytes, int]:
    """Return the file's head and the number of bytes that follow it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_elements * dtype.num_bytes
        entries[tensor.name] = {"dtype": dtype.value, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, end


def _encoded(values: npt.NDArray[np.float32], dtype: StoredDtype) -> memoryview:
    """Return the values' bytes, little-endian; bfloat16 by rounding to nearest, ties to even."""
    values = np.ascontiguousarray(values, dtype="<f4")
    match dtype:
        case StoredDtype.FLOAT32:
            return values.data.cast("B") if values.size else memoryview(b"")
        case StoredDtype.BFLOAT16:
            bits = values.reshape(-1).view("<u4").astype(np.uint64)
            bits += 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))
            halves = (bits >> np.uint64(16)).astype("<u2")
            halves[np.isnan(values.reshape(-1))] = 0x7FC0  # rounding could carry a NaN over into an infinity
            return halves.data.cast("B") if halves.size else memoryview(b"")
