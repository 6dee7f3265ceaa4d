"""Projections of few tokens against torch in float64: splits, remainders, epilogues, a norm that costs no kernel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from kernel_support import DEVICE, DTYPES, ON_GPU, TOLERANCES, error, poisoned
from torch import Tensor

from pipelines.kernels.linear import Epilogue, Float8Scales, LinearScratch, Residual, RowScale, skinny_linear
from pipelines.kernels.linear_tiling import LinearTiling

SMALL = LinearTiling(tile_rows=16, block_k=16, splits=2, num_warps=4, split_unit=16)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def gated(tiling: LinearTiling) -> LinearTiling:
    return replace(tiling, is_gated=True)


def scratch_for(tiling: LinearTiling, num_rows: int, num_tokens: int) -> LinearScratch:
    return LinearScratch.allocate(tiling.num_sums(num_rows, num_tokens), tiling.num_tiles(num_rows, num_tokens), DEVICE)


@pytest.mark.parametrize(("num_tokens", "num_rows", "size"), [(1, 32, 64), (5, 40, 64), (17, 24, 72), (130, 16, 32)])
@pytest.mark.parametrize(("splits", "tile_rows"), [(1, 16), (3, 16), (1, 12), (2, 24)])
def test_products_agree_with_the_reference(
    num_tokens: int, num_rows: int, size: int, splits: int, tile_rows: int
) -> None:
    """Few tokens and several tiles of them; rows and columns that fill no tile; splits of unequal length; tiles not filled."""
    tiling = replace(SMALL, splits=splits, tile_rows=tile_rows)
    tokens, weight = random(num_tokens, size), random(num_rows, size, seed=1)
    scratch = scratch_for(tiling, num_rows, num_tokens)
    for _ in range(2):  # arrivals are zero again
        output = poisoned(num_tokens, num_rows, dtype=torch.float32)
        skinny_linear(tokens, weight, output, scratch, tiling)
    assert error(output, tokens.double().cpu() @ weight.double().cpu().T) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_and_bias_agree(dtype: torch.dtype) -> None:
    """One rounding at the end."""
    tokens, weight, bias = (
        random(3, 64, dtype=dtype),
        random(32, 64, dtype=dtype, seed=1),
        random(32, dtype=dtype, seed=2),
    )
    output = poisoned(3, 32, dtype=dtype)
    skinny_linear(tokens, weight, output, scratch_for(SMALL, 32, 3), SMALL, bias=bias)
    expected = tokens.double().cpu() @ weight.double().cpu().T + bias.double().cpu()
    assert error(output, expected) < TOLERANCES[dtype]


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("is_gated", [False, True])
def test_columns_read_ahead_count_once(splits: int, is_gated: bool) -> None:
    """Some of a split, or all of it."""
    tokens, weight = random(5, 64), random(40, 64, seed=1)
    expected = tokens.double().cpu() @ weight.double().cpu().T
    if is_gated:
        gate, up = expected.chunk(2, dim=-1)
        expected = torch.nn.functional.silu(gate) * up
    for ahead in (16, 32):
        tiling = replace(SMALL, splits=splits, tile_rows=12, is_gated=is_gated, ahead=ahead)
        output = poisoned(5, 20 if is_gated else 40, dtype=torch.float32)
        epilogue = Epilogue.SILU if is_gated else Epilogue.PLAIN
        skinny_linear(tokens, weight, output, scratch_for(tiling, 40, 5), tiling, epilogue)
        assert error(output, expected) < TOLERANCES[torch.float32]


@pytest.mark.skipif(ON_GPU, reason="only the interpreter tells what is read")
@pytest.mark.parametrize("ahead", [0, 32])
@pytest.mark.parametrize("num_tokens", [1, 5, 16, 21])
def test_a_tile_reads_each_token_once_and_none_behind_them(
    num_tokens: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a tile's tokens that are not there nothing is read: not the last one again, and not what lies behind it."""
    from triton.runtime.interpreter import InterpreterBuilder  # once it is chosen

    store = random(32, 64)
    tokens, weight = store[:num_tokens], random(40, 64, seed=1)
    num_reads = np.zeros(32, dtype=int)
    load = InterpreterBuilder.create_masked_load

    def counting(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        places = pointers.data[mask.data].astype(np.int64) - store.data_ptr()
        rows = places[(places >= 0) & (places < store.nbytes)] // (64 * 4)
        np.add.at(num_reads, rows, 1)
        return load(builder, pointers, mask, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counting)
    tiling = replace(SMALL, ahead=ahead)
    skinny_linear(
        tokens, weight, poisoned(num_tokens, 40, dtype=torch.float32), scratch_for(tiling, 40, num_tokens), tiling
    )
    once_a_tile = 64 * tiling.num_row_tiles(40)
    assert num_reads.tolist() == [once_a_tile] * num_tokens + [0] * (32 - num_tokens)


@pytest.mark.parametrize("num_tokens", [1, 32, 33])
def test_only_long_splits_of_few_tokens_are_read_ahead(num_tokens: int) -> None:
    """What is left of a split is whole turns."""
    shapes = {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
        "head": (128256, 4096),
    }
    cuts = {name: LinearTiling.choose(*shape, num_tokens, is_gated=name == "gate_up") for name, shape in shapes.items()}
    for name, cut in cuts.items():
        assert (cut.split_size(shapes[name][1]) - cut.ahead) % cut.block_k == 0
    assert {name for name, cut in cuts.items() if cut.ahead} == (
        {"qkv", "gate_up", "down"} if num_tokens <= 32 else set()
    )
    assert all(cut == cut.fitted(num_tokens, 2, 227 << 10) for cut in cuts.values()), "all of it fits an H200"
    fitted = cuts["gate_up"].fitted(num_tokens, 4, 99 << 10)
    assert (fitted.ahead, fitted.prefetched) == (0, 4), "there is no room for it"
    assert LinearTiling.choose(6144, 4096 + 64, num_tokens).ahead == 0, "not whole turns"
    assert LinearTiling.choose(960, 576, num_tokens).ahead == 0, "small"


@pytest.mark.parametrize(("splits", "tile_rows"), [(1, 16), (2, 16), (2, 10)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_fused_gate_agrees(splits: int, tile_rows: int, has_bias: bool) -> None:
    """silu(gate) * up with the gate's rows first, also where the halves fill no tile."""
    tiling = gated(replace(SMALL, splits=splits, tile_rows=tile_rows))
    tokens, weight, bias = random(3, 64), random(48, 64, seed=1), random(48, seed=2)
    output = poisoned(3, 24, dtype=torch.float32)
    skinny_linear(
        tokens, weight, output, scratch_for(tiling, 48, 3), tiling, Epilogue.SILU, bias=bias if has_bias else None
    )
    product = tokens.double().cpu() @ weight.double().cpu().T + (bias.double().cpu() if has_bias else 0)
    gate, up = product.chunk(2, dim=-1)
    assert error(output, torch.nn.functional.silu(gate) * up) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("is_gated", [False, True])
def test_float8_is_scaled_by_tokens_and_by_rows_of_the_weight(splits: int, is_gated: bool) -> None:
    """With a norm's factor, and a bias, which is added behind the scales."""
    tiling = replace(SMALL, splits=splits, block_k=32, split_unit=32, tile_rows=12, is_gated=is_gated)
    tokens, weight = random(5, 64).to(torch.float8_e4m3fn), random(48, 64, seed=1).to(torch.float8_e4m3fn)
    scales = Float8Scales(random(5, seed=4).abs(), random(48, seed=2).abs() / 32)
    bias, squares = random(48, dtype=torch.bfloat16, seed=3), random(3, 5, seed=5).square()
    output = poisoned(5, 24 if is_gated else 48, dtype=torch.bfloat16)
    epilogue = Epilogue.SILU if is_gated else Epilogue.PLAIN
    skinny_linear(
        tokens, weight, output, scratch_for(tiling, 48, 5), tiling, epilogue,
        float8=scales, bias=bias, scale=RowScale(squares, 64, 1e-5),
    )  # fmt: skip
    factors = scales.tokens.double() * (squares.double().sum(0) / 64 + 1e-5).rsqrt()
    meant = weight.double() * scales.weight.double()[:, None]
    expected = ((tokens.double() * factors[:, None]) @ meant.T + bias.double()).cpu()
    if is_gated:
        gate, up = expected.chunk(2, dim=-1)
        expected = torch.nn.functional.silu(gate) * up
    assert error(output, expected) < TOLERANCES[torch.bfloat16]


def test_a_residual_is_added_in_place() -> None:
    """There is no output beside it."""
    tokens, weight, hidden = random(3, 64), random(40, 64, seed=1), random(3, 40, seed=2)
    expected = hidden.double().cpu() + tokens.double().cpu() @ weight.double().cpu().T
    skinny_linear(tokens, weight, None, scratch_for(SMALL, 40, 3), SMALL, Epilogue.RESIDUAL, residual=Residual(hidden))
    assert error(hidden, expected) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "tile_rows"), [(3, 16), (20, 16), (20, 12)])
def test_a_norm_between_two_projections_needs_no_kernel(dtype: torch.dtype, num_tokens: int, tile_rows: int) -> None:
    """The first leaves scaled rows and squares, the second applies the factor; together a norm and a gate."""
    cut = replace(SMALL, tile_rows=tile_rows)
    epsilon = 1e-5
    tokens, weight = random(num_tokens, 64, dtype=dtype), random(40, 64, dtype=dtype, seed=1)
    hidden, gain = random(num_tokens, 40, dtype=dtype, seed=2), random(40, dtype=dtype, seed=3)
    behind = random(32, 40, dtype=dtype, seed=4)
    hidden_sum = hidden.double().cpu() + tokens.double().cpu() @ weight.double().cpu().T
    normed = hidden_sum * (hidden_sum.square().mean(-1, keepdim=True) + epsilon).rsqrt() * gain.double().cpu()
    gate, up = (normed @ behind.double().cpu().T).chunk(2, dim=-1)

    scaled = poisoned(num_tokens, 40, dtype=dtype)
    squares = poisoned(cut.num_row_tiles(40), 32, dtype=torch.float32)
    skinny_linear(
        tokens,
        weight,
        scaled,
        scratch_for(cut, 40, num_tokens),
        cut,
        Epilogue.RESIDUAL_NORM,
        residual=Residual(hidden, gain, squares),
    )
    output = poisoned(num_tokens, 16, dtype=dtype)
    skinny_linear(
        scaled,
        behind,
        output,
        scratch_for(gated(cut), 32, num_tokens),
        gated(cut),
        Epilogue.SILU,
        scale=RowScale(squares, 40, epsilon),
    )
    assert error(output, torch.nn.functional.silu(gate) * up) < 3 * TOLERANCES[dtype]


def test_a_bias_is_added_behind_the_factor_of_the_norm() -> None:
    """As a projection of normed rows has it, with a bias on queries, keys and values."""
    rows, weight, bias = random(3, 64), random(32, 64, seed=1), random(32, seed=2)
    squares = random(2, 3, seed=3).square() * 100
    output = poisoned(3, 32, dtype=torch.float32)
    scale = RowScale(squares, 64, 1e-5)
    skinny_linear(rows, weight, output, scratch_for(SMALL, 32, 3), SMALL, bias=bias, scale=scale)
    factor = (squares.double().cpu().sum(0) / 64 + 1e-5).rsqrt()
    expected = factor[:, None] * (rows.double().cpu() @ weight.double().cpu().T) + bias.double().cpu()
    assert error(output, expected) < TOLERANCES[torch.float32]


def test_a_product_does_not_depend_on_its_batch() -> None:
    """Whatever shares the tile with a token: bit for bit, on a GPU. The interpreter's dot is numpy's, which differs."""
    tokens, weight = random(70, 64), random(32, 64, seed=1)
    whole = poisoned(70, 32, dtype=torch.float32)
    skinny_linear(tokens, weight, whole, scratch_for(SMALL, 32, 70), SMALL)
    for count in (1, 17, 40):
        part = poisoned(count, 32, dtype=torch.float32)
        skinny_linear(tokens[:count], weight, part, scratch_for(SMALL, 32, 70), SMALL)
        assert error(part, whole[:count]) < TOLERANCES[torch.float32]
        if ON_GPU:
            assert torch.equal(part, whole[:count])


@pytest.mark.parametrize(("num_rows", "size"), [(6144, 4096), (28672, 4096), (4096, 14336), (49152, 576), (576, 1536)])
@pytest.mark.parametrize("num_tokens", [1, 64, 128])
def test_tilings_cover_a_weight_and_fit_into_shared_memory(num_rows: int, size: int, num_tokens: int) -> None:
    """Splits are whole turns and cover all columns; turns in flight fit into a processor of a Hopper and of an older GPU."""
    tiling = LinearTiling.choose(num_rows, size, num_tokens)
    assert tiling.split_size(size) * tiling.splits >= size
    assert tiling.split_size(size) * (tiling.splits - 1) < size
    assert tiling.split_size(size) % tiling.block_k == 0
    for shared_bytes in (227 * 1024, 99 * 1024):
        tiling = tiling.fitted(num_tokens, 2, shared_bytes)
        turn_bytes = (tiling.block_n + tiling.block_m(num_tokens)) * tiling.block_k * 2
        num_stages = tiling.num_stages(num_tokens, 2, shared_bytes)
        assert num_stages >= 2
        assert num_stages * turn_bytes <= max(shared_bytes // tiling.sharers, 2 * turn_bytes)
        assert 2 * turn_bytes < shared_bytes


@pytest.mark.parametrize(
    ("epilogue", "has_output", "residual", "message"),
    [
        (Epilogue.PLAIN, False, None, "PLAIN has no output"),
        (Epilogue.RESIDUAL, True, None, "RESIDUAL has an output"),
        (Epilogue.RESIDUAL, False, None, "RESIDUAL has no residual"),
        (Epilogue.PLAIN, True, "bare", "PLAIN has a residual"),
        (Epilogue.SILU, True, None, "SILU was asked of a tiling without a gate"),
        (Epilogue.RESIDUAL_NORM, True, "bare", "RESIDUAL_NORM needs the norm's weight"),
    ],
)
def test_an_epilogue_without_its_parts_is_refused(
    epilogue: Epilogue, has_output: bool, residual: str | None, message: str
) -> None:
    """Before anything is launched."""
    tensor = random(2, 16)
    with pytest.raises(ValueError, match=message):
        skinny_linear(
            tensor,
            random(16, 16),
            tensor if has_output else None,
            scratch_for(SMALL, 16, 2),
            SMALL,
            epilogue,
            residual=Residual(tensor) if residual else None,
        )


def test_turns_are_cut_until_two_fit() -> None:
    """A gate's two tiles in float32 beside 128 tokens, on a GPU with 99 KiB a program; splits stay as they are."""
    tiling = LinearTiling.choose(28672, 4096, 128, is_gated=True)
    fitted = tiling.fitted(128, 4, 99 * 1024)
    assert fitted.block_k == 32
    assert fitted.split_size(4096) == tiling.split_size(4096)
    assert tiling.fitted(128, 2, 227 * 1024) == tiling
