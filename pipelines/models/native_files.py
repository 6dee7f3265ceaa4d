"""Copies tensors of safetensors files to where they belong on a device, several slabs at once, with no second copy in memory.

A file is mapped, not read: a slab's pages come from the disk when it is copied. On a CPU it goes straight to its place. On a
GPU it goes through a page-locked buffer of the thread that copies it, because the driver would copy pageable memory through one
of its own, one thread at a time.
"""

import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipelines.errors import ModelError

SLAB_BYTES = 1 << 25  # copied at once

_NUM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # of an element, by the name of its type in a file
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


class WeightTensor(Protocol):
    """A weight of a checkpoint, stored as it is or made of what is stored when it is read."""

    @property
    def name(self) -> str:
        """As the model has it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""

    def read(self) -> Tensor:
        """Return all of it.

        Raises:
            ModelError: the file cannot be read.
        """

    def rows(self, first: int, end: int) -> Tensor:
        """Return the rows `first` .. `end` - 1.

        Raises:
            ModelError: the file cannot be read.
        """


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file."""

    name: str
    file: Path
    shape: tuple[int, ...]
    opened: Any  # its `safe_open`, shared by all its tensors, so that its head, which can be long, is read once

    @property
    def kind(self) -> str:
        """Its type, in the format's own words: F32, BF16, F8_E4M3, I32, ..."""
        return str(self.opened.get_slice(self.name).get_dtype())

    @property
    def num_bytes(self) -> int:
        """What its values take in the file."""
        return math.prod(self.shape) * _NUM_BYTES.get(self.kind, 4)

    def raw(self) -> Tensor:
        """Return it, whatever its type, its values lying in the file still.

        Raises:
            ModelError: the file cannot be read.
        """
        try:
            tensor: Tensor = self.opened.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.file}: tensor {self.name} cannot be read: {error}") from error
        return tensor

    def rows(self, first: int, end: int) -> Tensor:
        """See `WeightTensor`."""
        return self.read()[first:end]

    def read(self) -> Tensor:
        """Return it, its values lying in the file still.

        Raises:
            ModelError: the file cannot be read, or it is no plain weight.
        """
        tensor = self.raw()
        if not tensor.is_floating_point() or tensor.element_size() == 1:
            raise ModelError(
                f"{self.file}: tensor {self.name} is stored as {str(tensor.dtype).removeprefix('torch.')}, expected "
                "float32, bfloat16 or float16"
            )
        return tensor


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder by name.

    Raises:
        ModelError: files are missing or damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _files(folder):
        try:
            opened: Any = safe_open(file, framework="pt")
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                tensors[name] = StoredTensor(name, file, tuple(opened.get_slice(name).get_shape()), opened)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: the weights cannot be read: {error}") from error
    return tensors


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        if not (folder / _WHOLE).is_file():
            raise ModelError(f"model folder {folder}: found neither {_WHOLE} nor {_INDEX}")
        return [folder / _WHOLE]
    try:
        places = json.loads(index.read_text("utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{index}: expected a JSON object with a weight_map: {error}") from error
    if not isinstance(places, Mapping):
        raise ModelError(f"{index}: found a weight_map of type {type(places).__name__}, expected a JSON object")
    files = [folder / name for name in sorted(set(places.values()))]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{index}: it names {file.name}, and there is no such file beside it")
    return files


class Placer:
    """Copies slabs to one device; its threads each have a buffer and a stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = threading.local()

    @property
    def num_threads(self) -> int:
        """How many threads pay: page faults of a mapped file are what takes time."""
        cores = len(os.sched_getaffinity(0))
        return min(8, cores) if self._device.type == "cuda" else min(2, cores)

    def copy(self, target: Tensor, source: WeightTensor, first: int, end: int) -> int:
        """Copy rows `first` .. `end` - 1 of a weight to `target`; return the elements copied."""
        slab = source.rows(first, end)
        if self._device.type == "cuda":
            self._copy_staged(target, slab)
        else:
            target.copy_(slab)
        return slab.numel()

    def _copy_staged(self, target: Tensor, slab: Tensor) -> None:
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._own.buffer = torch.empty(SLAB_BYTES, dtype=torch.uint8, pin_memory=True)
        buffer = self._own.buffer
        if slab.nbytes > buffer.nbytes:  # one row longer than a slab
            buffer = torch.empty(slab.nbytes, dtype=torch.uint8, pin_memory=True)
        staged = buffer[: slab.nbytes]
        np.copyto(staged.numpy(), slab.contiguous().view(torch.uint8).view(-1).numpy())  # without torch's threads
        self._own.stream.wait_stream(torch.cuda.default_stream(self._device))  # whose memory the target may have been
        with torch.cuda.stream(self._own.stream):
            target.copy_(staged.view(slab.dtype).view(slab.shape), non_blocking=True)
        self._own.stream.synchronize()
