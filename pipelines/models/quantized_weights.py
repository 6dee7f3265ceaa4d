"""Decodes quantized weights, rows at a time, to float32: (value - zero point) * scale, one rounding away from what is meant.

Shapes: O output and I input dims of a projection, G groups of input dims that share a scale.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.errors import ModelError
from pipelines.models.native_files import StoredTensor
from pipelines.models.quantized_config import Grid, Packing, StoredQuantization

_WORD_BITS = 32
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble of a word that holds each of its 8 outputs
_BNB_8BIT_UNITS = 127  # of SCB, the highest magnitude of a row
_KINDS = {Packing.FLOAT8: "F8_E4M3", Packing.INT8: "I8", Packing.BNB_8BIT: "I8", Packing.PACKED_ROWS: "I32"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A weight and how its rows are made."""

    shape: tuple[int, ...]  # [O, I]
    rows: Callable[[int, int], Tensor]  # first, end -> [end - first, I] float32


@dataclass(frozen=True, slots=True)
class Parts:
    """The stored tensors of one weight."""

    name: str  # of the values
    values: StoredTensor
    others: Mapping[str, StoredTensor]  # by the end of their names

    def read(self, part: str) -> Tensor:
        """Return one of the others.

        Raises:
            ModelError: there is none.
        """
        if part not in self.others:
            raise ModelError(f"tensor {self.name} has no {part} beside it")
        return self.others[part].raw()

    def expect(self, part: str, found: object, expected: object) -> None:
        """Refuse a part that is not as its format says.

        Raises:
            ModelError: found is not expected.
        """
        if found != expected:
            raise ModelError(f"tensor {self.name}: found {part} {found}, expected {expected}")


def decode_scaled(parts: Parts, quantization: StoredQuantization) -> Decoded:
    """Decode weights that lie as they are used, in 8 bits or packed along a row: compressed-tensors, fp8, bitsandbytes.

    Raises:
        ModelError: parts are missing or have another shape than the format says.
    """
    packing, values = quantization.packing, parts.values
    parts.expect("the type", values.kind, _KINDS[packing])
    shape = values.shape
    if packing is Packing.PACKED_ROWS:
        shape = tuple(map(int, parts.read("weight_shape").tolist()))
        each = _WORD_BITS // quantization.bits
        parts.expect("the shape", values.shape, (shape[0], -(-shape[-1] // each)))
    parts.expect("dimensions", len(shape), 2)
    scales = _scales(parts, shape, quantization)
    zeros = _zero_points(parts, tuple(scales.shape), quantization)
    order = _group_of_columns(parts, "weight_g_idx", shape[1], quantization.grid.columns, scales.shape[1])

    def rows(first: int, end: int) -> Tensor:
        values = parts.values.raw()[first:end]
        if packing is Packing.PACKED_ROWS:
            values = _unpack(values, quantization.bits)[:, : shape[1]] - (1 << quantization.bits - 1)
        at = torch.arange(first, end) // (quantization.grid.rows or shape[0])
        wide = values.float()
        if zeros is not None:
            wide = wide - _spread(zeros[at], order)
        return wide * _spread(scales[at], order)

    return Decoded(shape, rows)


def _scales(parts: Parts, shape: tuple[int, ...], quantization: StoredQuantization) -> Tensor:
    """Return the scales, one a cell of the grid, float32."""
    if quantization.packing is Packing.BNB_8BIT:
        scales = parts.read("SCB").float() / _BNB_8BIT_UNITS
    else:
        name = "weight_scale_inv" if "weight_scale_inv" in parts.others else "weight_scale"
        scales = parts.read(name).float()
    expected = _cells(shape, quantization.grid)
    squeezed = scales.view(expected) if scales.numel() == torch.Size(expected).numel() else scales
    parts.expect("scales of the shape", tuple(squeezed.shape), expected)
    return squeezed


def _cells(shape: tuple[int, ...], grid: Grid) -> tuple[int, int]:
    rows, columns = grid.rows or shape[0], grid.columns or shape[1]
    return -(-shape[0] // rows), -(-shape[1] // columns)


def _zero_points(parts: Parts, cells: tuple[int, ...], quantization: StoredQuantization) -> Tensor | None:
    """Return zero points as signed values, one a cell, float32; None: zero is zero."""
    if "weight_zero_point" not in parts.others:
        return None
    stored = parts.read("weight_zero_point")
    if quantization.packing is Packing.PACKED_ROWS and stored.dtype == torch.int32:
        unsigned = _unpack(stored.t(), quantization.bits).t()[: cells[0]]
        stored = unsigned - (1 << quantization.bits - 1)
    if stored.numel() == torch.Size(cells).numel():
        stored = stored.reshape(cells)
    parts.expect("zero points of the shape", tuple(stored.shape), cells)
    return stored.float()


def _group_of_columns(parts: Parts, part: str, size: int, group_size: int | None, num_groups: int) -> Tensor:
    """Return the group of each input dim, [I] int64."""
    if part in parts.others:
        order = parts.read(part).long()
        if not bool((order == -1).any()):  # as compressed-tensors marks one that is not in use
            parts.expect(f"{part} of the shape", tuple(order.shape), (size,))
            parts.expect(f"a group in {part} below 0 or above {num_groups - 1}", _outside(order, num_groups), [])
            return order
    return torch.arange(size) // (group_size or size)


def _spread(cells: Tensor, order: Tensor) -> Tensor:
    """Give each input dim its cell of [n, G]; one for all is left to broadcasting."""
    return cells if cells.shape[1] == 1 else cells[:, order]


def _outside(order: Tensor, num_groups: int) -> list[int]:
    outside: list[int] = order[(order < 0) | (order >= num_groups)][:1].tolist()
    return outside


def _unpack(words: Tensor, bits: int) -> Tensor:
    """Return the values of int32 words [n, w], lowest bits first: [n, w * 32 / bits] int32, unsigned."""
    shifts = torch.arange(0, _WORD_BITS, bits, dtype=torch.int32)
    return ((words[:, :, None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def decode_gptq(parts: Parts, quantization: StoredQuantization) -> Decoded:
    """Decode a weight packed along its input dims, whose groups may be in any order.

    Raises:
        ModelError: see `decode_scaled`.
    """
    each = _WORD_BITS // quantization.bits
    parts.expect("the type", parts.values.kind, "I32")
    num_words, num_outputs = _two_dims(parts)
    shape = (num_outputs, num_words * each)
    scales = parts.read("scales").float()  # [G, O]
    num_groups = _cells(shape, quantization.grid)[1]
    parts.expect("scales of the shape", tuple(scales.shape), (num_groups, num_outputs))
    packed_zeros = parts.read("qzeros")
    parts.expect("qzeros of the shape", tuple(packed_zeros.shape), (num_groups, -(-num_outputs // each)))
    highest = (1 << quantization.bits) - 1
    # A zero point of 0 is stored as the highest value where 1 was taken off before it was packed.
    zeros = (_unpack(packed_zeros, quantization.bits)[:, :num_outputs] + quantization.zero_offset) & highest
    order = _group_of_columns(parts, "g_idx", shape[1], quantization.grid.columns, num_groups)

    def rows(first: int, end: int) -> Tensor:
        values = _unpack(parts.values.raw()[:, first:end].t().contiguous(), quantization.bits)  # [end - first, I]
        shifted = (values - zeros[:, first:end].t()[:, order]).float()
        return shifted * scales[:, first:end].t()[:, order]

    return Decoded(shape, rows)


def decode_awq(parts: Parts, quantization: StoredQuantization) -> Decoded:
    """Decode a weight packed along its output dims, 8 of them interleaved in a word.

    Raises:
        ModelError: see `decode_scaled`.
    """
    each = _WORD_BITS // quantization.bits
    parts.expect("the type", parts.values.kind, "I32")
    size, num_words = _two_dims(parts)
    shape = (num_words * each, size)
    scales = parts.read("scales").float()  # [G, O]
    num_groups = _cells(shape, quantization.grid)[1]
    parts.expect("scales of the shape", tuple(scales.shape), (num_groups, shape[0]))
    zeros = parts.others["qzeros"].raw() if "qzeros" in parts.others else None
    if zeros is not None:
        parts.expect("qzeros of the shape", tuple(zeros.shape), (num_groups, num_words))
    order = torch.arange(size) // (quantization.grid.columns or size)

    def rows(first: int, end: int) -> Tensor:
        words = slice(first // each, -(-end // each))
        kept = slice(first % each, first % each + end - first)
        values = _unpack_awq(parts.values.raw()[:, words])[:, kept]  # [I, end - first]
        middle = 1 << quantization.bits - 1
        zero = middle if zeros is None else _unpack_awq(zeros[:, words])[:, kept][order]
        return ((values - zero).float() * scales[:, first:end][order]).t()

    return Decoded(shape, rows)


def _unpack_awq(words: Tensor) -> Tensor:
    nibbles = _unpack(words, 4).view(words.shape[0], -1, len(_AWQ_ORDER))
    return nibbles[:, :, _AWQ_ORDER].flatten(1)


def _two_dims(parts: Parts) -> tuple[int, int]:
    parts.expect("dimensions", len(parts.values.shape), 2)
    return parts.values.shape[0], parts.values.shape[1]


def decode_bnb(parts: Parts, _: StoredQuantization) -> Decoded:
    """Decode 4-bit codes of a table, scaled by the highest magnitude of each block of consecutive values.

    Raises:
        ModelError: see `decode_scaled`.
    """
    parts.expect("the type", parts.values.kind, "U8")
    state_name = next((name for name in parts.others if "quant_state" in name), "weight.quant_state")
    state = json.loads(bytes(parts.read(state_name).tolist()))
    shape, block_size = tuple(state["shape"]), int(state["blocksize"])
    parts.expect("dimensions", len(shape), 2)
    num_elements = torch.Size(shape).numel()
    parts.expect("values", torch.Size(parts.values.shape).numel(), -(-num_elements // 2))
    table = parts.read("weight.quant_map").float()
    parts.expect("the length of its quant_map", table.numel(), 16)
    highest = _bnb_highest(parts, state)
    parts.expect("the length of its absmax", highest.numel(), -(-num_elements // block_size))

    def rows(first: int, end: int) -> Tensor:
        start, stop = first * shape[1], end * shape[1]
        packed = parts.values.raw().flatten()[start // 2 : -(-stop // 2)].int()
        codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten()[start % 2 :][: stop - start]  # high half first
        scales = highest[torch.arange(start, stop) // block_size]
        return (table[codes] * scales).view(end - first, shape[1])

    return Decoded(shape, rows)


def _bnb_highest(parts: Parts, state: Mapping[str, float]) -> Tensor:
    """Return the highest magnitude of each block, which may be quantized itself."""
    highest = parts.read("weight.absmax").flatten()
    if "weight.nested_absmax" not in parts.others:
        parts.expect("the type of its absmax", highest.dtype, torch.float32)
        return highest
    nested = parts.read("weight.nested_absmax").float()
    table = parts.read("weight.nested_quant_map").float()
    at = torch.arange(highest.numel()) // int(state["nested_blocksize"])
    return table[highest.int()] * nested[at] + float(state["nested_offset"])
