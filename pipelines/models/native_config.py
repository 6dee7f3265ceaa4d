"""Decides from a model's configuration alone whether the native decoder computes exactly that model, and what its sizes are.

The table of families is closed: a model whose type is not in it, or whose configuration asks for anything beyond what the
native decoder does, is left to the adapter, with the reason.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines.config import Implementation, ModelConfig
from pipelines.errors import ModelError
from pipelines.models.kept_config import from_config

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # all others change with the length of a sequence
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model type's class makes of a configuration."""

    architecture: str
    reads: frozenset[str]  # keys beyond the common ones; the class does not look at others, even where they are given
    has_qkv_bias: bool = False  # always, whatever the configuration says
    has_head_norms: bool = False  # RMS norm over each head of queries and keys


_EXPERTS = frozenset(
    {
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
    }
)
_BIASES = frozenset({"attention_bias", "mlp_bias"})
_WINDOWS = frozenset({"layer_types", "sliding_window"})
_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", _BIASES),
    "ministral": _Family("MinistralForCausalLM", _WINDOWS),
    "mistral": _Family("MistralForCausalLM", frozenset({"sliding_window"})),
    "qwen2": _Family("Qwen2ForCausalLM", _WINDOWS, has_qkv_bias=True),
    "qwen3": _Family("Qwen3ForCausalLM", _WINDOWS | {"attention_bias"}, has_head_norms=True),
    "qwen3_moe": _Family("Qwen3MoeForCausalLM", _EXPERTS | {"attention_bias", "sliding_window"}, has_head_norms=True),
    "smollm3": _Family("SmolLM3ForCausalLM", _WINDOWS | _BIASES | {"no_rope_layers"}),
}

NATIVE_TYPES = tuple(_FAMILIES)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary position embedding of halves of a head against each other."""

    frequencies: tuple[float, ...]  # [H / 2] radians a position, each a float32
    scaling: float  # factor of cosines and sines


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """What stands in some layers instead of one MLP: many small ones, of which a router chooses a few for each token."""

    num_experts: int  # E
    num_chosen: int  # for a token
    intermediate_size: int  # of each
    is_normalised: bool  # the chosen ones' shares add up to 1
    layers: frozenset[int]  # that have them; none in most models


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """A model of the Llama family."""

    model_type: str
    vocab_size: int  # V
    hidden_size: int  # D
    intermediate_size: int  # I
    num_heads: int  # N
    num_kv_heads: int  # K
    head_dim: int  # H
    epsilon: float  # of all RMS norms
    context: int  # tokens that it was made for
    windows: tuple[
        int | None, ...
    ]  # of each layer: positions a token attends to, itself included; None = all before it
    rotates: tuple[bool, ...]  # of each layer: whether queries and keys are rotated
    rotation: Rotation
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_head_norms: bool
    experts: ExpertsConfig
    is_tied: bool  # the head is the embedding
    dtype: torch.dtype | None  # of the checkpoint, where the configuration says

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.windows)

    @property
    def num_qkv_heads(self) -> int:
        """Heads of queries, keys and values together."""
        return self.num_heads + 2 * self.num_kv_heads


@dataclass(frozen=True, slots=True)
class NotNative:
    """Why the native decoder does not take a model."""

    reason: str


def native_config(folder: Path) -> NativeConfig | NotNative:
    """Read a model folder's `config.json`.

    Raises:
        ModelError: it cannot be read.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"model folder {folder}: found no config.json, expected a model as transformers keeps it")
    return _unpacked(from_config(folder, __file__, lambda: _packed(_read_by_transformers(folder))))


def _read_by_transformers(folder: Path) -> NativeConfig | NotNative:
    from transformers import AutoConfig, PreTrainedConfig  # noqa: PLC0415  takes seconds, and what it says is kept

    try:
        raw, _ = PreTrainedConfig.get_config_dict(folder, local_files_only=True)
        model_type = raw.get("model_type")
        family = _FAMILIES.get(model_type)
        if family is None:
            return NotNative(f"found model_type {model_type!r}, the native decoder has {', '.join(NATIVE_TYPES)}")
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever transformers says of a file that it cannot use
        reason = " ".join(str(error).split())
        raise ModelError(f"model folder {folder}: its configuration cannot be read: {reason}") from error
    refusal = _refusal(config, family)
    if refusal is not None:
        return NotNative(refusal)
    return _convert(config, family)


def _packed(config: NativeConfig | NotNative) -> dict[str, Any]:
    """Return it as JSON has it; `_unpacked` is the way back."""
    if isinstance(config, NotNative):
        return asdict(config)
    dtype = None if config.dtype is None else str(config.dtype).removeprefix("torch.")
    experts = asdict(config.experts) | {"layers": sorted(config.experts.layers)}
    return asdict(config) | {"dtype": dtype, "experts": experts}


def _unpacked(values: dict[str, Any]) -> NativeConfig | NotNative:
    if "reason" in values:
        return NotNative(**values)
    rotation, experts, dtype = values["rotation"], values["experts"], values["dtype"]
    return NativeConfig(
        **values
        | {
            "windows": tuple(values["windows"]),
            "rotates": tuple(values["rotates"]),
            "rotation": Rotation(tuple(rotation["frequencies"]), rotation["scaling"]),
            "experts": ExpertsConfig(**experts | {"layers": frozenset(experts["layers"])}),
            "dtype": None if dtype is None else getattr(torch, dtype),
        }
    )


def is_native(model: ModelConfig, folder: Path) -> bool:
    """Whether the native decoder is to run a model: `auto` means it wherever it can.

    Raises:
        ModelError: the model's configuration cannot be read.
    """
    match model.implementation:
        case Implementation.NATIVE:
            return True
        case Implementation.TRANSFORMERS:
            return False
        case Implementation.AUTO:
            return isinstance(native_config(folder), NativeConfig)


def _refusal(config: Any, family: _Family) -> str | None:
    architectures = getattr(config, "architectures", None) or [family.architecture]
    rope = config.rope_parameters
    layer_types = set(_read(config, family, "layer_types") or ())
    window = _read(config, family, "sliding_window")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    checks = (
        (getattr(config, "auto_map", None), "its config.json names code of its own (auto_map)"),
        (
            architectures != [family.architecture],
            f"found architectures {architectures}, expected {family.architecture}",
        ),
        (config.hidden_act != "silu", f"found hidden_act {config.hidden_act!r}, expected 'silu'"),
        ("rope_type" not in rope, "its layers have position embeddings of several kinds"),
        (
            rope.get("rope_type") not in _ROPE_TYPES,
            f"found the position embedding {rope.get('rope_type')!r}, expected {', '.join(_ROPE_TYPES)}",
        ),
        (rope.get("partial_rotary_factor", 1.0) != 1.0, "its heads are rotated in part (partial_rotary_factor)"),
        (layer_types - _LAYER_TYPES, f"found the layer types {sorted(layer_types - _LAYER_TYPES)}"),
        ("sliding_attention" in layer_types and window is None, "it has layers with a sliding window of no size"),
        (heads % kv_heads, f"its {heads} query heads do not divide among {kv_heads} KV heads"),
    )
    return next((reason for is_met, reason in checks if is_met), _experts_refusal(config, family))


def _experts_refusal(config: Any, family: _Family) -> str | None:
    num_experts: int = _read(config, family, "num_experts") or 0
    if not num_experts:
        return None
    if not 1 <= config.num_experts_per_tok <= num_experts:
        return f"found num_experts_per_tok {config.num_experts_per_tok}, expected 1 to its {num_experts} experts"
    if config.decoder_sparse_step < 1:
        return f"found decoder_sparse_step {config.decoder_sparse_step}, expected 1 or more"
    return None


def _convert(config: Any, family: _Family) -> NativeConfig:
    num_layers = config.num_hidden_layers
    has_bias = bool(_read(config, family, "attention_bias"))
    dtype = getattr(config, "dtype", None)
    return NativeConfig(
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(config),
        epsilon=config.rms_norm_eps,
        context=config.max_position_embeddings,
        windows=_windows(config, family),
        rotates=tuple(map(bool, _read(config, family, "no_rope_layers") or [1] * num_layers)),
        rotation=_rotation(config),
        has_qkv_bias=family.has_qkv_bias or has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=bool(_read(config, family, "mlp_bias")),
        has_head_norms=family.has_head_norms,
        experts=_experts(config, family),
        is_tied=bool(config.tie_word_embeddings),
        dtype=dtype if isinstance(dtype, torch.dtype) else None,
    )


def _head_dim(config: Any) -> int:
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return head_dim


def _read(config: Any, family: _Family, name: str) -> Any:
    return getattr(config, name, None) if name in family.reads else None


def _windows(config: Any, family: _Family) -> tuple[int | None, ...]:
    window: int | None = _read(config, family, "sliding_window")
    num_layers: int = config.num_hidden_layers
    if "layer_types" not in family.reads:
        return (window,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in config.layer_types)


def _experts(config: Any, family: _Family) -> ExpertsConfig:
    """Every `decoder_sparse_step`-th layer has them, but for those named by `mlp_only_layers`."""
    num_experts: int = _read(config, family, "num_experts") or 0
    if not num_experts:
        return ExpertsConfig(0, 0, 0, is_normalised=False, layers=frozenset())
    step, plain = config.decoder_sparse_step, config.mlp_only_layers or ()
    layers = frozenset(range(step - 1, config.num_hidden_layers, step)).difference(plain)
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        is_normalised=config.norm_topk_prob,
        layers=layers,
    )


def _rotation(config: Any) -> Rotation:
    """Let transformers compute the frequencies wherever they are scaled."""
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        half = torch.arange(0, _head_dim(config), 2, dtype=torch.float32) / _head_dim(config)
        return Rotation(tuple((1.0 / rope["rope_theta"] ** half).tolist()), 1.0)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415  as above

    frequencies, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    return Rotation(tuple(frequencies.tolist()), float(scaling))
