"""Attention of a whole step over paged keys and values: plans once, then serves the layers, decodes and chunks alike.

    plan()                 once a step: work lists on the device, one for each window among the layers
    attend(layer 0)        decodes, then chunks, each in its kernel
    attend(layer 1) ...

Nothing here reads a length on the host. What the host may say of a step is whether it has decodes, whether these may be cut into
splits, and whether it has chunks: a graph captured without chunks or splits does not pay for their kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits, StepRows, WorkLists, plan_attention
from pipelines.kernels.attention_shape import AttentionShape, DecodeTiling, PrefillTiling
from pipelines.kernels.decode_attention import DecodeScratch, attend_decodes
from pipelines.kernels.prefill_attention import attend_chunks


@dataclass(frozen=True, slots=True)
class StepKinds:
    """What the host knows of a step."""

    has_decodes: bool  # rows of one token
    has_chunks: bool  # rows of more
    has_splits: bool = True  # decodes may be cut; False = each is worked on in one piece


@dataclass(frozen=True, slots=True)
class _Layer:
    """How one layer is served."""

    shape: AttentionShape
    decode: DecodeTiling
    prefill: PrefillTiling
    lists: WorkLists


class PagedKernels:
    """The kernels of all attention layers of a model, with their buffers; used by one stream.

    Raises:
        ValueError: a group of query heads is no whole number.
    """

    def __init__(
        self,
        layers: Sequence[tuple[AttentionShape, int | None]],  # each with its window
        limits: StepLimits,
        device: torch.device,
        *,
        dependent: bool = False,
    ) -> None:
        self._dependent = dependent
        self._max_rows = limits.max_rows
        self._num_rows = 0  # of the plan
        self._lists: dict[tuple[int | None, int, int, int], WorkLists] = {}
        self._layers = [self._prepare(shape, window, limits, device) for shape, window in layers]
        self._scratch = DecodeScratch.allocate(
            max(lists.decodes.shape[0] for lists in self._lists.values()),
            max(shape.num_heads for shape, _ in layers),
            max(shape.value_dim for shape, _ in layers),
            device,
        )

    @property
    def num_lanes(self) -> int | None:
        """Lanes that share the decodes; None where layers with a window have others to share."""
        if any(window is not None for window, *_ in self._lists):
            return None
        return min(lists.lanes.shape[0] for lists in self._lists.values())

    def plan(self, rows: StepRows, *, splits: bool = True) -> None:
        """Make the work lists of a step. With dependent launches, another launch has to come between this and `attend`.

        Raises:
            ValueError: there are more rows than was said.
        """
        self._num_rows = rows.seats.shape[0]
        if self._num_rows > self._max_rows:
            raise ValueError(f"a plan of {self._num_rows} rows was asked of kernels made for {self._max_rows}")
        for lists in self._lists.values():
            plan_attention(rows, lists, splits=splits, dependent=self._dependent)

    def attend(
        self,
        layer: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        block_tables: Tensor,
        output: Tensor,
        kinds: StepKinds,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Write one layer's attention [T, N, Hv] into `output`; see `attend_decodes` for the shapes and `scales`."""
        own = self._layers[layer]
        if kinds.has_decodes:
            attend_decodes(
                query,
                keys,
                values,
                block_tables,
                own.lists,
                self._scratch,
                output,
                own.shape,
                own.decode,
                num_rows=min(self._num_rows, query.shape[0]),  # decodes lie in front of padding, each with a token
                splits=kinds.has_splits,
                scales=scales,
                dependent=self._dependent,
            )
        if kinds.has_chunks:
            attend_chunks(
                query,
                keys,
                values,
                block_tables,
                own.lists,
                output,
                own.shape,
                own.prefill,
                scales=scales,
                dependent=self._dependent,
            )

    def _prepare(self, shape: AttentionShape, window: int | None, limits: StepLimits, device: torch.device) -> _Layer:
        if shape.num_heads % shape.num_kv_heads:
            raise ValueError(f"{shape.num_heads} query heads do not divide among {shape.num_kv_heads} KV heads")
        prefill, decode = PrefillTiling.choose(shape, device), DecodeTiling.choose(shape, device)
        num_lanes = decode.num_lanes(shape, device)
        key = (window, prefill.tile_tokens(shape), num_lanes, decode.block_n)
        if key not in self._lists:
            self._lists[key] = WorkLists.allocate(
                limits,
                window,
                prefill.tile_tokens(shape),
                device,
                num_lanes=num_lanes,
                turn=decode.block_n,
            )
        return _Layer(shape, decode, prefill, self._lists[key])
