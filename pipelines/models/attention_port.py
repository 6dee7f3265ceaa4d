"""The plug that transformers' attention interface calls: first to learn what the layers are, then to serve them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from pipelines.errors import InvariantError, ModelError
from pipelines.models.attention import LayerKv, LayerSpec, LayerTensors, PagedAttention

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # batch, head, query and key index -> may attend

# What models pass along for other implementations' sake, and what changes nothing for a causal model that is not trained.
_HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "dropout",
        "is_causal",  # looked at by itself
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "scaling",  # honoured
        "sliding_window",  # honoured
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer's call of the attention interface looked like."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    sliding_window: int | None  # as passed for other implementations; the mask says what is meant, where there is one
    mask: MaskFunction | None


@dataclass(slots=True, eq=False)
class AttentionPort:
    """One model's end of the interface, registered under two names of its own: `probe_name` learns, `name` serves."""

    probe_name: str = ""
    name: str = ""
    calls: list[LayerCall] = field(default_factory=list)
    _masks: list[MaskFunction] = field(default_factory=list)
    _layer_of: dict[int, int] = field(default_factory=dict)  # id of the attention module -> number of the layer
    _specs: tuple[LayerSpec, ...] = ()
    _attention: PagedAttention | None = None
    _cache: Sequence[LayerKv] = ()
    num_served: int = 0  # calls in the current step

    @classmethod
    def register(cls) -> "AttentionPort":
        """Make a port that models of this process can be set to."""
        port = cls()
        port.name, port.probe_name = f"gapless_{id(port)}", f"gapless_probe_{id(port)}"  # kept for ever, hence unique
        AttentionInterface.register(port.probe_name, port.learn)
        AttentionMaskInterface.register(port.probe_name, port.learn_mask)
        # No mask function under the serving name: transformers then skips masks altogether, and passes none.
        AttentionInterface.register(port.name, port.serve)
        return port

    def learn_mask(self, *_: Any, mask_function: MaskFunction | None = None, **__: Any) -> Tensor:
        """Note which positions a kind of layer attends to; returns a mark by which the layer's call is told."""
        if mask_function is None:
            raise ModelError("its attention mask is not made by transformers' mask interface")
        self._masks.append(mask_function)
        return torch.full((1, 1, 1, 1), float(len(self._masks)))

    def learn(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Note what a layer asks for.

        Args:
            module: the layer's attention.
            query: [1, N, T, H].
            key: [1, K, T, H].
            value: [1, K, T, Hv].
            attention_mask: the mark of `learn_mask`.
            kwargs: as the model passes them.

        Raises:
            ModelError: it asks for what our attention does not do.
        """
        self._refuse_unknown(module, kwargs)
        self.calls.append(
            LayerCall(
                module=module,
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                sliding_window=kwargs.get("sliding_window"),
                mask=self._mask_of(attention_mask),
            )
        )
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    def settle(self, specs: Sequence[LayerSpec]) -> None:
        """Take the layers as learnt, in the order of their calls; from here on the port can serve."""
        self._layer_of = {id(call.module): number for number, call in enumerate(self.calls)}
        self._specs = tuple(specs)

    def begin(self, attention: PagedAttention, cache: Sequence[LayerKv]) -> None:
        """Let the next calls be those of one step."""
        self._attention, self._cache, self.num_served = attention, cache, 0

    def end(self) -> None:
        """Let go of the step's tensors."""
        self._attention, self._cache = None, ()

    def serve(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Answer one layer's call: [1, N, T, H] and [1, K, T, H] twice in, [1, T, N, Hv] out."""
        if self._attention is None:
            raise InvariantError("a model called our attention outside of a step")
        layer = self._layer_of[id(module)]
        self.num_served += 1
        tensors = LayerTensors(
            query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), kwargs.get("scaling")
        )
        return self._attention(self._specs[layer], self._cache[layer], tensors)[None], None

    def close(self) -> None:
        """Let go of the model; the registered names stay, as transformers cannot forget them, and hold nothing."""
        self.end()
        self.calls.clear()
        self._masks.clear()
        self._layer_of = {}

    def _mask_of(self, mark: Tensor | None) -> MaskFunction | None:
        if mark is None:
            return None
        number = float(mark.flatten()[0])
        is_mark = bool((mark == number).all()) and number.is_integer() and 1 <= number <= len(self._masks)
        if not is_mark:
            raise ModelError("its layers add something of their own to the attention mask, such as a position bias")
        return self._masks[int(number) - 1]

    @staticmethod
    def _refuse_unknown(module: nn.Module, kwargs: dict[str, Any]) -> None:
        if kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise ModelError("its attention is not causal")
        for name, value in kwargs.items():
            if value is not None and value is not False and name not in _HARMLESS:
                raise ModelError(f"its attention passes {name!r}, which this engine's attention does not implement")
