"""The shape of one attention layer and how its kernels are cut, by what they work on."""

from dataclasses import dataclass

import torch

from pipelines.kernels.launch import num_processors, power_of_2, shared_bytes

_LOG2_E = 1.4426950408889634
_MIN_DOT_ROWS = 16  # of a tensor core's tile
_MAX_TILE_BYTES = 16384  # of the keys of one turn, so that a few turns fit into shared memory
_SHORT = 2  # bytes of a float16 or bfloat16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer's attention, as the kernels need it."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    page_size: int
    scale: float  # of the scores
    dtype: torch.dtype

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def scale_log2(self) -> float:
        """The scale of scores whose exponential is taken to the base 2."""
        return self.scale * _LOG2_E

    @property
    def precision(self) -> str:
        """How a dot treats float32: as float32. No effect on shorter types."""
        return "ieee"


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How the decode kernel is cut; the same for every batch."""

    block_n: int  # positions a turn of the loop
    num_warps: int
    num_stages: int  # turns in flight
    programs_per_processor: int
    max_registers: int | None = None  # of a thread, so that so many programs fit; None = as the compiler likes

    @classmethod
    def choose(cls, shape: AttentionShape, device: torch.device) -> "DecodeTiling":
        """Return the tiling for a layer; measured for 2 bytes and H = 128 on an H200, see docs/benchmarks.md."""
        block_n, turn_bytes = _turn(shape, 64)
        num_stages = min(3, max(2, shared_bytes(device) // turn_bytes - 1))
        return cls(block_n=block_n, num_warps=4, num_stages=num_stages, programs_per_processor=2)

    def num_lanes(self, shape: AttentionShape, device: torch.device) -> int:
        """Return among how many lanes, each of a program a KV head, a step's work is shared."""
        return max(1, num_processors(device) * self.programs_per_processor // shape.num_kv_heads)


@dataclass(frozen=True, slots=True)
class PrefillTiling:
    """How the prefill kernel is cut; the same for every batch."""

    block_m: int  # rows of a tile: queries times the heads of one KV head
    block_n: int  # positions a turn of the loop
    num_warps: int
    num_stages: int  # turns in flight
    programs_per_processor: int

    @classmethod
    def choose(cls, shape: AttentionShape, device: torch.device) -> "PrefillTiling":
        """Return the tiling for a layer; measured for 2 bytes and H = 128 on an H200, see docs/benchmarks.md."""
        block_n, turn_bytes = _turn(shape, 64)
        block_m = max(128 if shape.dtype.itemsize == _SHORT else 64, power_of_2(shape.group))
        left = shared_bytes(device) - block_m * power_of_2(shape.key_dim) * shape.dtype.itemsize
        num_stages = min(3, max(2, left // turn_bytes))
        return cls(block_m=block_m, block_n=block_n, num_warps=8, num_stages=num_stages, programs_per_processor=1)

    def tile_tokens(self, shape: AttentionShape) -> int:
        """Queries of one tile."""
        return self.block_m // shape.group


def dot_rows(group: int) -> int:
    """Rows of the tile that holds the query heads of one KV head."""
    return max(_MIN_DOT_ROWS, power_of_2(group))


def _turn(shape: AttentionShape, most: int) -> tuple[int, int]:
    """Positions of a loop's turn, and the bytes of their keys and values."""
    row_bytes = power_of_2(max(shape.key_dim, shape.value_dim)) * shape.dtype.itemsize
    block_n = max(_MIN_DOT_ROWS, min(most, _MAX_TILE_BYTES // row_bytes))
    return block_n, 2 * block_n * row_bytes
