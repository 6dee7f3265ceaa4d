"""Attention over a paged KV cache by page gather and SDPA: the plain path, for any device.

A step's rows come decodes first, ordered by context length, then prefill chunks. Decodes of similar length share one padded
gather and one SDPA call; the query heads of one KV head are folded into the query dimension, so no key is repeated. A
prefill chunk is a call of its own (several where its mask would be large). All indices and masks are built once a step.

Shapes: T tokens of the step, R rows, N query heads, K KV heads, H head dim, P blocks, Z block size, L positions attended to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0  # the largest it has

_PADDED_TOKENS_FREE = 192  # padding that costs about as much as one more SDPA call; estimated from single calls
_MAX_MASK_ELEMENTS = 1 << 22  # of one SDPA call over a prefill chunk
_MAX_KEPT_ELEMENTS = 1 << 24  # of all masks of a step together; above it they are built anew in each layer


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The shape of one attention layer."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None  # positions a token attends to, itself included; None = all before it


@dataclass(frozen=True, slots=True)
class KvScales:
    """What keys and values of a layer are divided by to be kept as float8 (e4m3), and multiplied by when they are read."""

    keys: Tensor  # [K] float32, powers of two
    values: Tensor  # [K] float32, likewise
    dtype: torch.dtype  # of keys and values as they are computed

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Of keys and values, as kernels take them."""
        return self.keys, self.values

    def encode(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return them as bytes; what is too large becomes the largest there is."""
        return _to_float8(keys, self.keys), _to_float8(values, self.values)

    def decode(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return what bytes mean."""
        return self._from_float8(keys, self.keys), self._from_float8(values, self.values)

    def _from_float8(self, stored: Tensor, scales: Tensor) -> Tensor:
        return (stored.view(FLOAT8).float() * scales[:, None]).to(self.dtype)


def _to_float8(computed: Tensor, scales: Tensor) -> Tensor:
    scaled = (computed.float() / scales[:, None]).clamp(-FLOAT8_MAX, FLOAT8_MAX)
    return scaled.to(FLOAT8).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class LayerKv:
    """The pages of one layer."""

    keys: Tensor  # [P, Z, K, H]
    values: Tensor  # [P, Z, K, Hv]
    scales: KvScales | None = None  # where they are float8

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put the keys [T, K, H] and values [T, K, Hv] of new tokens at `slots` [T] int64 (block * Z + offset)."""
        if self.scales is not None:
            keys, values = self.scales.encode(keys, values)
        kept_keys, kept_values = self._pages
        kept_keys.view(-1, *self.keys.shape[2:]).index_copy_(0, slots, keys)
        kept_values.view(-1, *self.values.shape[2:]).index_copy_(0, slots, values)

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys [n, K, H] and values [n, K, Hv] at `slots` [n] int64."""
        kept_keys, kept_values = self._pages
        keys = kept_keys.view(-1, *self.keys.shape[2:]).index_select(0, slots)
        values = kept_values.view(-1, *self.values.shape[2:]).index_select(0, slots)
        return (keys, values) if self.scales is None else self.scales.decode(keys, values)

    def kept(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [T, K, H] and values [T, K, Hv] as they will be read once they are written."""
        return (keys, values) if self.scales is None else self.scales.decode(*self.scales.encode(keys, values))

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, [C] int64 each; all sources are read before a target is written."""
        for pages in self._pages:
            pages.index_copy_(0, targets, pages.index_select(0, sources))

    @property
    def _pages(self) -> tuple[Tensor, Tensor]:
        """What torch can index: it has no such operation for float8."""
        if self.scales is None:
            return self.keys, self.values
        return self.keys.view(torch.uint8), self.values.view(torch.uint8)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows `first` .. `end` - 1, which are the tokens of the same numbers."""

    first: int
    end: int
    shortest: int  # of their context lengths
    longest: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One row's new tokens."""

    row: int
    first_token: int
    num_tokens: int
    start: int  # position of its first token


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What the host knows of a step's attention."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]

    @property
    def num_decodes(self) -> int:
        """Decode rows, which are the step's first tokens."""
        return self.groups[-1].end if self.groups else 0


def plan_attention(num_tokens: Sequence[int], context_lens: Sequence[int]) -> AttentionPlan:
    """Plan a step from its rows' new tokens and context lengths, rows in the order given at the module's head."""
    num_decodes = next((row for row, count in enumerate(num_tokens) if count != 1), len(num_tokens))
    groups: list[DecodeGroup] = []
    useful = 0  # positions of the last group
    for row, length in enumerate(context_lens[:num_decodes]):
        useful += length
        padded = length * (row + 1 - groups[-1].first) - useful if groups else 0  # its last row is the longest
        if groups and padded - useful // 8 <= _PADDED_TOKENS_FREE:
            group = groups.pop()
            groups.append(DecodeGroup(group.first, row + 1, group.shortest, length))
        else:
            groups.append(DecodeGroup(row, row + 1, length, length))
            useful = length
    chunks = []
    token = num_decodes
    for row in range(num_decodes, len(num_tokens)):
        chunks.append(PrefillChunk(row, token, num_tokens[row], context_lens[row] - num_tokens[row]))
        token += num_tokens[row]
    return AttentionPlan(tuple(groups), tuple(chunks))


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """A step's tensors on the device."""

    plan: AttentionPlan
    token_tables: Tensor  # [T] int64, row of `block_tables` of each token
    row_tables: Tensor  # [R] int64, row of `block_tables` of each row
    block_tables: Tensor  # [seats, blocks] int32
    positions: Tensor  # [T] int64
    context_lens: Tensor  # [R] int64
    block_size: int


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """What a layer computed of the step's tokens."""

    queries: Tensor  # [T, N, H]
    keys: Tensor  # [T, K, H]
    values: Tensor  # [T, K, Hv]
    scale: float | None  # of the scores; None = 1 / sqrt(H)


class PagedAttention:
    """The attention of one step: built once, then called by each layer in turn. Lives in the compute stream."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self._inputs = inputs
        self._by_window: dict[int | None, _WindowPlan] = {}
        blocks = inputs.block_tables[inputs.token_tables, inputs.positions // inputs.block_size]
        self._write_slots = blocks * inputs.block_size + inputs.positions % inputs.block_size  # [T] int64

    def __call__(self, spec: LayerSpec, kv: LayerKv, layer: LayerTensors) -> Tensor:
        """Write the step's keys and values into the layer's pages, then attend; returns [T, N, Hv]."""
        kv.write(self._write_slots, layer.keys, layer.values)
        if kv.scales is not None:  # a chunk sees its own keys as later ones will: no cut into chunks changes a result
            keys, values = kv.kept(layer.keys, layer.values)
            layer = replace(layer, keys=keys, values=values)
        plan = self._by_window.get(spec.window)
        if plan is None:
            plan = self._by_window[spec.window] = _WindowPlan(self._inputs, spec.window, layer.queries)
        outputs = [_decode(spec, kv, layer, group) for group in plan.groups]
        outputs += [_prefill(spec, kv, layer, call) for call in plan.chunks]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


@dataclass(frozen=True, slots=True)
class _DecodeCall:
    """One SDPA call over decode rows."""

    first: int
    end: int
    slots: Tensor  # [B * L] int64
    mask: Tensor | None  # [B, 1, 1, L]; None: all rows are as long


class _WindowPlan:
    """Indices and masks of one step for the layers with one window."""

    def __init__(self, inputs: AttentionInputs, window: int | None, like: Tensor) -> None:
        self.groups = [_plan_group(inputs, group, window, like) for group in inputs.plan.groups]
        self.chunks = [call for chunk in inputs.plan.chunks for call in _plan_chunk(inputs, chunk, window)]
        if sum(call.num_mask_elements for call in self.chunks) <= _MAX_KEPT_ELEMENTS:
            for call in self.chunks:
                call.mask = call.make_mask(like)


def _plan_group(inputs: AttentionInputs, group: DecodeGroup, window: int | None, like: Tensor) -> _DecodeCall:
    context_lens = inputs.context_lens[group.first : group.end, None]  # [B, 1]
    tables = inputs.block_tables[inputs.row_tables[group.first : group.end]]  # [B, blocks]
    longest = group.longest if window is None else min(group.longest, window)
    positions = torch.arange(longest, device=context_lens.device)[None]  # [1, L]
    if window is not None:
        positions = positions + (context_lens - window).clamp(min=0)
    is_real = positions < context_lens  # [B, L]
    # Padding repeats the last position: a page never written may hold NaN, which a zero weight does not undo.
    positions = torch.minimum(positions, context_lens - 1)
    blocks = tables.gather(1, positions // inputs.block_size)
    slots = blocks * inputs.block_size + positions % inputs.block_size
    mask = None
    if group.shortest < longest:
        mask = torch.zeros(is_real.shape, dtype=like.dtype, device=like.device).masked_fill_(~is_real, float("-inf"))
        mask = mask[:, None, None]
    return _DecodeCall(group.first, group.end, slots.flatten(), mask)


def _decode(spec: LayerSpec, kv: LayerKv, layer: LayerTensors, call: _DecodeCall) -> Tensor:
    num_rows = call.end - call.first
    keys, values = kv.gather(call.slots)
    output = F.scaled_dot_product_attention(
        layer.queries[call.first : call.end].reshape(num_rows, spec.num_kv_heads, -1, spec.key_dim),  # [B, K, N/K, H]
        keys.view(num_rows, -1, spec.num_kv_heads, spec.key_dim).transpose(1, 2),  # [B, K, L, H]
        values.view(num_rows, -1, spec.num_kv_heads, spec.value_dim).transpose(1, 2),
        attn_mask=call.mask,
        scale=layer.scale,
    )
    return output.reshape(num_rows, spec.num_heads, spec.value_dim)


@dataclass(slots=True)
class _PrefillCall:
    """One SDPA call: consecutive queries of a prefill chunk and all positions that they attend to."""

    first: int  # token of the step
    num_tokens: int
    start: int  # position of the first query
    first_key: int  # position of the first key
    window: int | None
    # [L] int64; None: the keys are tokens of this very step, `first_own` .. first + num_tokens - 1.
    slots: Tensor | None
    first_own: int
    is_causal: bool  # square and causal: no mask needed
    mask: Tensor | None = None  # [num_tokens, L], where it is kept

    @property
    def num_mask_elements(self) -> int:
        """Size of its mask."""
        return 0 if self.is_causal else self.num_tokens * (self.start + self.num_tokens - self.first_key)

    def make_mask(self, like: Tensor) -> Tensor | None:
        """Return 0 where a query attends and -inf elsewhere, [num_tokens, L]."""
        if self.is_causal or self.mask is not None:
            return self.mask
        queries = torch.arange(self.start, self.start + self.num_tokens, device=like.device)[:, None]
        keys = torch.arange(self.first_key, self.start + self.num_tokens, device=like.device)[None]
        hidden = keys > queries
        if self.window is not None:
            hidden |= keys <= queries - self.window
        return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))


def _plan_chunk(inputs: AttentionInputs, chunk: PrefillChunk, window: int | None) -> list[_PrefillCall]:
    """Cut one chunk into calls whose masks are small; without a mask it stays whole."""
    is_first = chunk.start == 0
    if is_first and (window is None or chunk.num_tokens <= window):
        return [
            _PrefillCall(chunk.first_token, chunk.num_tokens, 0, 0, window, None, chunk.first_token, is_causal=True)
        ]
    size = max(1, _MAX_MASK_ELEMENTS // (chunk.start + chunk.num_tokens))
    calls = []
    for done in range(0, chunk.num_tokens, size):
        num_tokens = min(size, chunk.num_tokens - done)
        start = chunk.start + done
        first_key = 0 if window is None else max(0, start - window + 1)
        slots = None if is_first else _slots_of(inputs, chunk.row, first_key, start + num_tokens)
        own = chunk.first_token + first_key - chunk.start
        calls.append(
            _PrefillCall(chunk.first_token + done, num_tokens, start, first_key, window, slots, own, is_causal=False)
        )
    return calls


def _slots_of(inputs: AttentionInputs, row: int, first: int, end: int) -> Tensor:
    """Return where the positions `first` .. `end` - 1 of a row lie, [end - first] int64."""
    positions = torch.arange(first, end, device=inputs.positions.device)
    blocks = inputs.block_tables[inputs.row_tables[row], positions // inputs.block_size]
    return blocks * inputs.block_size + positions % inputs.block_size


def _prefill(spec: LayerSpec, kv: LayerKv, layer: LayerTensors, call: _PrefillCall) -> Tensor:
    end = call.first + call.num_tokens
    if call.slots is None:
        keys, values = layer.keys[call.first_own : end], layer.values[call.first_own : end]
    else:
        keys, values = kv.gather(call.slots)
    # KV heads stand where SDPA has its batch, and a key is shared by the query heads of its group through a stride of 0.
    group = spec.num_heads // spec.num_kv_heads
    queries = layer.queries[call.first : end].reshape(call.num_tokens, spec.num_kv_heads, group, spec.key_dim)
    output = F.scaled_dot_product_attention(
        queries.permute(1, 2, 0, 3),  # [K, N/K, T, H]
        keys.transpose(0, 1)[:, None].expand(-1, group, -1, -1),  # [K, N/K, L, H]
        values.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        attn_mask=call.make_mask(layer.queries),
        is_causal=call.is_causal,
        scale=layer.scale,
    )
    return output.permute(2, 0, 1, 3).reshape(call.num_tokens, spec.num_heads, spec.value_dim)
