"""The native decoder's operations in kernels of our own, in buffers of fixed place: what a CUDA graph captures.

    plan      work lists of the step's attention
    begin     embedding rows, norm
    a layer:  qkv | rotate and cache | decode (and chunk) attention | output + norm | gate and up + SiLU | down + norm
              or, for the last two, router | experts | norm
    finish    norm of the selected tokens, head

Nothing is read on the host and nothing depends on a value: what is launched follows from the numbers of tokens, rows and samples
of the inputs, which are those of a graph's bucket, and from which kinds of rows there may be. A token of a negative seat is
padding: it is computed along, writes into no page, and no other token sees it.

What a projection leaves of a norm for the one behind it to do is told in `projections_gpu`.

Shapes: T tokens, s samples, D hidden, I intermediate, N query heads, K KV heads, H head dim, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits, StepRows
from pipelines.kernels.attention_shape import AttentionShape
from pipelines.kernels.elementwise import add_rms_norm
from pipelines.kernels.launch import can_launch_dependents
from pipelines.kernels.paged_attention import PagedKernels, StepKinds
from pipelines.kernels.rope import HeadNorms, TokenPlaces, rotate_and_cache, rotation_table
from pipelines.models.attention import LayerKv
from pipelines.models.experts_gpu import ExpertKernels
from pipelines.models.native_config import NativeConfig
from pipelines.models.native_decoder import Decoder, DecoderLayer, Experts, GatedMlp, HeadNormWeights, run_decoder
from pipelines.models.ops_cpu import KernelLinear, PlainLinear
from pipelines.models.projections_gpu import GpuOptions, Projections

if TYPE_CHECKING:
    from pipelines.kernels.linear import RowScale

_STRETCH = 4  # layers


@dataclass(frozen=True, slots=True)
class GpuInputs:
    """One step on the device, at addresses that stay; padded to a bucket in each of T, rows and s."""

    token_ids: Tensor  # [T] int64
    places: TokenPlaces  # of T tokens
    rows: StepRows  # at most as many as the limits say; those of no token are padding
    sample_tokens: Tensor  # [s] int32, each below T; padding may name any
    kinds: StepKinds
    end_stretch: Callable[[], object] | None = None  # called every few layers; None: all is launched in one graph


class GpuDecoder:
    """One model on one device with all buffers of its steps; used by one stream."""

    def __init__(
        self,
        config: NativeConfig,
        decoder: Decoder[KernelLinear],
        cache: Sequence[LayerKv],
        limits: StepLimits,
        options: GpuOptions | None = None,
    ) -> None:
        options = options or GpuOptions()
        context = limits.max_context
        device = decoder.embedding.device
        self.config = config
        self.decoder = decoder
        self.cache = cache
        self.dependent = options.dependent and can_launch_dependents(device)
        self.projections = Projections(config, decoder, limits, options, dependent=self.dependent)
        self.buffers = _Buffers(config, limits, decoder.embedding)
        self.experts = ExpertKernels(config, limits, decoder.embedding, dependent=self.dependent)
        self.attention = PagedKernels(
            _attention_shapes(config, cache, decoder.embedding.dtype, context),
            limits,
            device,
            dependent=self.dependent,
        )
        frequencies = torch.tensor(config.rotation.frequencies, dtype=torch.float32, device=device)
        table = rotation_table(frequencies, context, config.rotation.scaling)  # [C, H] float32
        still = table if all(config.rotates) else rotation_table(torch.zeros_like(frequencies), context)
        self.tables = [table if rotates else still for rotates in config.rotates]

    def run(self, inputs: GpuInputs) -> Tensor:
        """Launch one step; returns the scores [s, V], which the next step overwrites."""
        num_samples = inputs.sample_tokens.shape[0]
        self.attention.plan(inputs.rows, splits=inputs.kinds.has_splits)
        return run_decoder(self.decoder, _GpuStep(self, inputs))[:num_samples]


def _attention_shapes(
    config: NativeConfig, cache: Sequence[LayerKv], dtype: torch.dtype, context: int
) -> list[tuple[AttentionShape, int | None]]:
    shape = AttentionShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        key_dim=config.head_dim,
        value_dim=config.head_dim,
        page_size=cache[0].keys.shape[1],
        scale=config.head_dim**-0.5,
        dtype=dtype,
    )
    return [(shape, None if window is None or window >= context else window) for window in config.windows]


class _Buffers:
    """What a step computes in; tensors that are never needed at once share memory."""

    def __init__(self, config: NativeConfig, limits: StepLimits, like: Tensor) -> None:
        heads = config.num_heads * config.head_dim
        samples = max(1, limits.max_rows)
        self._wide = like.new_zeros(
            limits.max_tokens * max(config.num_qkv_heads * config.head_dim, 2 * config.intermediate_size)
        )
        self._narrow = like.new_zeros(limits.max_tokens * max(heads, config.intermediate_size))
        self.hidden = like.new_zeros((limits.max_tokens, config.hidden_size))
        self.normed = torch.zeros_like(self.hidden)
        self.selected_hidden = like.new_zeros((samples, config.hidden_size))
        self.selected = like.new_zeros((samples, max(heads, config.hidden_size)))
        self.scores = like.new_zeros((samples, config.vocab_size))
        self.first_token = torch.zeros(1, dtype=torch.int32, device=like.device)

    def wide(self, rows: int, columns: int) -> Tensor:
        """Fused projections, [rows, columns]."""
        return self._wide[: rows * columns].view(rows, columns)

    def narrow(self, rows: int, columns: int) -> Tensor:
        """Attention and gated projection, [rows, columns]."""
        return self._narrow[: rows * columns].view(rows, columns)


class _GpuStep:
    """See `StepOps`; lives while one step is launched."""

    def __init__(self, owner: GpuDecoder, inputs: GpuInputs) -> None:
        num_tokens = inputs.token_ids.shape[0]
        buffers = owner.buffers
        self._owner = owner
        self._config = owner.config
        self._inputs = inputs
        self._samples = inputs.sample_tokens if inputs.sample_tokens.shape[0] else buffers.first_token
        self._hidden = buffers.hidden[:num_tokens]  # [T, D]
        self._normed = buffers.normed[:num_tokens]  # [T, D]
        self._scale: RowScale | None = None  # what `_normed` lacks yet
        self._is_selected = False

    def begin(self, embedding: Tensor, norm: Tensor) -> None:
        """See `StepOps`."""
        torch.index_select(embedding, 0, self._inputs.token_ids, out=self._hidden)
        add_rms_norm(self._hidden, None, norm, self._config.epsilon, self._normed, dependent=self._owner.dependent)

    def attend(self, number: int, layer: DecoderLayer[KernelLinear]) -> Tensor:
        """See `StepOps`."""
        config, owner, inputs = self._config, self._owner, self._inputs
        if inputs.end_stretch is not None and number and number % _STRETCH == 0:
            inputs.end_stretch()
        num_tokens = self._hidden.shape[0]
        projected = owner.buffers.wide(num_tokens, config.num_qkv_heads * config.head_dim)
        owner.projections.plain(self._normed, layer.qkv, self._scale, projected)
        query = projected.view(num_tokens, -1, config.head_dim)[:, : config.num_heads]  # [T, N, H], rotated in place
        kv = owner.cache[number]
        rotate_and_cache(
            projected,
            owner.tables[number],
            inputs.places,
            kv.keys,
            kv.values,
            query,
            self._head_norms(layer.head_norms),
            scales=kv.scales.pair if kv.scales else None,
            dependent=owner.dependent,
        )
        attended = owner.buffers.narrow(num_tokens, config.num_heads * config.head_dim)
        owner.attention.attend(
            number,
            query,
            kv.keys,
            kv.values,
            inputs.places.block_tables,
            attended.view(num_tokens, config.num_heads, config.head_dim),
            inputs.kinds,
            kv.scales.pair if kv.scales else None,
        )
        return attended

    def select(self, attended: Tensor) -> Tensor:
        """See `StepOps`: here where there are chunks, of whose tokens few are wanted; else in `finish`, with the norm."""
        if not self._inputs.kinds.has_chunks:
            return attended
        buffers = self._owner.buffers
        num_samples = self._samples.shape[0]
        hidden = buffers.selected_hidden[:num_samples]
        rows = buffers.selected.view(-1)[: num_samples * attended.shape[1]].view(num_samples, -1)
        torch.index_select(self._hidden, 0, self._samples, out=hidden)
        torch.index_select(attended, 0, self._samples, out=rows)
        self._hidden, self._normed = hidden, buffers.normed[:num_samples]
        self._is_selected = True
        return rows

    def add(self, rows: Tensor, linear: KernelLinear, norm: Tensor) -> None:
        """See `StepOps`."""
        self._scale = self._owner.projections.add(rows, linear, self._hidden, norm, self._normed)

    def feed(self, mlp: GatedMlp[KernelLinear] | Experts, norm: Tensor) -> None:
        """See `StepOps`."""
        match mlp:
            case GatedMlp(gate_up, down):
                self.add(self._gate(gate_up), down, norm)
            case Experts():
                self._owner.projections.add_and_norm(self._ask(mlp), self._hidden, norm, self._normed)

    def _gate(self, linear: KernelLinear) -> Tensor:
        """Return the gated projection of `normed`, [T, I]."""
        size, rows = self._config.intermediate_size, self._normed.shape[0]
        gated = self._owner.buffers.narrow(rows, size)
        wide = self._owner.buffers.wide(rows, 2 * size)
        self._owner.projections.gate(self._normed, linear, self._scale, wide, gated)
        return gated

    def finish(self, mlp: GatedMlp[KernelLinear] | Experts, norm: Tensor, head: KernelLinear) -> Tensor:
        """See `StepOps`."""
        buffers, projections = self._owner.buffers, self._owner.projections
        scores = buffers.scores[: self._samples.shape[0]]
        if self._is_selected:
            self.feed(mlp, norm)
            projections.plain(self._normed, head, self._scale, scores)
            return scores
        match mlp:
            case GatedMlp(gate_up, down):
                left = projections.leave(self._gate(gate_up), down, self._hidden, self._normed)
            case Experts():
                left = self._ask(mlp)
        final = buffers.selected_hidden[: self._samples.shape[0]]
        projections.add_and_norm(left, self._hidden, norm, final, self._samples)
        projections.plain(final, head, None, scores)
        return scores

    def _ask(self, experts: Experts) -> Tensor:
        """Return what the experts say of `normed`, [T, D]; with experts in a model, it lacks no factor."""
        kernels, num_tokens = self._owner.experts, self._normed.shape[0]
        scores = kernels.scores(num_tokens)
        self._owner.projections.plain(self._normed, PlainLinear(experts.router, None), None, scores)
        return kernels.run(self._normed, scores, experts)

    def _head_norms(self, weights: HeadNormWeights | None) -> HeadNorms | None:
        return None if weights is None else HeadNorms(weights.query, weights.key, self._config.epsilon)
