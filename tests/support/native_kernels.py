"""Drives the native decoder by kernels, on a GPU or under Triton's interpreter, step by step beside the decoder by torch."""

from collections.abc import Sequence

import kernel_support as _  # noqa: F401  it chooses the interpreter, before anything imports Triton
import torch
from native_models import DrivenStep, Pages, make_step, torch_scores
from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits, StepRows
from pipelines.kernels.paged_attention import StepKinds
from pipelines.kernels.rope import TokenPlaces
from pipelines.models.attention import KvScales
from pipelines.models.native import NativeModel
from pipelines.models.ops_gpu import GpuDecoder, GpuInputs
from pipelines.models.projections_gpu import GpuOptions

# Chunks of two sequences, the first of one token; a decode beside later chunks; decodes alone, of three seats, then of two.
STEPS = (
    make_step([(0, [5, 9, 2, 7, 11, 3, 8], 0), (2, [4], 0)]),
    make_step([(2, [17], 1), (0, [1, 6], 7), (3, [21, 30, 31, 32, 33, 34, 35, 36, 37, 38], 0)]),
    make_step([(3, [40], 10), (0, [41], 9), (2, [42], 2)]),
    make_step([(2, [43], 3), (3, [44], 11)]),
)
LIMITS = StepLimits(max_rows=4, max_tokens=16, max_context=128)


class KernelDriver:
    """One model's decoder by kernels on pages of its own."""

    def __init__(
        self,
        model: NativeModel,
        options: GpuOptions,
        limits: StepLimits = LIMITS,
        num_seats: int = 4,
        scales: Sequence[KvScales] = (),
    ) -> None:
        self.pages = Pages(model.layers, model.dtype, model.device, num_seats, scales=scales)
        self.limits = limits
        self._device = model.device
        self.decoder = GpuDecoder(model.config, model.plain_decoder, self.pages.layers, limits, options)

    def inputs(self, step: DrivenStep, num_tokens: int | None = None) -> GpuInputs:
        """Make a step's inputs, padded to a bucket of `num_tokens` if that is given: tokens, rows and samples."""
        num_rows = len(step.num_tokens)
        bucket_rows = num_rows if num_tokens is None else min(num_tokens, self.limits.max_rows)
        num_tokens = num_tokens or len(step.token_ids)

        def padded(values: list[int], size: int, filler: int = 0) -> Tensor:
            return torch.tensor(values + [filler] * (size - len(values)), dtype=torch.int32, device=self._device)

        return GpuInputs(
            token_ids=padded(step.token_ids, num_tokens).long(),
            places=TokenPlaces(
                positions=padded(step.positions, num_tokens),
                seats=padded(step.token_seats, num_tokens, -1),
                block_tables=self.pages.block_tables,
            ),
            rows=StepRows(
                first_tokens=padded(step.first_tokens, bucket_rows),
                num_tokens=padded(step.num_tokens, bucket_rows),
                context_lens=padded(step.context_lens, bucket_rows),
                seats=padded(step.row_seats, bucket_rows),
            ),
            sample_tokens=padded(step.sample_tokens, bucket_rows),
            kinds=StepKinds(has_decodes=1 in step.num_tokens, has_chunks=max(step.num_tokens) > 1),
        )

    def scores(self, step: DrivenStep, num_tokens: int | None = None) -> Tensor:
        """Run a step; returns [R, V] in the order in which the rows were given."""
        return self.decoder.run(self.inputs(step, num_tokens))[: len(step.sample_tokens)].clone()


def compare(
    model: NativeModel, options: GpuOptions, num_tokens: int | None = None, scales: Sequence[KvScales] = ()
) -> tuple[float, float]:
    """Run `STEPS` both ways; return the largest difference of scores over their spread, and of what lies in the pages."""
    driver = KernelDriver(model, options, scales=scales)
    reference = Pages(model.layers, model.dtype, model.device, 4, scales=scales)
    worst = 0.0
    for step in STEPS:
        expected = torch_scores(model, reference, step).float()
        difference = (driver.scores(step, num_tokens).float() - expected).abs().max()
        worst = max(worst, float(difference / (expected.max() - expected.min())))
        if not difference.isfinite():
            worst = float("inf")
    pages = 0.0
    for ours, theirs in zip(driver.pages.layers, reference.layers, strict=True):
        pairs = ((ours.keys, theirs.keys), (ours.values, theirs.values))
        for own, other in ((own.float(), other.float()) for own, other in pairs):
            assert torch.equal(own.isnan(), other.isnan()), "something else was written into the pages"
            pages = max(pages, float((own - other).nan_to_num().abs().max() / other.nan_to_num().abs().max()))
    return worst, pages
