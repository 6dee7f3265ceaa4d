"""What the kernels' tests share: a device, the interpreter where there is no GPU, references in float64, poisoned outputs."""

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
if not ON_GPU and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # has to be set before Triton is imported for the first time
pytest.importorskip("triton", reason="Triton is missing, so NO KERNEL IS TESTED here: install the test extras")
if not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "Triton was imported before its tests could choose the interpreter, so NO KERNEL IS TESTED here: set "
        "TRITON_INTERPRET=1",
        allow_module_level=True,
    )

import triton.language as tl  # noqa: E402  see above
from quick_interpreter import make_quick  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from pipelines.kernels.attention_plan import StepRows  # noqa: E402
from pipelines.kernels.attention_shape import AttentionShape  # noqa: E402


def _mend_interpreter() -> None:
    """Teach Triton 3.6's interpreter numpy 2.4 and short types.

    It multiplies a bfloat16's bits as integers and rounds to it towards zero, as it does to a small float8, of which it knows no
    NaN either.
    """
    patch_tensor = interpreter._patch_lang_tensor
    create_dot = interpreter.InterpreterBuilder.create_dot
    cast = interpreter.InterpreterBuilder.cast_impl
    types = {
        tl.float32: torch.float32, tl.float16: torch.float16, tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn,
    }  # fmt: skip
    storage = {tl.bfloat16: torch.uint16, tl.float8e4nv: torch.uint8}  # where numpy has no such type

    def patch_tensor_for_numpy(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def create_dot_of_any(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        return create_dot(builder, widened(a), widened(b), *others)

    def cast_to_nearest(builder: Any, handle: Any, target: Any) -> Any:
        if handle.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return cast(builder, handle, target)
        short = torch.from_numpy(np.ascontiguousarray(handle.data)).bfloat16()
        return interpreter.TensorHandle(short.view(torch.uint16).numpy(), tl.bfloat16)

    def convert_as_torch(_: Any, handle: Any, target: Any, __: Any) -> Any:
        source = torch.from_numpy(np.ascontiguousarray(handle.data)).view(types[handle.dtype.scalar])
        found = source.to(types[target.scalar]).view(storage.get(target.scalar, types[target.scalar]))
        return interpreter.TensorHandle(found.numpy(), target.scalar)

    interpreter.InterpreterBuilder.create_fp_to_fp = convert_as_torch
    interpreter._patch_lang_tensor = patch_tensor_for_numpy
    interpreter.InterpreterBuilder.cast_impl = cast_to_nearest
    interpreter.InterpreterBuilder.create_dot = create_dot_of_any


if not ON_GPU:
    _mend_interpreter()
    make_quick()

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of `error`


def error(output: Tensor, reference: Tensor) -> float:
    """Return |output - reference| / |reference|; infinite where something is not finite."""
    difference = (output.double().cpu() - reference.double().cpu()).norm() / reference.double().cpu().norm()
    return float(difference) if bool(difference.isfinite()) else float("inf")


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor of NaN, so that what is not written shows."""
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A step: pages with NaN wherever nothing was written, tables, rows, queries."""

    shape: AttentionShape
    keys: Tensor  # [P, Z, K, H]
    values: Tensor  # [P, Z, K, Hv]
    block_tables: Tensor  # [seats, blocks] int32; entries not in use point outside of the cache
    rows: StepRows
    query: Tensor  # [T, N, H]
    lengths: tuple[tuple[int, int], ...]  # (new tokens, context length) a row; (0, 0) = padding


def make_case(
    shape: AttentionShape, lengths: tuple[tuple[int, int], ...], *, seed: int = 0, num_padding_tokens: int = 0
) -> AttentionCase:
    """Return a step with random contents, its pages scattered and its seats shuffled."""
    random = torch.Generator().manual_seed(seed)
    max_blocks = max(-(-context // shape.page_size) for _, context in lengths) + 1
    num_used = sum(-(-context // shape.page_size) for _, context in lengths)
    pages = torch.randperm(num_used + 2, generator=random).tolist()
    seats = torch.randperm(len(lengths) + 2, generator=random)[: len(lengths)]
    tables = torch.full((len(lengths) + 2, max_blocks), 2**30, dtype=torch.int32)
    keys = torch.full((num_used + 2, shape.page_size, shape.num_kv_heads, shape.key_dim), float("nan"))
    values = torch.full((num_used + 2, shape.page_size, shape.num_kv_heads, shape.value_dim), float("nan"))
    for row, (_, context) in enumerate(lengths):
        for block in range(-(-context // shape.page_size)):
            page = pages.pop()
            tables[seats[row], block] = page
            count = min(shape.page_size, context - block * shape.page_size)
            keys[page, :count] = torch.randn((count, *keys.shape[2:]), generator=random)
            values[page, :count] = torch.randn((count, *values.shape[2:]), generator=random)
    counts = torch.tensor([count for count, _ in lengths], dtype=torch.int32)
    num_tokens = int(counts.sum()) + num_padding_tokens
    return AttentionCase(
        shape=shape,
        keys=keys.to(DEVICE, shape.dtype),
        values=values.to(DEVICE, shape.dtype),
        block_tables=tables.to(DEVICE),
        rows=StepRows(
            first_tokens=(counts.cumsum(0, dtype=torch.int32) - counts).to(DEVICE),
            num_tokens=counts.to(DEVICE),
            context_lens=torch.tensor([context for _, context in lengths], dtype=torch.int32, device=DEVICE),
            seats=seats.int().to(DEVICE),
        ),
        query=torch.randn((num_tokens, shape.num_heads, shape.key_dim), generator=random).to(DEVICE, shape.dtype),
        lengths=lengths,
    )


def attend_reference(case: AttentionCase, window: int | None) -> Tensor:
    """Return the attention of all tokens of a step's rows, [T, N, Hv] float64; zero for padding tokens."""
    shape = case.shape
    output = torch.zeros((case.query.shape[0], shape.num_heads, shape.value_dim), dtype=torch.float64)
    seats, firsts = case.rows.seats.tolist(), case.rows.first_tokens.tolist()
    for row, (count, context) in enumerate(case.lengths):
        if count == 0:
            continue
        table = case.block_tables[seats[row], : -(-context // shape.page_size)].long()
        keys = case.keys[table].flatten(0, 1)[:context].double().cpu().repeat_interleave(shape.group, 1)  # [L, N, H]
        values = case.values[table].flatten(0, 1)[:context].double().cpu().repeat_interleave(shape.group, 1)
        query = case.query[firsts[row] : firsts[row] + count].double().cpu()
        scores = torch.einsum("tnh,lnh->ntl", query, keys) * shape.scale
        at_query = torch.arange(context - count, context)[:, None]
        at_key = torch.arange(context)[None]
        hidden = at_key > at_query
        if window is not None:
            hidden |= at_key <= at_query - window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        output[firsts[row] : firsts[row] + count] = torch.einsum("ntl,lnh->tnh", weights, values)
    return output
