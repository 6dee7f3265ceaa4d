"""Projections in float8 (e4m3): weights quantized by output at load, rows of tokens by their own highest value in each step.

What is multiplied is float8 on both sides, summed up in float32 and scaled: on Ada, Hopper and later GPUs by their tensor cores,
on a CPU to the same effect, slowly. Each row has a scale of its own, so no token depends on what else is in a step.

Shapes: T tokens, in and out dims of a projection.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.models.attention import FLOAT8, FLOAT8_MAX

ALIGNMENT = 16  # what in and out have to be multiples of, for the tensor cores
_ROWS_AT_ONCE = 4096  # of a weight, so that its float32 copy stays small


@dataclass(frozen=True, slots=True)
class Float8Linear:
    """A projection."""

    weight: Tensor  # [out, in] float8
    scales: Tensor  # [1, out] float32, what each row of the weight was divided by
    bias: Tensor | None  # [out]

    @classmethod
    def make(cls, weight: Tensor, bias: Tensor | None) -> "Float8Linear":
        """Quantize a weight [out, in]."""
        parts = [quantize_rows(part) for part in torch.split(weight, _ROWS_AT_ONCE)]
        scales = torch.cat([scales for _, scales in parts]).view(1, -1)
        return cls(torch.cat([kept.view(torch.uint8) for kept, _ in parts]).view(FLOAT8), scales, bias)

    def __call__(self, rows: Tensor) -> Tensor:
        """Apply it to [T, in]; returns [T, out]."""
        output = rows.new_empty((rows.shape[0], self.weight.shape[0]))
        if rows.shape[0]:
            self.multiply(*quantize_rows(rows), output)
        return output

    def multiply(self, rows: Tensor, scales: Tensor, output: Tensor) -> None:
        """Write the product of rows [T, in] float8 and their scales [T, 1] float32 into `output` [T, out]."""
        torch._scaled_mm(  # noqa: SLF001  torch's only float8 product that writes where it is told
            rows,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.scales,
            bias=self.bias,
            out_dtype=output.dtype,
            out=output,
        )


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [T, in] as float8, and what each was divided by, [T, 1] float32."""
    highest = rows.abs().amax(dim=1, keepdim=True).float()
    highest = torch.where(highest == 0, FLOAT8_MAX, highest)
    scaled = rows.float() * (torch.full_like(highest, FLOAT8_MAX) / highest)  # truly divided, as the kernel does it
    return scaled.clamp_(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8), highest / FLOAT8_MAX
