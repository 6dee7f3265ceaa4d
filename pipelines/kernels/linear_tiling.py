"""How a projection of few tokens is cut.

The splits of K and the rows of a tile follow from the weight's shape alone: they decide in which order sums are made. What else
there is (columns a turn, warps, turns in flight) follows the number of tokens too, and changes no sum.
"""

from dataclasses import dataclass, replace

from pipelines.kernels.launch import power_of_2

_MIN_TOKENS = 16  # of a tensor core's tile
_MIN_ROWS = 16  # likewise
_MOST_ROWS = 64
_ROWS_UNIT = 8  # that `tile_rows` is a multiple of
_MAX_TOKENS = 128  # of one tile; more tokens take several, each of which reads the weight
_FEW_TOKENS = 32  # up to which one cut was measured, and above which another
_RESERVED_BYTES = 3072  # of a program's shared memory, beside the turns in flight
_MAX_STAGES = 6
_MAX_STAGES_OF_BYTES = 12  # of elements of one byte, so that as much is under way
_MIN_COLUMNS = 16  # of a tensor core's tile
_PROCESSORS = 132  # of an H200
_LONG = 4096  # columns of a split with which a program is worth a processor of its own, and reading ahead pays
_AHEAD = 128  # columns
_PREFETCHED = 4  # lines


@dataclass(frozen=True, slots=True)
class LinearTiling:
    """One weight's cut."""

    tile_rows: int  # of the weight; of a gate's fused weight, rows of either half
    block_k: int  # columns a turn of the loop; divides `split_unit`
    splits: int  # of K
    num_warps: int
    sharers: int = 2  # programs that share a processor
    is_gated: bool = False  # the program holds two tiles of the weight
    split_unit: int = 128  # columns; splits are multiples of it
    ahead: int = 0  # columns read first, before a dependent launch waits; turns divide them and the rest of a split
    prefetched: int = _PREFETCHED  # lines (128 bytes) of each row behind these that it has brought to L2; power of two

    @classmethod
    def choose(cls, num_rows: int, size: int, num_tokens: int, *, is_gated: bool = False) -> "LinearTiling":
        """Return the tiling for a weight [num_rows, size].

        As many splits as fill the processors once; without splits tiles so low that as many rounds of them, two of a gate's,
        are full. What else there is was the fastest for each projection within whole steps of the shapes of Llama-3.1-8B,
        of 32 and of 64 tokens (docs/benchmarks.md).
        """
        rows_out = num_rows // 2 if is_gated else num_rows
        tiles = -(-rows_out // _MOST_ROWS)
        splits = 1
        while tiles * splits * 2 <= _PROCESSORS and size % (2 * splits * 128) == 0:
            splits *= 2
        tile_rows, num_warps = _MOST_ROWS, 4
        if splits == 1:
            programs = -(-tiles // _PROCESSORS) * _PROCESSORS
            even = -(-rows_out // (programs * _ROWS_UNIT)) * _ROWS_UNIT
            if 2 * even > _MOST_ROWS:  # a weight of fewer is read in no time anyway
                tile_rows = even
        is_one_round = tiles * splits <= _PROCESSORS
        if is_gated and not is_one_round:
            block_k, sharers = 64, 2
        elif num_tokens <= _FEW_TOKENS:
            block_k, sharers = 128, 1 if is_one_round else 2
        elif is_one_round and size // splits >= _LONG:
            block_k, sharers, num_warps = 128, 1, 8
        else:
            block_k, sharers = 128 if tiles * splits <= 2 * _PROCESSORS else 64, 2
        reads_ahead = num_tokens <= _FEW_TOKENS and size >= splits * _LONG and size % (splits * _AHEAD) == 0
        tiling = cls(tile_rows, block_k, splits, num_warps, sharers, is_gated)
        if not (reads_ahead and (is_gated or is_one_round)):
            return tiling
        return replace(tiling, ahead=_AHEAD, prefetched=0 if is_gated else tiling.prefetched)

    @property
    def block_n(self) -> int:
        """Rows that a tile has room for."""
        return max(_MIN_ROWS, power_of_2(self.tile_rows))

    def block_m(self, num_tokens: int) -> int:
        """Tokens of a tile."""
        return min(_MAX_TOKENS, max(_MIN_TOKENS, power_of_2(num_tokens)))

    def fitted(self, num_tokens: int, element_bytes: int, shared_bytes: int) -> "LinearTiling":
        """Return this with turns of which two fit into a program, and nothing read ahead that does not; changes no sum."""
        row_bytes = (self.block_n * (2 if self.is_gated else 1) + self.block_m(num_tokens)) * element_bytes
        block_k = self.block_k
        while block_k > _MIN_COLUMNS and 2 * block_k * row_bytes > shared_bytes - _RESERVED_BYTES:
            block_k //= 2
        if self.ahead and (self.ahead + 2 * block_k) * row_bytes > shared_bytes // self.sharers - _RESERVED_BYTES:
            return replace(self, block_k=block_k, ahead=0, prefetched=_PREFETCHED)
        return replace(self, block_k=block_k)

    def num_stages(self, num_tokens: int, element_bytes: int, shared_bytes: int) -> int:
        """Turns of the loop in flight, as many as fit where `sharers` share a processor."""
        rows = self.block_n * (2 if self.is_gated else 1) + self.block_m(num_tokens)
        own_bytes = shared_bytes // self.sharers - _RESERVED_BYTES
        own_bytes -= self.ahead * self.block_n * (2 if self.is_gated else 1) * element_bytes
        most = _MAX_STAGES_OF_BYTES if element_bytes == 1 else _MAX_STAGES
        return max(2, min(most, own_bytes // (rows * self.block_k * element_bytes)))

    def split_size(self, size: int) -> int:
        """Columns of one split."""
        units = -(-size // self.split_unit)
        return -(-units // self.splits) * self.split_unit

    def num_row_tiles(self, num_rows: int) -> int:
        """Programs along the weight's rows."""
        return -(-num_rows // (2 * self.tile_rows if self.is_gated else self.tile_rows))

    def num_tiles(self, num_rows: int, max_tokens: int) -> int:
        """Tiles that have an arrival counter of their own."""
        return self.num_row_tiles(num_rows) * -(-max_tokens // _MAX_TOKENS)

    def num_sums(self, num_rows: int, max_tokens: int) -> int:
        """Float32 sums that the splits of all tiles leave."""
        if self.splits == 1:
            return 1
        tokens = self.block_m(max_tokens) * -(-max_tokens // _MAX_TOKENS)
        return self.num_row_tiles(num_rows) * (2 if self.is_gated else 1) * self.block_n * self.splits * tokens
