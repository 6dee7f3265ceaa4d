"""What a model's attention layers are and whether ours serves them, found out by running a short text both ways."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.counted import counted
from pipelines.errors import ModelError
from pipelines.models.attention import AttentionInputs, LayerKv, LayerSpec, PagedAttention, plan_attention
from pipelines.models.attention_port import LayerCall, MaskFunction

NUM_PROBE_TOKENS = 12

# Two sequences side by side, so that a model which mixes the tokens of a step in any other way than by attention shows it:
# (first, end) of each sequence's positions in each step. Whole prefills, a later chunk beside a decode, decodes.
_STEPS = (((0, 7), (0, 5)), ((7, 10), (5, 6)), ((10, 11), (6, 7)), ((11, 12), (7, 8)))
_BLOCK_SIZE = 4
_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the scores' spread
_TOLERANCE_16_BIT = 0.1

Forward = Callable[[Tensor, Tensor, Tensor, PagedAttention, Sequence[LayerKv]], Tensor]


def layer_specs(calls: Sequence[LayerCall], num_layers: int, context: int) -> list[LayerSpec]:
    """Return the layers' shapes as their calls showed them.

    Raises:
        ModelError: not every layer called exactly once, or one attends to other positions than a window before it.
    """
    if len(calls) != num_layers or len({id(call.module) for call in calls}) != num_layers:
        modules = len({id(call.module) for call in calls})
        raise ModelError(
            f"found {counted(len(calls), 'call')} of transformers' attention interface from {counted(modules, 'module')}, "
            f"expected one from each of its {counted(num_layers, 'layer')} (recurrent layers and attention of a model's own "
            "are not supported)"
        )
    context = max(context, NUM_PROBE_TOKENS)  # the probe itself may be longer
    windows: dict[int, int | None] = {}
    specs = []
    for call in calls:
        window = call.sliding_window
        if call.mask is not None:
            key = id(call.mask)
            window = windows[key] if key in windows else windows.setdefault(key, read_window(call.mask, context))
        if window is not None and window >= context:
            window = None
        specs.append(LayerSpec(call.num_heads, call.num_kv_heads, call.key_dim, call.value_dim, window))
    return specs


def read_window(mask: MaskFunction, context: int) -> int | None:
    """Return how many positions a mask lets the last one attend to; None = all.

    Raises:
        ModelError: what it hides is not all but a window before each position.
    """
    keys = torch.arange(context)
    zero = torch.zeros((), dtype=torch.int64)

    def visible(query: int) -> Tensor:
        return mask(zero, zero, torch.tensor(query), keys).expand(context)

    window = int(visible(context - 1).sum())
    queries = {0, 1, window - 1, window, window + 1, 2 * window, context // 2, context - 2, context - 1}
    for query in sorted(query for query in queries if 0 <= query < context):
        if not torch.equal(visible(query), (keys <= query) & (keys > query - window)):
            raise ModelError(
                f"at position {query} it attends to {int(visible(query).sum())} positions, expected all {query + 1} up to "
                f"there, or the last ones of a sliding window (attention in chunks is not supported)"
            )
    return None if window == context else window


@dataclass(frozen=True, slots=True)
class Probe:
    """The probe text, two sequences of which one is the start of the other backwards."""

    token_ids: Tensor  # [2, NUM_PROBE_TOKENS] int64

    @classmethod
    def make(cls, vocab_size: int, device: torch.device) -> "Probe":
        """Spread a few tokens over the vocabulary."""
        spread = (torch.arange(1, NUM_PROBE_TOKENS + 1, device=device) * 7919) % vocab_size
        return cls(torch.stack((spread, spread.flip(0))))

    def paged_scores(self, forward: Forward, specs: Sequence[LayerSpec], dtype: torch.dtype) -> list[Tensor]:
        """Run the steps through our attention; return the last scores of both sequences [2, V] after each."""
        device = self.token_ids.device
        cache = [_small_cache(spec, dtype, device) for spec in specs]
        return [self._step(forward, cache, rows) for rows in _STEPS]

    def _step(self, forward: Forward, cache: Sequence[LayerKv], ranges: Sequence[tuple[int, int]]) -> Tensor:
        # As in an engine's step: decodes first and by length, then chunks.
        order = sorted(range(2), key=lambda row: (ranges[row][1] - ranges[row][0] > 1, ranges[row][1]))
        ordered = [ranges[row] for row in order]
        counts = [end - first for first, end in ordered]
        device = self.token_ids.device
        positions = torch.cat([torch.arange(*span, device=device) for span in ordered])
        rows = torch.tensor(order, device=device)
        inputs = AttentionInputs(
            plan=plan_attention(counts, [end for _, end in ordered]),
            token_tables=rows.repeat_interleave(torch.tensor(counts, device=device)),
            row_tables=rows,
            block_tables=torch.arange(2 * _blocks_each(), dtype=torch.int32, device=device).flip(0).view(2, -1),
            positions=positions,
            context_lens=torch.tensor([end for _, end in ordered], device=device),
            block_size=_BLOCK_SIZE,
        )
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        token_ids = self.token_ids[inputs.token_tables, positions]
        scores = forward(token_ids, positions, last, PagedAttention(inputs), cache)
        return scores[rows.argsort()]

    @staticmethod
    def compare(reference: Tensor, paged: Sequence[Tensor], dtype: torch.dtype) -> None:
        """Compare with the model's own scores [2, NUM_PROBE_TOKENS, V].

        Raises:
            ModelError: they disagree.
        """
        tolerance = _TOLERANCES.get(dtype, _TOLERANCE_16_BIT)
        for ranges, scores in zip(_STEPS, paged, strict=True):
            expected = torch.stack([reference[row, end - 1] for row, (_, end) in enumerate(ranges)]).float()
            spread = float(expected.max() - expected.min())
            error = float((scores.float() - expected).abs().max())
            if not error <= tolerance * spread:  # NaN too
                raise ModelError(
                    f"its scores through this engine's attention differ by {error:.3g} from its own, whose spread is "
                    f"{spread:.3g} (up to {tolerance:g} of it expected): it computes more than attention over its tokens"
                )


def _blocks_each() -> int:
    return -(-NUM_PROBE_TOKENS // _BLOCK_SIZE)


def _small_cache(spec: LayerSpec, dtype: torch.dtype, device: torch.device) -> LayerKv:
    shape = (2 * _blocks_each(), _BLOCK_SIZE, spec.num_kv_heads)
    return LayerKv(
        keys=torch.full((*shape, spec.key_dim), float("nan"), dtype=dtype, device=device),
        values=torch.full((*shape, spec.value_dim), float("nan"), dtype=dtype, device=device),
    )
