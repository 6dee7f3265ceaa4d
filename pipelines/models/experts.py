"""Experts in plain torch: each token goes through the few that its router chooses.

Tokens are sorted by expert, so that each expert is one small projection of its own tokens. How many those are is read on the
host, which a CUDA graph cannot do.
"""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from pipelines.models.native_config import ExpertsConfig
from pipelines.models.native_decoder import Experts


def run_experts(rows: Tensor, experts: Experts, config: ExpertsConfig) -> Tensor:
    """Return the shares of the chosen experts summed up, [T, D], of rows [T, D]."""
    shares, numbers = choose_experts(rows, experts.router, config)
    order = numbers.flatten().argsort(stable=True)  # [T * k] places among all choices, by expert
    own_rows = rows[order // config.num_chosen]
    counts = numbers.flatten().bincount(minlength=config.num_experts).tolist()
    outputs = rows.new_empty((order.shape[0], rows.shape[1]))
    first = 0
    for expert, count in enumerate(counts):
        if count:
            end = first + count
            gate, up = F.linear(own_rows[first:end], experts.gate_up[expert]).chunk(2, dim=-1)
            outputs[order[first:end]] = F.linear(F.silu(gate).mul_(up), experts.down[expert])
            first = end
    return (outputs.view(*numbers.shape, rows.shape[1]) * shares[:, :, None]).sum(dim=1)


def choose_experts(rows: Tensor, router: Tensor, config: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """Return each row's shares, in its own arithmetic, and the numbers of its experts: [T, k] each."""
    likelihoods = F.linear(rows, router).softmax(dim=-1, dtype=torch.float32)
    shares, numbers = likelihoods.topk(config.num_chosen, dim=-1)
    if config.is_normalised:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return shares.to(rows.dtype), numbers
