"""Kernels that use what ours use of the language, and what comes of them: numbers, types and refusals."""

import kernel_support as _  # noqa: F401  before Triton
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

ROWS, BLOCK = 3, 16


@triton.jit
def _next_total(total, part, turn):
    return total * 2 + part / (turn + 1)


@triton.jit
def _numbers(values, floats, integers, count, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < 13
    line = tl.load(values + row * block + at, mask=inside, other=1.5)
    square = line[:, None] * line[None, :] - row
    short = square.to(tl.bfloat16)
    product = tl.dot(short, tl.trans(short)) + tl.full([block, block], 0.25, tl.float32)
    total = tl.zeros([block], tl.float32)
    for turn in range(row + 2):
        total = _next_total(total, tl.where(inside, tl.sum(square, 1), tl.max(square, axis=0)), turn)
    whole = (total * 3).to(tl.int32)
    whole = (whole // 3) % 5 + (whole << 2) - (whole & 6) + (whole > 4).to(tl.int32)
    tl.store(floats + row * block + at, total + tl.exp2(tl.minimum(tl.max(product, 0), 3.0)))
    tl.store(integers + row * block + at, whole.to(tl.int64) * -7, mask=at[None, :].reshape(block) < 15)
    tl.atomic_add(count, tl.sum(inside.to(tl.int32)))


@triton.jit
def _odd_shape(output):
    tl.store(output, tl.sum(tl.zeros([12], tl.int32)))


@triton.jit
def _other_shapes(output):
    tl.store(output, tl.sum(tl.arange(0, 8) + tl.arange(0, 16)))


@triton.jit
def _negative(output):
    tl.store(output, tl.sum(tl.arange(0, 8).to(tl.uint32) + -1))


@triton.jit
def _no_number(output):
    tl.store(output, output + output)


def outcomes():
    """All that can be told of them, as JSON has it."""
    values = torch.randn((ROWS, BLOCK), generator=torch.Generator().manual_seed(1))
    floats, integers, count = (
        torch.zeros(ROWS, BLOCK),
        torch.zeros(ROWS, BLOCK, dtype=torch.int64),
        torch.zeros(1).int(),
    )
    _numbers[(ROWS,)](values, floats, integers, count, block=BLOCK)
    shapes = [2, 4], [4, 2], tl.tuple([4, tl.constexpr(2)])
    types = [tl.block_type(kind, shape) for kind in (tl.int8, tl.float32) for shape in shapes]
    return {
        "floats": floats.tolist(),
        "integers": integers.tolist(),
        "count": count.tolist(),
        "types": [
            [str(kind), kind.name, kind.mangle(), kind.numel, *(bool(kind == one) for one in types)] for kind in types
        ],
        "refusals": [_refusal(kernel) for kernel in (_odd_shape, _other_shapes, _negative, _no_number)],
    }


def _refusal(kernel):
    try:
        kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    except InterpreterError as error:
        return str(error)
    return "none"
