"""The native decoder: its weights, and its forward pass in terms of a few operations that each kind of device does its own way.

    begin      hidden = embedding rows; normed = norm(hidden)
    each layer:
      attend   attention of the projected `normed`, its keys and values written into their pages
      select   in the last layer: from here on only the tokens whose scores are wanted
      add      hidden += output projection; normed = norm(hidden)
      feed     hidden += MLP of `normed`, one or experts; normed = norm(hidden), by the next layer's weight
    finish     instead of the last `feed`: the same, and the scores of `normed`

`hidden` and `normed` belong to the operations: so a norm may be part of the projection before or behind it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from pipelines.models.weights import Role, Tensors

LinearT = TypeVar("LinearT")  # a projection as a device wants it

MakeLinear = Callable[[Tensor, Tensor | None], LinearT]  # from weight [out, in] and bias [out]


@dataclass(frozen=True, slots=True)
class HeadNormWeights:
    """Of the RMS norms over each head."""

    query: Tensor  # [H]
    key: Tensor  # [H]


@dataclass(frozen=True, slots=True)
class GatedMlp(Generic[LinearT]):
    """down(silu(gate) * up)."""

    gate_up: LinearT  # gate first
    down: LinearT


@dataclass(frozen=True, slots=True)
class Experts:
    """MLPs of which a router chooses a few for each token; the sum of what they say, each times its share."""

    router: Tensor  # [E, D]
    gate_up: Tensor  # [E, 2I, D] gate first
    down: Tensor  # [E, D, I]


@dataclass(frozen=True, slots=True)
class DecoderLayer(Generic[LinearT]):
    """One layer; shapes as in `pipelines.models.weights`."""

    input_norm: Tensor  # [D]
    qkv: LinearT
    head_norms: HeadNormWeights | None
    output: LinearT
    mlp_norm: Tensor  # [D]
    mlp: GatedMlp[LinearT] | Experts


@dataclass(frozen=True, slots=True)
class Decoder(Generic[LinearT]):
    """A whole model."""

    embedding: Tensor  # [V, D]
    layers: tuple[DecoderLayer[LinearT], ...]
    final_norm: Tensor  # [D]
    head: LinearT


class StepOps(Protocol[LinearT]):
    """One step's operations; see the module's head. T tokens, s tokens whose scores are wanted."""

    def begin(self, embedding: Tensor, norm: Tensor) -> None:
        """Take the tokens' rows of the embedding."""

    def attend(self, number: int, layer: DecoderLayer[LinearT]) -> Tensor:
        """Return the attention of layer `number`, [T, N * H]."""

    def select(self, attended: Tensor) -> Tensor:
        """Keep of the step's tokens those whose scores are wanted, here and in `hidden`: now, or in `finish`."""

    def add(self, rows: Tensor, linear: LinearT, norm: Tensor) -> None:
        """Add a projection to `hidden`, and norm the sum."""

    def feed(self, mlp: GatedMlp[LinearT] | Experts, norm: Tensor) -> None:
        """Add an MLP of `normed` to `hidden`, and norm the sum."""

    def finish(self, mlp: GatedMlp[LinearT] | Experts, norm: Tensor, head: LinearT) -> Tensor:
        """Feed a last time, and return the scores [s, V]."""


def assemble(
    groups: Iterator[Tensors], make_linear: MakeLinear[LinearT], make_head: MakeLinear[LinearT]
) -> Decoder[LinearT]:
    """Put a model together from its tensors as they come, in the order of `pipelines.models.weights.layout`."""
    embedding = next(groups)[Role.EMBEDDING]
    layers: list[DecoderLayer[LinearT]] = []
    for tensors in groups:
        if Role.FINAL_NORM in tensors:
            head = tensors.get(Role.HEAD)
            head_linear = make_head(embedding if head is None else head, None)
            return Decoder(embedding, tuple(layers), tensors[Role.FINAL_NORM], head_linear)
        layers.append(_assemble_layer(tensors, make_linear))
    raise ValueError("the tensors end before the final norm")


def _assemble_layer(tensors: Tensors, make_linear: MakeLinear[LinearT]) -> DecoderLayer[LinearT]:
    def linear(weight: Role, bias: Role) -> LinearT:
        return make_linear(tensors.pop(weight), tensors.get(bias))

    norms = None
    if Role.QUERY_NORM in tensors:
        norms = HeadNormWeights(tensors[Role.QUERY_NORM], tensors[Role.KEY_NORM])
    mlp: GatedMlp[LinearT] | Experts
    if Role.ROUTER in tensors:
        router = tensors[Role.ROUTER]
        number, hidden = router.shape
        gate_up = tensors[Role.EXPERTS_GATE_UP].view(number, -1, hidden)
        mlp = Experts(router, gate_up, tensors[Role.EXPERTS_DOWN].view(number, hidden, -1))
    else:
        mlp = GatedMlp(linear(Role.GATE_UP, Role.GATE_UP_BIAS), linear(Role.DOWN, Role.DOWN_BIAS))
    return DecoderLayer(
        input_norm=tensors[Role.INPUT_NORM],
        qkv=linear(Role.QKV, Role.QKV_BIAS),
        head_norms=norms,
        output=linear(Role.OUTPUT, Role.OUTPUT_BIAS),
        mlp_norm=tensors[Role.MLP_NORM],
        mlp=mlp,
    )


def run_decoder(decoder: Decoder[LinearT], ops: StepOps[LinearT]) -> Tensor:
    """Run one step; returns the scores [s, V]."""
    layers = decoder.layers
    ops.begin(decoder.embedding, layers[0].input_norm)
    for number, (layer, behind) in enumerate(pairwise(layers)):
        ops.add(ops.attend(number, layer), layer.output, layer.mlp_norm)
        ops.feed(layer.mlp, behind.input_norm)
    last = layers[-1]
    ops.add(ops.select(ops.attend(len(layers) - 1, last)), last.output, last.mlp_norm)
    return ops.finish(last.mlp, decoder.final_norm, decoder.head)
