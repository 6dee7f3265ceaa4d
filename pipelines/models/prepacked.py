"""Linear layers whose weights lie in oneDNN's own order: on a CPU in float32 faster for the few rows of a decode.

The layout is chosen once, for `_ROWS` rows. All linear layers of SmolLM2-135M together, plain over packed time on one core
with AVX2 (torch 2.13, 2026-11-29): 1.13 at 16 rows, 1.01 at 48, 0.91 at 512. So few rows take the packed weight and
many the plain one, where both may stay; where memory is short the packed one serves all.

Layers that read the same rows, such as query, key and value, become one: the first to be called computes all, the others
take their part. That holds for any module that calls them one after another with the same tensor; a call with another tensor
is computed for itself.

The operators are private to torch. Where they are missing or say something else than a plain layer, the plain layers stay.
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor, nn

_ROWS = 16  # that the layout is chosen for
_FEW_ROWS = 48  # up to which the packed weight is the faster one
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names that read the same rows


class PackedWeight:
    """The weights of one or more linear layers of the same input, one below the other, in oneDNN's order."""

    def __init__(self, linears: Sequence[nn.Linear], *, keeps_plain: bool) -> None:
        weights = [linear.weight.detach() for linear in linears]  # [out, in] each
        self._packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), _ROWS)  # noqa: SLF001  see the head
        self._plain = weights if keeps_plain else None
        self._sizes = [linear.out_features for linear in linears]
        self._biases = [None if linear.bias is None else linear.bias.detach() for linear in linears]
        self._bias = _stack(self._biases, self._sizes)
        self._rows: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, index: int, rows: Tensor) -> Tensor:
        """Apply layer `index` to [..., in] float32; returns [..., out]."""
        if self._plain is not None and rows.numel() > _FEW_ROWS * rows.shape[-1]:
            return F.linear(rows, self._plain[index], self._biases[index])
        if self._rows is not rows:  # all are computed at the first call with a tensor
            self._rows, self._parts = rows, torch.split_with_sizes(self._apply(rows), self._sizes, dim=-1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:
            self._rows, self._parts = None, ()  # the last has taken its part; nothing is kept between steps
        return part

    def plain(self, index: int) -> Tensor:
        """Return layer `index`'s weight [out, in] in plain order, a copy where only the packed one stayed."""
        if self._plain is not None:
            return self._plain[index]
        return torch.split_with_sizes(self._packed.to_dense(), self._sizes)[index]

    def _apply(self, rows: Tensor) -> Tensor:
        if rows.numel() == 0:
            return rows.new_empty((*rows.shape[:-1], sum(self._sizes)))
        output: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")  # noqa: SLF001  as above
        return output


class PrepackedLinear(nn.Module):
    """A `nn.Linear` in float32 on a CPU, without gradients."""

    def __init__(self, linear: nn.Linear, packed: PackedWeight, index: int) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._packed = packed
        self._index = index

    @property
    def weight(self) -> Tensor:
        """The plain weight [out, in], for models that look at it; see `PackedWeight.plain`."""
        return self._packed.plain(self._index)

    def forward(self, rows: Tensor) -> Tensor:
        """Apply it to [..., in] float32; returns [..., out]."""
        return self._packed.part(self._index, rows)


def prepack_linears(model: nn.Module, spare_bytes: int) -> int:
    """Replace the linear layers of a float32 model on a CPU; return how many.

    Plain weights stay beside the packed ones if all of them take no more than `spare_bytes`. A weight that another module
    uses too (a tied embedding) stays in any case.
    """
    if not can_prepack():
        return 0
    count = 0
    keeps_plain = sum(4 * child.weight.numel() for child in model.modules() if _is_packable(child)) <= spare_bytes
    for parent in list(model.modules()):
        linears = {name: child for name, child in parent.named_children() if _is_packable(child)}
        for names in _group(linears):
            members = [linears[name] for name in names]
            packed = PackedWeight(members, keeps_plain=keeps_plain)
            for index, (name, member) in enumerate(zip(names, members, strict=True)):
                setattr(parent, name, PrepackedLinear(member, packed, index))
            count += len(names)
    return count


def can_prepack() -> bool:
    """Whether the private operators are there and say what a plain layer says."""
    weight, rows = torch.linspace(-1, 1, 96).view(12, 8), torch.linspace(0, 1, 24).view(3, 8)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)  # noqa: SLF001  see the head
        output = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")  # noqa: SLF001  see the head
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(torch.allclose(output, rows @ weight.T, atol=1e-5))


def _is_packable(child: nn.Module) -> TypeGuard[nn.Linear]:
    return type(child) is nn.Linear and child.weight.dtype == torch.float32 and child.weight.device.type == "cpu"


def _group(linears: dict[str, nn.Linear]) -> list[tuple[str, ...]]:
    """Return names that become one weight each: siblings of one input size together, all others alone."""
    groups = [
        names
        for names in _SIBLINGS
        if all(name in linears for name in names) and len({linears[name].in_features for name in names}) == 1
    ]
    grouped = {name for names in groups for name in names}
    return groups + [(name,) for name in linears if name not in grouped]


def _stack(biases: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    return torch.cat([torch.zeros(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)])
