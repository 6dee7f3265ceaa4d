"""Experts on a GPU: the kernels of `pipelines.kernels.experts` with their buffers, for a model's layers."""

from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits
from pipelines.kernels.experts import ExpertScratch, run_experts
from pipelines.models.native_config import NativeConfig
from pipelines.models.native_decoder import Experts


class ExpertKernels:
    """One for all layers of a model, used by one stream; of a model without experts it holds next to nothing."""

    def __init__(self, config: NativeConfig, limits: StepLimits, like: Tensor, *, dependent: bool) -> None:
        own = config.experts
        max_tokens = limits.max_tokens if own.layers else 0
        self._config = own
        self._dependent = dependent
        self._scores = like.new_zeros((max_tokens, own.num_experts))
        self._output = like.new_zeros((max_tokens, config.hidden_size))
        self._scratch = ExpertScratch.allocate(
            max_tokens, own.num_experts, own.num_chosen, config.hidden_size, own.intermediate_size, like
        )

    def scores(self, num_tokens: int) -> Tensor:
        """Where the router's scores go, [T, E]."""
        return self._scores[:num_tokens]

    def run(self, rows: Tensor, scores: Tensor, experts: Experts) -> Tensor:
        """Return what the chosen experts say of each row [T, D], by their shares; the next call overwrites it."""
        output = self._output[: rows.shape[0]]
        run_experts(
            rows,
            scores,
            experts.gate_up,
            experts.down,
            output,
            self._scratch,
            num_chosen=self._config.num_chosen,
            is_normalised=self._config.is_normalised,
            dependent=self._dependent,
        )
        return output
