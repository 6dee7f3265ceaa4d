"""How a checkpoint's weights are quantized, from its configuration; what the engine cannot decode is refused by its name.

Decoding has to know what a file's tensors alone do not say (where zero lies, in which order values are packed), so a format
is taken only where every key that changes the meaning of a tensor has a value that is known here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipelines.errors import ModelError

_KEYS = ("quantization_config", "compression_config")  # the second is compressed-tensors' older word
_PACKED_BITS = (4, 8)
_GPTQ_BITS = (2, 4, 8)
_SUPPORTED = (
    "compressed-tensors (float-quantized, int-quantized, naive-quantized, or pack-quantized of 4 or 8 bits), fp8 with scales "
    "by block or tensor, awq (gemm, 4 bits), gptq (2, 4 or 8 bits), bitsandbytes (4 or 8 bits)"
)


class Packing(StrEnum):
    """How a weight's values lie in its files."""

    FLOAT8 = "float8"  # weight [out, in] e4m3
    INT8 = "int8"  # weight [out, in]
    PACKED_ROWS = "packed rows"  # weight_packed [out, in * bits / 32] int32
    AWQ = "awq"  # qweight [in, out / 8] int32
    GPTQ = "gptq"  # qweight [in * bits / 32, out] int32
    BNB_4BIT = "bitsandbytes 4bit"  # weight [out * in / 2, 1] uint8
    BNB_8BIT = "bitsandbytes 8bit"  # weight [out, in] int8


@dataclass(frozen=True, slots=True)
class Grid:
    """What one scale is for; None: all of that dimension."""

    rows: int | None
    columns: int | None


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """A checkpoint's format."""

    packing: Packing
    bits: int
    grid: Grid
    zero_offset: int = 0  # added to stored zero points


def read_quantization(folder: Path) -> StoredQuantization | None:
    """Return how a model folder's weights are quantized, None if they are not.

    Raises:
        ModelError: in a way that cannot be decoded; the text names it.
    """
    found = _find(folder)
    if found is None:
        return None
    method = found.get("quant_method", "compressed-tensors" if "config_groups" in found else None)
    match method:
        case "compressed-tensors":
            return _compressed_tensors(found)
        case "fp8":
            return _fp8(found)
        case "awq":
            return _awq(found)
        case "gptq":
            return _gptq(found)
        case "bitsandbytes":
            return _bitsandbytes(found)
        case _:
            raise _refusal(f"quant_method {method!r}")


def _find(folder: Path) -> Mapping[str, Any] | None:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"model folder {folder}: found no config.json, expected a model as transformers keeps it")
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: expected JSON: {error}") from error
    places = [config, config.get("text_config")] if isinstance(config, Mapping) else []
    for place in places:
        for key in _KEYS:
            found = place.get(key) if isinstance(place, Mapping) else None
            if isinstance(found, Mapping):
                return found
            if found is not None:
                raise ModelError(f"{file}: {key} is a {type(found).__name__}, expected an object")
    return None


def _refusal(what: str) -> ModelError:
    return ModelError(
        f"its weights are quantized in a way that is not supported: found {what}, expected one of {_SUPPORTED}"
    )


def _expect(method: str, found: Mapping[str, Any], **allowed: tuple[Any, ...]) -> None:
    """Refuse a key whose value is none of those allowed; None stands for a key that is not there."""
    for key, values in allowed.items():
        value = found.get(key)
        if value not in values and not (value in ({}, [], "") and None in values):
            raise _refusal(f"{method} with {key} {value!r}")


def _fp8(found: Mapping[str, Any]) -> StoredQuantization:
    _expect(
        "fp8",
        found,
        fmt=(None, "e4m3", "float8_e4m3fn"),
        weight_format=(None, "e4m3", "float8_e4m3fn"),
        expert_dtype=(None, "fp8"),
    )
    size = found.get("weight_block_size")
    return StoredQuantization(Packing.FLOAT8, 8, Grid(None, None) if size is None else _block("fp8", size))


def _block(method: str, size: Any) -> Grid:
    if isinstance(size, str) and all(part.isdecimal() for part in size.split("x")):
        size = [int(part) for part in size.split("x")]  # as older checkpoints write it: 128x128
    if not isinstance(size, (list, tuple)) or [type(each) for each in size] != [int, int] or min(size) < 1:
        raise _refusal(f"{method} with blocks of {size!r}")
    return Grid(size[0], size[1])


def _awq(found: Mapping[str, Any]) -> StoredQuantization:
    named = {key: value.lower() if isinstance(value, str) else value for key, value in found.items()}
    _expect(
        "awq",
        named,
        bits=(4,),
        version=(None, "gemm"),
        format=(None, "gemm"),
        checkpoint_format=(None, "gemm"),
        backend=(None, "auto", "autoawq"),
    )
    return StoredQuantization(Packing.AWQ, 4, Grid(1, _group_size("awq", found)))


def _gptq(found: Mapping[str, Any]) -> StoredQuantization:
    _expect(
        "gptq",
        found,
        bits=_GPTQ_BITS,
        checkpoint_format=(None, "gptq", "gptq_v2"),
        format=(None, "gptq", "gptq_v2"),
        is_marlin_format=(None, False),
        dynamic=(None,),
        pack_dtype=(None, "int32"),
    )
    is_second = "gptq_v2" in {found.get("checkpoint_format"), found.get("format")}
    return StoredQuantization(
        Packing.GPTQ, found["bits"], Grid(1, _group_size("gptq", found)), zero_offset=0 if is_second else 1
    )


def _group_size(method: str, found: Mapping[str, Any]) -> int | None:
    size = found.get("group_size")
    if type(size) is not int or (size != -1 and size < 1):
        raise _refusal(f"{method} with group_size {size!r}")
    return None if size == -1 else size


def _bitsandbytes(found: Mapping[str, Any]) -> StoredQuantization:
    if found.get("load_in_4bit") or found.get("_load_in_4bit"):
        _expect("bitsandbytes", found, bnb_4bit_quant_storage=(None, "uint8"))
        return StoredQuantization(Packing.BNB_4BIT, 4, Grid(None, None))
    if found.get("load_in_8bit") or found.get("_load_in_8bit"):
        return StoredQuantization(Packing.BNB_8BIT, 8, Grid(1, None))
    raise _refusal("bitsandbytes with neither load_in_4bit nor load_in_8bit")


def _compressed_tensors(found: Mapping[str, Any]) -> StoredQuantization:
    method = "compressed-tensors"
    _expect(method, found, transform_config=(None,))
    sparsity = found.get("sparsity_config") or {}
    _expect(f"{method} sparsity", sparsity, format=(None, "dense"))
    kinds: list[tuple[str, Mapping[str, Any]]] = []
    for group in (found.get("config_groups") or {}).values():
        weights = group.get("weights")
        kind = (group.get("format") or found.get("format") or "", weights)
        if weights is not None and not any(_is_alike(kind, other) for other in kinds):
            kinds.append(kind)
    if len(kinds) != 1:
        formats = " and ".join(f"{name} of {weights.get('num_bits')} bits" for name, weights in kinds) or "no weights"
        raise _refusal(f"{method} with groups of {formats}")
    name, weights = kinds[0]
    return StoredQuantization(_compressed_packing(name, weights), weights["num_bits"], _compressed_grid(weights))


_MEANING = ("num_bits", "type", "strategy", "group_size", "block_structure", "symmetric")


def _is_alike(one: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> bool:
    return one[0] == other[0] and all(one[1].get(key) == other[1].get(key) for key in _MEANING)


def _compressed_packing(name: str, weights: Mapping[str, Any]) -> Packing:
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    match (name, kind):
        case ("float-quantized" | "naive-quantized", "float") if bits == _PACKED_BITS[1]:
            return Packing.FLOAT8
        case ("int-quantized" | "naive-quantized", "int") if bits == _PACKED_BITS[1]:
            return Packing.INT8
        case ("pack-quantized", "int") if bits in _PACKED_BITS:
            return Packing.PACKED_ROWS
        case _:
            raise _refusal(f"compressed-tensors in the format {name!r} with weights of {bits} bits of type {kind!r}")


def _compressed_grid(weights: Mapping[str, Any]) -> Grid:
    group_size = weights.get("group_size")
    match weights.get("strategy"):
        case "tensor" | None if group_size is None:
            return Grid(None, None)
        case "channel":
            return Grid(1, None)
        case "group" | None:
            return Grid(1, _group_size("compressed-tensors", weights))
        case "block":
            return _block("compressed-tensors", weights.get("block_structure"))
        case strategy:
            raise _refusal(f"compressed-tensors with the strategy {strategy!r}")
