"""The native decoder's operations in plain torch, for any device; on a CPU in float32 with weights laid out for it.

Op calls count on a CPU: a step of 16 tokens of a small model spends a twentieth of its time in what is not a projection or
attention. So each operation here is the fewest calls over the largest tensors: the rotation is one of all heads of queries and
keys together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor, nn

from pipelines.models.attention import LayerKv, LayerSpec, LayerTensors, PagedAttention
from pipelines.models.experts import run_experts
from pipelines.models.float8_linear import Float8Linear
from pipelines.models.native_config import NativeConfig
from pipelines.models.native_decoder import DecoderLayer, Experts, GatedMlp, HeadNormWeights, MakeLinear
from pipelines.models.prepacked import PackedWeight, can_prepack
from pipelines.models.weights import Target


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """A projection by torch."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]

    def __call__(self, rows: Tensor) -> Tensor:
        """Apply it to [T, in]; returns [T, out]."""
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A projection whose weight lies in oneDNN's order."""

    packed: PackedWeight

    @classmethod
    def make(cls, weight: Tensor, bias: Tensor | None, *, keeps_plain: bool) -> "PackedLinear":
        """Lay a float32 weight on a CPU out anew; the plain one may stay beside it for many rows."""
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return cls(PackedWeight([linear], keeps_plain=keeps_plain))

    def __call__(self, rows: Tensor) -> Tensor:
        """Apply it to [T, in]; returns [T, out]."""
        return self.packed.part(0, rows)


KernelLinear = PlainLinear | Float8Linear  # that kernels run
TorchLinear = KernelLinear | PackedLinear


def linear_maker(target: Target, *, keeps_plain: bool) -> MakeLinear[TorchLinear]:
    """Return what makes projections for a device; see `PackedLinear.make`."""
    if target.device.type == "cpu" and target.dtype == torch.float32 and can_prepack():
        return partial(PackedLinear.make, keeps_plain=keeps_plain)
    return PlainLinear


@dataclass(frozen=True, slots=True)
class TorchShared:
    """What all steps of a model share."""

    config: NativeConfig
    specs: Sequence[LayerSpec]
    rotations: Tensor  # [2, C, 1, H] of each position: cosines, and sines, negative in the first half of a head

    @classmethod
    def make(cls, config: NativeConfig, specs: Sequence[LayerSpec], context: int, target: Target) -> "TorchShared":
        """Compute the rotations of all positions below `context`."""
        frequencies = torch.tensor(config.rotation.frequencies, dtype=torch.float32, device=target.device)
        angles = torch.arange(context, dtype=torch.float32, device=target.device)[:, None] * frequencies
        cosines, sines = angles.cos(), angles.sin()
        both = torch.stack((torch.cat((cosines, cosines), dim=1), torch.cat((-sines, sines), dim=1)))
        return cls(config, specs, (both * config.rotation.scaling).to(target.dtype)[:, :, None])


@dataclass(frozen=True, slots=True)
class TorchInputs:
    """One step."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    sample_tokens: Tensor  # [s] int64
    attention: PagedAttention
    cache: Sequence[LayerKv]


class TorchStep:
    """See `StepOps`; lives for one step."""

    def __init__(self, shared: TorchShared, inputs: TorchInputs) -> None:
        self._shared = shared
        self._config = shared.config
        self._inputs = inputs
        self._cosines, self._sines = shared.rotations.index_select(1, inputs.positions)  # [T, 1, H] each
        self._hidden = self._normed = self._cosines  # replaced by `begin`

    def begin(self, embedding: Tensor, norm: Tensor) -> None:
        """See `StepOps`."""
        self._hidden = F.embedding(self._inputs.token_ids, embedding)
        self._normed = self._norm(norm)

    def attend(self, number: int, layer: DecoderLayer[TorchLinear]) -> Tensor:
        """See `StepOps`."""
        config = self._config
        projected = layer.qkv(self._normed).view(-1, config.num_qkv_heads, config.head_dim)  # [T, N + 2K, H]
        asking, values = torch.split_with_sizes(
            projected, (config.num_heads + config.num_kv_heads, config.num_kv_heads), dim=1
        )
        if layer.head_norms is not None:
            asking = self._norm_heads(asking, layer.head_norms)
        if config.rotates[number]:
            asking = self._rotate(asking)
        queries, keys = torch.split_with_sizes(asking, (config.num_heads, config.num_kv_heads), dim=1)
        tensors = LayerTensors(queries, keys, values, None)
        return self._inputs.attention(self._shared.specs[number], self._inputs.cache[number], tensors).flatten(1)

    def select(self, attended: Tensor) -> Tensor:
        """See `StepOps`: here at once."""
        self._hidden = self._hidden[self._inputs.sample_tokens]
        return attended[self._inputs.sample_tokens]

    def add(self, rows: Tensor, linear: TorchLinear, norm: Tensor) -> None:
        """See `StepOps`."""
        self._hidden += linear(rows)
        self._normed = self._norm(norm)

    def feed(self, mlp: GatedMlp[TorchLinear] | Experts, norm: Tensor) -> None:
        """See `StepOps`."""
        match mlp:
            case GatedMlp():
                gate, up = mlp.gate_up(self._normed).chunk(2, dim=-1)
                self.add(F.silu(gate).mul_(up), mlp.down, norm)
            case Experts():
                self._hidden += run_experts(self._normed, mlp, self._config.experts)
                self._normed = self._norm(norm)

    def finish(self, mlp: GatedMlp[TorchLinear] | Experts, norm: Tensor, head: TorchLinear) -> Tensor:
        """See `StepOps`."""
        self.feed(mlp, norm)
        return head(self._normed)

    def _norm(self, weight: Tensor) -> Tensor:
        return F.rms_norm(self._hidden, weight.shape, weight, self._config.epsilon)

    def _norm_heads(self, asking: Tensor, norms: HeadNormWeights) -> Tensor:
        queries, keys = torch.split_with_sizes(asking, (self._config.num_heads, self._config.num_kv_heads), dim=1)
        shape = norms.query.shape
        normed = F.rms_norm(queries, shape, norms.query, self._config.epsilon)
        return torch.cat((normed, F.rms_norm(keys, shape, norms.key, self._config.epsilon)), dim=1)

    def _rotate(self, asking: Tensor) -> Tensor:
        first, second = asking.chunk(2, dim=-1)
        return torch.mul(asking, self._cosines).addcmul_(torch.cat((second, first), dim=-1), self._sines)
