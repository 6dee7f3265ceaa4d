"""The bytes that a decode step has to move at the least, and the roofline ratio: how near a run comes to moving just those.

A decode step reads every weight once, whatever the batch, and of each row the keys and values of its context. Activations, the
one row of the embedding a token, and what is written are left out: they are thousandths of it. So

    ratio = bytes of the decode steps / measured read bandwidth / time of the decode steps on the device

is 1 where the memory never rests and moves nothing twice. A large batch is bound by arithmetic instead, and stays below.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.config import CacheDtype, EngineConfig, Quantization
from pipelines.errors import ModelError

_SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class StepSize:
    """What one step worked on."""

    num_rows: int
    num_tokens: int
    num_context: int  # positions that its rows' last tokens attend to, added up
    num_windowed: int  # the same, but no more than the sliding window of each row

    @property
    def is_decode(self) -> bool:
        """Whether every row has one token: no chunk of a prompt."""
        return self.num_tokens == self.num_rows


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a model moves in its arithmetic."""

    weight_bytes: int  # a step
    kv_bytes: int  # a token of context, in the layers that see all of it
    windowed_kv_bytes: int  # a token of context, in the layers with a sliding window
    window: int | None  # tokens; None where no layer has one

    def step_bytes(self, step: StepSize) -> int:
        """Return what a decode step moves at the least."""
        return self.weight_bytes + self.kv_bytes * step.num_context + self.windowed_kv_bytes * step.num_windowed


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What reading the memory of this machine has reached, and how."""

    bytes_per_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The decode steps of a run against the bandwidth."""

    num_steps: int
    device_s: float  # that they took on the device
    floor_s: float  # that their bytes take at the measured bandwidth

    @classmethod
    def of(
        cls, steps: Iterable[StepSize], durations_s: Iterable[float], traffic: Traffic, bytes_per_s: float
    ) -> "Roofline | None":
        """Add up the decode steps; None where there is none."""
        decodes = [(step, s) for step, s in zip(steps, durations_s, strict=True) if step.is_decode]
        if not decodes:
            return None
        num_bytes = sum(traffic.step_bytes(step) for step, _ in decodes)
        return cls(len(decodes), sum(s for _, s in decodes), num_bytes / bytes_per_s)

    @property
    def ratio(self) -> float:
        """1 = as fast as the bytes allow."""
        return self.floor_s / self.device_s


@dataclass(frozen=True, slots=True)
class ValueBytes:
    """How many bytes a number takes."""

    weights: int
    projections: int  # those of the weights that are multiplied, the head apart
    kv: int

    @classmethod
    def of(cls, config: EngineConfig, itemsize: int) -> "ValueBytes":
        """Return what an engine keeps its numbers in, whose arithmetic is of `itemsize` bytes."""
        return cls(
            weights=itemsize,
            projections=1 if config.model.quantization is Quantization.FP8 else itemsize,
            kv=1 if config.kv_cache.dtype is CacheDtype.FP8 else itemsize,
        )


def read_traffic(folder: Path, value_bytes: ValueBytes, *, trust_remote_code: bool = False) -> Traffic:
    """Read a model's sizes from its configuration, for weights and KV of so many bytes a value; no weight is loaded.

    Raises:
        ModelError: the configuration is of no model that transformers can make.
    """
    import torch  # noqa: PLC0415  seconds; the fake engine does without
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  likewise

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever transformers says of a folder that it cannot use
        raise ModelError(f"model folder {folder}: no model can be made of its config.json: {error}") from error
    text = config.get_text_config()
    num_windowed, window = _windows(text)
    kv_bytes = _kv_values_a_layer(text) * value_bytes.kv
    return Traffic(
        weight_bytes=_num_read_weights(model) * value_bytes.weights - _saved_bytes(model, value_bytes),
        kv_bytes=kv_bytes * (text.num_hidden_layers - num_windowed),
        windowed_kv_bytes=kv_bytes * num_windowed,
        window=window,
    )


def _num_read_weights(model: Any) -> int:
    """Count the weights that a step reads: all but an embedding that is not the output layer too."""
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    numbers = {id(parameter): parameter.numel() for parameter in model.parameters()}
    if inputs is not outputs:  # not tied: of the embedding a step reads a row a token
        del numbers[id(inputs)]
    return sum(numbers.values())


def _saved_bytes(model: Any, value_bytes: ValueBytes) -> int:
    """Return what projections of fewer bytes save."""
    if value_bytes.projections == value_bytes.weights:
        return 0
    from torch import nn  # noqa: PLC0415  as above

    head = model.get_output_embeddings()
    linears = (child for child in model.modules() if isinstance(child, nn.Linear) and child is not head)
    return sum(linear.weight.numel() for linear in linears) * (value_bytes.weights - value_bytes.projections)


def _windows(text: Any) -> tuple[int, int | None]:
    """Return how many layers have a sliding window, and its tokens."""
    window: int | None = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if window is None or not getattr(text, "use_sliding_window", True):
        return 0, None
    num_windowed = text.num_hidden_layers if kinds is None else sum(kind == _SLIDING for kind in kinds)
    return (num_windowed, window) if num_windowed else (0, None)


def _kv_values_a_layer(text: Any) -> int:
    """Return how many numbers one token's keys and values are in one layer."""
    num_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * int(num_heads) * int(head_dim)
