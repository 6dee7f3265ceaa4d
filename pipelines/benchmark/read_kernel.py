"""A Triton kernel that reads a buffer once and keeps nothing of it but a sum: what the memory gives at the most."""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl
from torch import Tensor


def add_up(words: Tensor, partial: Tensor, *, block: int, num_warps: int) -> None:
    """Write each program's sum.

    Args:
        words: [N] int32, N a multiple of `block`.
        partial: [programs] int32; it decides how many there are.
        block: words that a program reads at a time, a power of two.
        num_warps: of a program.
    """
    num_blocks = words.numel() // block
    _add_up[(partial.numel(),)](words, partial, num_blocks, block=block, num_warps=num_warps, num_stages=4)


@triton.jit
def _add_up(words: tl.tensor, partial: tl.tensor, num_blocks: tl.tensor, block: tl.constexpr) -> None:
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    places = words + program.to(tl.int64) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.int32)
    for _ in range(program, num_blocks, num_programs):
        total += tl.load(places)
        places += num_programs.to(tl.int64) * block
    tl.store(partial + program, tl.sum(total, 0))
