"""The tensors of a native decoder: which there are, fused as the decoder wants them, from files or by chance.

Projections that read the same rows are one tensor: query, key and value; gate and up. So are those of all experts of a layer.
Each part is copied from its file straight into its place. Tensors come layer by layer, one layer being read ahead of the one
that is taken.

Shapes: D hidden, I intermediate, E experts, N query heads, K KV heads, H head dim, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from pipelines.errors import ModelError
from pipelines.models.checkpoint import checkpoint_tensors
from pipelines.models.native_config import NativeConfig
from pipelines.models.native_files import SLAB_BYTES, Placer, WeightTensor

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_NOT_WEIGHTS = ("rotary_emb.inv_freq",)  # ends of names of tensors that old checkpoints hold and nothing reads
_READ_AHEAD = 1  # layers
_SPREAD = 0.02  # of random weights, as models are initialised


class Role(StrEnum):
    """What a tensor is for."""

    EMBEDDING = "embedding"  # [V, D]
    INPUT_NORM = "input norm"  # [D]
    QKV = "query, key and value"  # [(N + 2K) * H, D]
    QKV_BIAS = "bias of query, key and value"
    QUERY_NORM = "query norm"  # [H]
    KEY_NORM = "key norm"  # [H]
    OUTPUT = "output"  # [D, N * H]
    OUTPUT_BIAS = "bias of the output"
    MLP_NORM = "MLP norm"  # [D]
    GATE_UP = "gate and up"  # [2I, D], gate first
    GATE_UP_BIAS = "bias of gate and up"
    DOWN = "down"  # [D, I]
    DOWN_BIAS = "bias of down"
    ROUTER = "router"  # [E, D]
    EXPERTS_GATE_UP = "gate and up of experts"  # [E * 2I, D], of each expert its gate, then its up
    EXPERTS_DOWN = "down of experts"  # [E * D, I]
    FINAL_NORM = "final norm"  # [D]
    HEAD = "head"  # [V, D]


_NORMS = frozenset({Role.INPUT_NORM, Role.QUERY_NORM, Role.KEY_NORM, Role.MLP_NORM, Role.FINAL_NORM})
_EXPERTS = frozenset({Role.ROUTER, Role.EXPERTS_GATE_UP, Role.EXPERTS_DOWN})

Tensors = dict[Role, Tensor]


@dataclass(frozen=True, slots=True)
class FusedTensor:
    """One tensor, made of stored ones below each other."""

    role: Role
    names: tuple[str, ...]
    rows: tuple[int, ...]  # of each part
    columns: int | None  # None: a vector

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return self._shape(sum(self.rows))

    @property
    def parts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the parts."""
        return zip(self.names, map(self._shape, self.rows), strict=True)

    def _shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self.columns is None else (rows, self.columns)


@dataclass(frozen=True, slots=True)
class Target:
    """Where weights go."""

    device: torch.device
    dtype: torch.dtype


def layout(config: NativeConfig) -> list[list[FusedTensor]]:
    """Return the tensors of a model: the embedding, each layer's, and those behind the last layer.

    A tied model has no head of its own.
    """
    embedding = FusedTensor(Role.EMBEDDING, (_EMBEDDING,), (config.vocab_size,), config.hidden_size)
    last = [FusedTensor(Role.FINAL_NORM, ("model.norm.weight",), (config.hidden_size,), None)]
    if not config.is_tied:
        last.append(replace(embedding, role=Role.HEAD, names=(_HEAD,)))
    return [[embedding], *(_layer(config, layer) for layer in range(config.num_layers)), last]


def _layer(config: NativeConfig, layer: int) -> list[FusedTensor]:
    prefix = f"model.layers.{layer}"
    norms = [
        _norm(Role.INPUT_NORM, f"{prefix}.input_layernorm", config.hidden_size),
        _norm(Role.MLP_NORM, f"{prefix}.post_attention_layernorm", config.hidden_size),
    ]
    make_mlp = _experts if layer in config.experts.layers else _mlp
    return norms + _attention(config, f"{prefix}.self_attn") + make_mlp(config, f"{prefix}.mlp")


def _attention(config: NativeConfig, prefix: str) -> list[FusedTensor]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv_names = [f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj")]
    qkv = _linear(Role.QKV, qkv_names, (queries, keys, keys), config.hidden_size)
    output = _linear(Role.OUTPUT, [f"{prefix}.o_proj"], (config.hidden_size,), queries)
    tensors = [qkv, output]
    if config.has_head_norms:
        tensors.append(_norm(Role.QUERY_NORM, f"{prefix}.q_norm", config.head_dim))
        tensors.append(_norm(Role.KEY_NORM, f"{prefix}.k_norm", config.head_dim))
    if config.has_qkv_bias:
        tensors.append(_bias(Role.QKV_BIAS, qkv))
    if config.has_output_bias:
        tensors.append(_bias(Role.OUTPUT_BIAS, output))
    return tensors


def _mlp(config: NativeConfig, prefix: str) -> list[FusedTensor]:
    hidden, size = config.hidden_size, config.intermediate_size
    gate_up = _linear(Role.GATE_UP, [f"{prefix}.gate_proj", f"{prefix}.up_proj"], (size, size), hidden)
    down = _linear(Role.DOWN, [f"{prefix}.down_proj"], (hidden,), size)
    if config.has_mlp_bias:
        return [gate_up, down, _bias(Role.GATE_UP_BIAS, gate_up), _bias(Role.DOWN_BIAS, down)]
    return [gate_up, down]


def _experts(config: NativeConfig, prefix: str) -> list[FusedTensor]:
    """Return the tensors of a layer's experts, which files hold one by one."""
    hidden, size, number = config.hidden_size, config.experts.intermediate_size, config.experts.num_experts
    each = [f"{prefix}.experts.{expert}" for expert in range(number)]
    gate_up = [f"{expert}.{name}" for expert in each for name in ("gate_proj", "up_proj")]
    return [
        _linear(Role.ROUTER, [f"{prefix}.gate"], (number,), hidden),
        _linear(Role.EXPERTS_GATE_UP, gate_up, (size,) * len(gate_up), hidden),
        _linear(Role.EXPERTS_DOWN, [f"{expert}.down_proj" for expert in each], (hidden,) * number, size),
    ]


def _norm(role: Role, name: str, length: int) -> FusedTensor:
    return FusedTensor(role, (f"{name}.weight",), (length,), None)


def _linear(role: Role, names: Sequence[str], rows: tuple[int, ...], columns: int) -> FusedTensor:
    return FusedTensor(role, tuple(f"{name}.weight" for name in names), rows, columns)


def _bias(role: Role, weight: FusedTensor) -> FusedTensor:
    names = tuple(name.removesuffix(".weight") + ".bias" for name in weight.names)
    return FusedTensor(role, names, weight.rows, None)


def num_linear_elements(config: NativeConfig) -> int:
    """Return the elements of all projections that may be laid out anew: the head among them, experts not."""
    groups = layout(replace(config, is_tied=False))
    weights = [fused for group in groups for fused in group if fused.columns is not None and fused.role not in _EXPERTS]
    return _num_elements(weights) - config.vocab_size * config.hidden_size  # the embedding is none


def num_elements(config: NativeConfig) -> int:
    """Return the elements of all tensors."""
    return sum(_num_elements(group) for group in layout(config))


def random_weights(config: NativeConfig, target: Target, seed: int) -> Iterator[Tensors]:
    """Make a model's tensors by chance, in the order of `layout`: for benchmarks, to which values do not matter."""
    generator = torch.Generator(target.device).manual_seed(seed)
    for group in layout(config):
        tensors = {fused.role: torch.empty(fused.shape, device=target.device, dtype=target.dtype) for fused in group}
        for role, tensor in tensors.items():
            if role in _NORMS:
                tensor.fill_(1.0)
            else:
                tensor.normal_(0.0, _SPREAD, generator=generator)
        yield tensors


def load_weights(
    config: NativeConfig, folder: Path, target: Target, report: Callable[[float], None]
) -> Iterator[Tensors]:
    """Read a model's tensors from its safetensors files, in the order of `layout`.

    Args:
        config: of the model.
        folder: of the model.
        target: where they go, and as what.
        report: hears the share of bytes that have been read.

    Raises:
        ModelError: a tensor is missing, has another shape, or is none of this model's; the text names it.
    """
    stored = dict(checkpoint_tensors(folder))
    groups = layout(_settle_tie(config, stored))
    if config.is_tied and _EMBEDDING not in stored and _HEAD in stored:
        stored[_EMBEDDING] = stored[_HEAD]
    _check(groups, stored, config)
    reader = _Reader(stored, target, sum(_num_elements(group) for group in groups), report)
    with ThreadPoolExecutor(reader.num_threads, "weights") as threads:
        ahead: deque[dict[Role, _Pending]] = deque()
        for group in groups:
            ahead.append({fused.role: reader.submit(threads, fused) for fused in group})
            if len(ahead) > _READ_AHEAD:
                yield reader.take(ahead.popleft())
        while ahead:
            yield reader.take(ahead.popleft())


def checkpoint_dtype(config: NativeConfig, folder: Path) -> torch.dtype:
    """Return the arithmetic that a checkpoint was made for: what its configuration says, else that of its embedding.

    Raises:
        ModelError: its files cannot be read.
    """
    if config.dtype is not None:
        return config.dtype
    stored = checkpoint_tensors(folder)
    name = next((name for name in (_EMBEDDING, _HEAD) if name in stored), None)
    if name is None:
        raise ModelError(f"its files lack the tensor {_EMBEDDING}")
    return stored[name].read().dtype


def _settle_tie(config: NativeConfig, stored: Mapping[str, WeightTensor]) -> NativeConfig:
    """Return the config as the files mean it: a tied model that has a head of its own all the same is not tied."""
    if not (config.is_tied and _EMBEDDING in stored and _HEAD in stored):
        return config
    return replace(config, is_tied=torch.equal(stored[_EMBEDDING].read(), stored[_HEAD].read()))


def _check(groups: list[list[FusedTensor]], stored: Mapping[str, WeightTensor], config: NativeConfig) -> None:
    expected = {name: shape for group in groups for fused in group for name, shape in fused.parts}
    for name, shape in expected.items():
        if name not in stored:
            raise ModelError(f"its files lack the tensor {name}")
        if stored[name].shape != shape:
            raise ModelError(f"tensor {name} has the shape {list(stored[name].shape)}, expected {list(shape)}")
    known = expected.keys() | ({_HEAD} if config.is_tied else set())
    for name in stored:
        if name not in known and not name.endswith(_NOT_WEIGHTS) and not _is_no_bias(stored[name]):
            raise ModelError(
                f"its files hold the tensor {name}, which a {config.model_type} model of this configuration does not "
                "have; model.implementation: transformers ignores it"
            )


def _is_no_bias(tensor: WeightTensor) -> bool:
    """Whether it is a bias of zeros, which tools that quantize give to every projection."""
    return tensor.name.endswith(".bias") and not bool(tensor.read().any())


def _num_elements(group: Sequence[FusedTensor]) -> int:
    return sum(torch.Size(fused.shape).numel() for fused in group)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A tensor that is being read."""

    tensor: Tensor
    slabs: tuple[Future[int], ...]  # each yields the elements read


class _Reader:
    """Reads fused tensors, cut into slabs, by several threads."""

    def __init__(
        self, stored: Mapping[str, WeightTensor], target: Target, num_elements: int, report: Callable[[float], None]
    ) -> None:
        self._stored = stored
        self._target = target
        self._num_elements = num_elements
        self._num_read = 0
        self._report = report
        self._placer = Placer(target.device)
        self.num_threads = self._placer.num_threads

    def submit(self, threads: ThreadPoolExecutor, fused: FusedTensor) -> _Pending:
        tensor = torch.empty(fused.shape, device=self._target.device, dtype=self._target.dtype)
        row_bytes = (fused.columns or 1) * torch.float32.itemsize  # as it may be stored
        slab_rows = max(1, SLAB_BYTES // row_bytes)
        slabs = []
        for name, place in zip(fused.names, torch.split_with_sizes(tensor, fused.rows), strict=True):
            for first in range(0, place.shape[0], slab_rows):
                end = min(first + slab_rows, place.shape[0])
                slabs.append(threads.submit(self._placer.copy, place[first:end], self._stored[name], first, end))
        return _Pending(tensor, tuple(slabs))

    def take(self, group: dict[Role, _Pending]) -> Tensors:
        for pending in group.values():
            for slab in pending.slabs:
                self._num_read += slab.result()
            self._report(self._num_read / self._num_elements)
        return {role: pending.tensor for role, pending in group.items()}
