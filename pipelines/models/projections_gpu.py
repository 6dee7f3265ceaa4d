"""Projections on a GPU: few tokens take Triton's, which read the weights once and do the norms on the way; many take cuBLAS.

The projection in front of a norm adds to the residual and leaves `residual * norm weight` and sums of squares, the one behind
applies the factor made of them. With cuBLAS norms and gates are kernels in between, and in models with experts norms are. One
more kernel quantizes the rows of a float8 projection; the factor of a norm that they lack is one of their result all the same.

Shapes: M tokens, D hidden, I intermediate, K and Nout of a weight.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits
from pipelines.kernels.elementwise import add_rms_norm, silu_and_mul
from pipelines.kernels.float8 import Float8Rows
from pipelines.kernels.linear import Epilogue, Float8Scales, LinearScratch, Residual, RowScale, skinny_linear
from pipelines.kernels.linear_tiling import LinearTiling
from pipelines.models.float8_linear import Float8Linear
from pipelines.models.native_config import NativeConfig
from pipelines.models.native_decoder import Decoder, Experts, GatedMlp
from pipelines.models.ops_cpu import KernelLinear, PlainLinear


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What is to be compared on a GPU."""

    max_skinny_tokens: int = 64  # up to which Triton's projections serve; 0 = cuBLAS alone
    fuses_norms: bool = True  # into those projections
    dependent: bool = True  # dependent launches, where the GPU has them


class Projections:
    """Projections by Triton or by cuBLAS."""

    def __init__(
        self,
        config: NativeConfig,
        decoder: Decoder[KernelLinear],
        limits: StepLimits,
        options: GpuOptions,
        *,
        dependent: bool,
    ) -> None:
        most = min(options.max_skinny_tokens, limits.max_tokens)
        device = decoder.embedding.device
        shapes = set(_shapes(decoder))
        cuts = [(rows, LinearTiling.choose(rows, size, most, is_gated=gated)) for rows, size, gated in shapes]
        self.max_skinny_tokens = most
        self._fuses_norms = options.fuses_norms and not config.experts.layers
        self._dependent = dependent
        self._epsilon = config.epsilon
        self._scratch = LinearScratch.allocate(
            max(cut.num_sums(rows, most) for rows, cut in cuts),
            max(cut.num_tiles(rows, most) for rows, cut in cuts),
            device,
        )
        num_tiles = max(cut.num_row_tiles(rows) for rows, cut in cuts if rows == config.hidden_size)
        self._float8 = Float8Rows(limits.max_tokens, _widest_float8(decoder), device, dependent=dependent)
        self._squares = torch.zeros((num_tiles, max(1, most)), dtype=torch.float32, device=device)

    def plain(self, rows: Tensor, linear: KernelLinear, scale: RowScale | None, output: Tensor) -> None:
        """Write a projection of [M, K] into `output` [M, Nout]."""
        if self._is_skinny(rows):
            self._skinny(rows, linear, output, Epilogue.PLAIN, scale=scale)
        else:
            self._multiply(rows, linear, output)

    def gate(self, rows: Tensor, linear: KernelLinear, scale: RowScale | None, wide: Tensor, output: Tensor) -> None:
        """Write a gated projection of [M, D] into `output` [M, I]; `wide` [M, 2I] may be used."""
        if self._is_skinny(rows):
            self._skinny(rows, linear, output, Epilogue.SILU, scale=scale)
        else:
            self._multiply(rows, linear, wide)
            silu_and_mul(wide, output, dependent=self._dependent)

    def add(self, rows: Tensor, linear: KernelLinear, hidden: Tensor, norm: Tensor, output: Tensor) -> RowScale | None:
        """Add a projection of [M, K] to `hidden` [M, D] and write the sum's norm into `output` [M, D].

        Returns:
            the factor that `output` lacks yet, for the projection behind.
        """
        if self._is_skinny(rows) and self._fuses_norms:
            tiles = self._tiling(rows, linear).num_row_tiles(linear.weight.shape[0])
            squares = self._squares[:tiles]
            residual = Residual(hidden, norm, squares)
            self._skinny(rows, linear, output, Epilogue.RESIDUAL_NORM, residual=residual)
            return RowScale(squares, hidden.shape[1], self._epsilon)
        self.add_and_norm(self.leave(rows, linear, hidden, output), hidden, norm, output)
        return None

    def leave(self, rows: Tensor, linear: KernelLinear, hidden: Tensor, spare: Tensor) -> Tensor | None:
        """Add a projection of [M, K] to `hidden` [M, D], or leave it in `spare` [M, D], which is returned then."""
        if self._is_skinny(rows):
            self._skinny(rows, linear, None, Epilogue.RESIDUAL, residual=Residual(hidden))
            return None
        self._multiply(rows, linear, spare)
        return spare

    def add_and_norm(
        self, left: Tensor | None, hidden: Tensor, norm: Tensor, output: Tensor, selected: Tensor | None = None
    ) -> None:
        """Add to `hidden` what `leave` left, and write the norm of the sum, of all tokens or of those selected."""
        summand, residual = (hidden, None) if left is None else (left, hidden)
        add_rms_norm(summand, residual, norm, self._epsilon, output, selected, dependent=self._dependent)

    def _is_skinny(self, rows: Tensor) -> bool:
        return rows.shape[0] <= self.max_skinny_tokens

    def _multiply(self, rows: Tensor, linear: KernelLinear, output: Tensor) -> None:
        match linear:
            case PlainLinear(weight, bias):
                if bias is None:
                    torch.mm(rows, weight.t(), out=output)
                else:
                    torch.addmm(bias, rows, weight.t(), out=output)
            case Float8Linear():
                linear.multiply(*self._float8.quantize(rows), output)

    @staticmethod
    def _tiling(rows: Tensor, linear: KernelLinear, *, is_gated: bool = False) -> LinearTiling:
        num_rows, size = linear.weight.shape
        return LinearTiling.choose(num_rows, size, rows.shape[0], is_gated=is_gated)

    def _skinny(
        self,
        rows: Tensor,
        linear: KernelLinear,
        output: Tensor | None,
        epilogue: Epilogue,
        *,
        scale: RowScale | None = None,
        residual: Residual | None = None,
    ) -> None:
        tiling = self._tiling(rows, linear, is_gated=epilogue is Epilogue.SILU)
        float8 = None
        if isinstance(linear, Float8Linear):
            rows, scales = self._float8.quantize(rows)
            float8 = Float8Scales(scales, linear.scales)
        skinny_linear(
            rows,
            linear.weight,
            output,
            self._scratch,
            tiling,
            epilogue,
            float8=float8,
            bias=linear.bias,
            scale=scale,
            residual=residual,
            dependent=self._dependent,
        )


def _shapes(decoder: Decoder[KernelLinear]) -> Iterator[tuple[int, int, bool]]:
    """Yield rows, columns and whether it is a gate's, of each weight."""
    for layer in decoder.layers:
        yield *layer.qkv.weight.shape, False
        yield *layer.output.weight.shape, False
        match layer.mlp:
            case GatedMlp(gate_up, down):
                yield *gate_up.weight.shape, True
                yield *down.weight.shape, False
            case Experts(router):
                yield *router.shape, False
    yield *decoder.head.weight.shape, False


def _widest_float8(decoder: Decoder[KernelLinear]) -> int:
    """Return the most dims that a float8 projection reads; 0: there is none."""
    layer = decoder.layers[0]
    linears = [layer.qkv, layer.output]
    if isinstance(layer.mlp, GatedMlp):
        linears += [layer.mlp.gate_up, layer.mlp.down]
    return max((linear.weight.shape[1] for linear in linears if isinstance(linear, Float8Linear)), default=0)
