"""The small kernels between projections: residual sum with RMS norm, and the gate of the MLP.

All arithmetic is float32 with one rounding at the end of each output.

Shapes: T tokens, D hidden, I intermediate, s selected tokens.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options, power_of_2

_ELEMENTS_A_WARP = 512  # 16 a thread
_GATE_BLOCK = 1024


def add_rms_norm(
    hidden: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    epsilon: float,
    output: Tensor,
    selected: Tensor | None = None,
    *,
    dependent: bool = False,
) -> None:
    """Write the RMS norm of hidden + residual into `output`, and the sum itself into `residual`.

    Args:
        hidden: [T, D].
        residual: [T, D], replaced by the sum (rounded; the norm is that of the rounded sum); None: nothing is added.
        weight: [D].
        epsilon: added to the mean square.
        output: [T, D], or [s, D] with `selected`; may be `hidden` itself.
        selected: [s] int32, which tokens to norm, in front of a model's head; the residual is left as it is then.
        dependent: whether this is a dependent launch.
    """
    size = hidden.shape[-1]
    block = power_of_2(size)
    _add_rms_norm[(output.shape[0],)](
        hidden,
        hidden if residual is None else residual,
        weight,
        hidden if selected is None else selected,
        output,
        epsilon,
        hidden.stride(0),
        size=size,
        block=block,
        has_residual=residual is not None,
        is_selected=selected is not None,
        dependent=dependent,
        num_warps=max(1, min(16, block // _ELEMENTS_A_WARP)),
        **launch_options(dependent=dependent),
    )


@triton.jit
def _add_rms_norm(
    hidden: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    selected: tl.tensor,
    output: tl.tensor,
    epsilon: tl.tensor,
    hidden_stride: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
    has_residual: tl.constexpr,
    is_selected: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    at = tl.arange(0, block)
    is_there = at < size
    scale = tl.load(weight + at, mask=is_there, other=0.0).to(tl.float32)  # nobody writes weights: before the wait
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(selected + row).to(tl.int64) if is_selected else row
    total = tl.load(hidden + token * hidden_stride + at, mask=is_there, other=0.0)
    if has_residual:
        kept = residual + token * size + at
        kind = residual.dtype.element_ty
        total = (total.to(tl.float32) + tl.load(kept, mask=is_there, other=0.0).to(tl.float32)).to(kind)
        if not is_selected:
            tl.store(kept, total, mask=is_there)
    wide = total.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)
    tl.store(output + row * size + at, (wide * inverse * scale).to(output.dtype.element_ty), mask=is_there)


def silu_and_mul(projected: Tensor, output: Tensor, *, dependent: bool = False) -> None:
    """Write silu(gate) * up into `output` [T, I]; `projected` is [T, 2I], gate first."""
    num_tokens, size = output.shape
    _silu_and_mul[(num_tokens, triton.cdiv(size, _GATE_BLOCK))](
        projected,
        output,
        projected.stride(0),
        size=size,
        block=_GATE_BLOCK,
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )


@triton.jit
def _silu_and_mul(
    projected: tl.tensor,
    output: tl.tensor,
    projected_stride: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    is_there = at < size
    source = projected + token * projected_stride + at
    gate = tl.load(source, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(source + size, mask=is_there, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + token * size + at, result.to(output.dtype.element_ty), mask=is_there)
