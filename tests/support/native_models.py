"""Small models of each native family, and a loop that drives one over a paged cache, by torch or by kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tiny_models import TINY
from torch import Tensor

from pipelines.models.attention import (
    FLOAT8,
    AttentionInputs,
    KvScales,
    LayerKv,
    LayerSpec,
    PagedAttention,
    plan_attention,
)
from pipelines.models.native import NativeModel
from pipelines.models.native_decoder import DecoderLayer, GatedMlp, LinearT

_TWO_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama, tied": lambda: transformers.LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama, all biases": lambda: transformers.LlamaConfig(**TINY, attention_bias=True, mlp_bias=True),
    "llama, every head its own keys": lambda: transformers.LlamaConfig(**TINY | {"num_key_value_heads": 6}),
    "llama, its scaling": lambda: transformers.LlamaConfig(**TINY, rope_parameters=_LLAMA3),
    "llama, linear scaling": lambda: transformers.LlamaConfig(**TINY, rope_parameters=_LINEAR),
    "mistral, window": lambda: transformers.MistralConfig(**TINY, sliding_window=7),
    "mistral, wide heads": lambda: transformers.MistralConfig(**TINY, sliding_window=None, head_dim=16),
    "ministral, two windows": lambda: transformers.MinistralConfig(
        **TINY, head_dim=8, sliding_window=7, layer_types=_TWO_KINDS
    ),
    "qwen2": lambda: transformers.Qwen2Config(**TINY),
    "qwen2, window above": lambda: transformers.Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen2, yarn": lambda: transformers.Qwen2Config(**TINY, rope_parameters=_YARN),
    "qwen3": lambda: transformers.Qwen3Config(**TINY, head_dim=16, tie_word_embeddings=True),
    "qwen3, bias": lambda: transformers.Qwen3Config(**TINY, head_dim=16, attention_bias=True),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**TINY, **_EXPERTS, head_dim=16, attention_bias=True),
    "qwen3_moe, two layers of three": lambda: transformers.Qwen3MoeConfig(
        **TINY, **_EXPERTS, norm_topk_prob=True, mlp_only_layers=[2]
    ),
    "qwen3_moe, every second layer": lambda: transformers.Qwen3MoeConfig(
        **TINY, **_EXPERTS, norm_topk_prob=True, decoder_sparse_step=2, use_sliding_window=True, sliding_window=7
    ),
    "smollm3": lambda: transformers.SmolLM3Config(**TINY, no_rope_layer_interval=2),
}


def linears(layer: DecoderLayer[LinearT]) -> tuple[LinearT, ...]:
    """Return the projections of a layer; experts are none."""
    mlp = (layer.mlp.gate_up, layer.mlp.down) if isinstance(layer.mlp, GatedMlp) else ()
    return layer.qkv, layer.output, *mlp


@dataclass(frozen=True)
class DrivenStep:
    """A step in the device's order: decodes by context length, then chunks."""

    token_ids: list[int]  # [T]
    positions: list[int]  # [T]
    token_seats: list[int]  # [T]
    row_seats: list[int]  # [R]
    first_tokens: list[int]  # [R]
    num_tokens: list[int]  # [R]
    context_lens: list[int]  # [R]
    sample_tokens: list[int]  # [R] last token of each row that was given, in that order


def make_step(rows: Sequence[tuple[int, list[int], int]]) -> DrivenStep:
    """Make a step of rows (seat, new tokens, position of the first)."""
    order = sorted(range(len(rows)), key=lambda row: (len(rows[row][1]) > 1, rows[row][2] + len(rows[row][1])))
    ordered = [rows[row] for row in order]
    counts = [len(tokens) for _, tokens, _ in ordered]
    ends = [sum(counts[: row + 1]) for row in range(len(counts))]
    return DrivenStep(
        token_ids=[token for _, tokens, _ in ordered for token in tokens],
        positions=[start + at for _, tokens, start in ordered for at in range(len(tokens))],
        token_seats=[seat for seat, tokens, _ in ordered for _ in tokens],
        row_seats=[seat for seat, _, _ in ordered],
        first_tokens=[end - count for end, count in zip(ends, counts, strict=True)],
        num_tokens=counts,
        context_lens=[start + len(tokens) for _, tokens, start in ordered],
        sample_tokens=[ends[order.index(row)] - 1 for row in range(len(rows))],
    )


class Pages:
    """A paged cache, NaN where nothing was written, its pages scattered."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        dtype: torch.dtype,
        device: torch.device,
        num_seats: int,
        block_size: int = 4,
        scales: Sequence[KvScales] = (),  # of each layer, for pages of float8
    ) -> None:
        blocks_each = 128 // block_size
        self.block_size = block_size
        self.block_tables = (
            torch.randperm(num_seats * blocks_each, generator=torch.Generator().manual_seed(3))
            .view(num_seats, blocks_each)
            .to(device, torch.int32)
        )
        shape = (num_seats * blocks_each, block_size)
        kept = FLOAT8 if scales else dtype
        self.layers = [
            LayerKv(
                torch.full((*shape, spec.num_kv_heads, spec.key_dim), float("nan"), dtype=kept, device=device),
                torch.full((*shape, spec.num_kv_heads, spec.value_dim), float("nan"), dtype=kept, device=device),
                own,
            )
            for spec, own in zip(layers, scales or [None] * len(layers), strict=True)
        ]


def torch_scores(model: NativeModel, pages: Pages, step: DrivenStep) -> Tensor:
    """Run a step by `forward`; returns [R, V] in the order in which the rows were given."""
    device = model.device
    inputs = AttentionInputs(
        plan=plan_attention(step.num_tokens, step.context_lens),
        token_tables=torch.tensor(step.token_seats, device=device),
        row_tables=torch.tensor(step.row_seats, device=device),
        block_tables=pages.block_tables,
        positions=torch.tensor(step.positions, device=device),
        context_lens=torch.tensor(step.context_lens, device=device),
        block_size=pages.block_size,
    )
    with torch.inference_mode():
        return model.forward(
            torch.tensor(step.token_ids, device=device),
            inputs.positions,
            torch.tensor(step.sample_tokens, device=device),
            PagedAttention(inputs),
            pages.layers,
        )


def generate_greedily(
    run: Callable[[DrivenStep], Tensor], prompts: Sequence[list[int]], num_tokens: int, chunk: int
) -> list[list[int]]:
    """Run prompts side by side, those shorter decoding while longer ones are still read; return each one's tokens."""
    tokens = [list(prompt) for prompt in prompts]
    done = [0] * len(prompts)
    while running := [seat for seat, prompt in enumerate(prompts) if len(tokens[seat]) < len(prompt) + num_tokens]:
        rows = [(seat, tokens[seat][done[seat] : done[seat] + chunk], done[seat]) for seat in running]
        best = run(make_step(rows)).argmax(-1).tolist()
        for (seat, new, _), token in zip(rows, best, strict=True):
            done[seat] += len(new)
            if done[seat] == len(tokens[seat]):
                tokens[seat].append(token)
    return [own[len(prompt) :] for own, prompt in zip(tokens, prompts, strict=True)]
