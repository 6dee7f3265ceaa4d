"""What the engine asks of a loaded model, and what all kinds of them do alike at load."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pipelines.config import Dtype
from pipelines.errors import EngineError, ModelError
from pipelines.models.attention import LayerKv, LayerSpec, PagedAttention

_FLOAT8_CAPABILITY = (8, 9)


class Model(Protocol):
    """A loaded model. `forward` is called in the compute stream, all else by the host thread before."""

    @property
    def name(self) -> str:
        """What it is, for a person."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations, and so of the cache."""

    @property
    def context(self) -> int:
        """Tokens a sequence may have."""

    @property
    def vocab_size(self) -> int:
        """Scores of a row."""

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """What the layers' attention asks of the cache."""

    @property
    def num_prepacked(self) -> int:
        """Linear layers that run on weights laid out for the CPU."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        sample_tokens: Tensor,
        attention: PagedAttention,
        cache: Sequence[LayerKv],
    ) -> Tensor:
        """Run one step.

        Args:
            token_ids: [T] int64.
            positions: [T] int64.
            sample_tokens: [s] int64, tokens whose scores are wanted.
            attention: of this step.
            cache: pages of each layer.

        Returns:
            scores [s, V].
        """

    def close(self) -> None:
        """Let go of the weights."""


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model will take, as its folder says it."""

    name: str  # of the implementation
    context: int  # tokens a sequence may have
    weight_bytes: int
    dtype: torch.dtype | None  # of the cache; None: only loading it tells
    layers: Sequence[LayerSpec] | None  # likewise


def settle_context(max_context: int | None, made_for: int | None) -> int:
    """Return how many tokens a sequence may have, of what was asked for and what the model was made for.

    Raises:
        ModelError: neither says, or more is asked for.
    """
    context = made_for if max_context is None else max_context
    if context is None:
        raise ModelError("it does not say how long its context is: set max_context")
    if made_for is not None and context > made_for:
        raise ModelError(f"max_context is {context}, expected at most the {made_for} that the model was made for")
    return context


def settle_dtype(dtype: Dtype, device: torch.device) -> torch.dtype | None:
    """Return the arithmetic that was asked for, None where it is the checkpoint's own; `auto` on a CPU is float32."""
    match dtype:
        case Dtype.AUTO:
            return torch.float32 if device.type == "cpu" else None
        case Dtype.FLOAT32 | Dtype.BFLOAT16 | Dtype.FLOAT16:
            named: torch.dtype = getattr(torch, dtype.value)
            return named


def check_float8(device: torch.device, key: str) -> None:
    """Refuse a GPU whose kernels cannot work on float8; on a CPU it is converted.

    Raises:
        ModelError: it is one; the text names the key that asked for it.
    """
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < _FLOAT8_CAPABILITY:
        raise ModelError(
            f"{key} is fp8, which needs a GPU of compute capability 8.9 (Ada, Hopper) or later; found {found[0]}.{found[1]} "
            f"on {device}"
        )


@contextmanager
def naming_model(folder: Path) -> Iterator[None]:
    """Put the model's name before what is said of it."""
    try:
        yield
    except EngineError as error:
        raise type(error)(f"model {folder.name}: {error}") from error
