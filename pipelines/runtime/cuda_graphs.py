"""Captured graphs of a step, one a number of tokens and kind of rows, all from one memory pool.

A graph serves each step of at most its number of tokens: what there is to do stands in the step's words on the device, and what
lies beyond is padding. Buckets are close (33 sequences do not pay for 64), because in a graph of few tokens each of them costs
next to nothing and there is room for many graphs in one pool: only one of them runs at a time, so they share their memory.

Steps of many tokens are bound by arithmetic and would pay for padding, so there are no buckets for them. But most of those are
filled to the last token that a step may have, and for them there is one graph: launching the kernels of a large step one by one
takes the host some ten milliseconds.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from pipelines.core.runner import GraphUse

SMALL_BUCKETS = (1, 2, 4)  # below the first multiple of 8
_STEPS = ((128, 8), (256, 32), (384, 64))  # up to so many tokens in steps of so many
_FULL_PADDING = 64  # the graph of a full step serves those that lack less than this part of its tokens
_LAST_STEP = 128  # cuBLAS multiplies 512 tokens in less time than 448 or 480, see docs/benchmarks.md


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Which graph."""

    num_tokens: int  # bucket
    has_chunks: bool  # rows of more than one token may be among them
    has_splits: bool = True  # decodes may be cut into splits


def buckets(max_tokens: int) -> list[int]:
    """Return the numbers of tokens that graphs are captured for, rising, the last one `max_tokens` itself."""
    sizes = [size for size in SMALL_BUCKETS if size < max_tokens]
    size = _STEPS[0][1]
    while size < max_tokens:
        sizes.append(size)
        size += next((step for end, step in _STEPS if size < end), _LAST_STEP)
    return [*sizes, max_tokens]


class StepGraphs:
    """The graphs of one runner. Captured at its start; `replay` is called with the compute stream current.

    One set serves all slots, or each slot has a set of its own, from one pool or from a pool each.
    """

    def __init__(
        self,
        max_tokens: int,
        max_rows: int,
        launch: Callable[[int, GraphKey], None],
        *,
        full_tokens: int = 0,
        whole_rows: Iterable[int] = (),
        num_sets: int = 1,
        share_pool: bool = True,
    ) -> None:
        self._launch = launch  # launches the step of one set and key on the current stream
        self._sizes = buckets(max_tokens) if max_tokens else []
        self._full_tokens = full_tokens if 0 < max_tokens < full_tokens else 0  # of a full step; 0 = no graph for it
        self._max_rows = max_rows
        # Of decodes that may all be whole, by how many there are.
        self._whole_sizes = {self._bucket_of(num_rows) for num_rows in whole_rows} if self._sizes else set()
        self._share_pool = share_pool
        self._sets: list[dict[GraphKey, Any]] = [{} for _ in range(num_sets)]
        self._capture_s = 0.0
        self._pool_bytes = 0
        self._device_bytes = 0

    @property
    def use(self) -> GraphUse | None:
        """What there is, and what it took; None if nothing is captured."""
        num_sets = len(self._sets)
        num_graphs = sum(map(len, self._sets))
        num_pools = 1 if self._share_pool else num_sets
        if not num_graphs:
            return None
        return GraphUse(num_sets, num_graphs, num_pools, self._pool_bytes, self._device_bytes, self._capture_s)

    def keys(self) -> Iterator[GraphKey]:
        """The graphs to capture, the largest first, so that the smaller ones fit into its memory."""
        if self._full_tokens:
            yield GraphKey(self._full_tokens, has_chunks=True)
        for size in reversed(self._sizes):
            if size > 1:
                yield GraphKey(size, has_chunks=True)
            if size <= self._bucket_of(self._max_rows):
                yield GraphKey(size, has_chunks=False)
                if size in self._whole_sizes:
                    yield GraphKey(size, has_chunks=False, has_splits=False)

    def find(self, num_tokens: int, *, has_chunks: bool, has_splits: bool = True) -> GraphKey | None:
        """The smallest graph that serves a step; None if there is none whose padding is worth it."""
        if not self._sizes:
            return None
        size = self._bucket_of(num_tokens)
        key = GraphKey(size, has_chunks, has_splits or size not in self._whole_sizes)
        if num_tokens > self._sizes[-1]:
            if not 0 <= (self._full_tokens - num_tokens) * _FULL_PADDING < self._full_tokens:
                return None
            key = GraphKey(self._full_tokens, has_chunks=True)
        return key if key in self._sets[0] else None

    def capture(self, device: torch.device, stream: Any, report: Callable[[float], None]) -> None:
        """Capture all graphs on `stream`, after a run of each that compiles what it needs.

        Raises:
            RuntimeError: the model does something that cannot be captured, or the memory does not suffice. Nothing is left
                of the graphs then, and the stream can be used.
        """
        started_s = time.perf_counter()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        free_before, _ = torch.cuda.mem_get_info(device)
        pools = self._make_pools()
        try:
            with torch.cuda.stream(stream), torch.inference_mode():
                self._capture_all(pools, stream, report)
        except BaseException:
            self._drop(device, pools)
            raise
        torch.cuda.empty_cache()  # of what the runs before left
        self._capture_s = time.perf_counter() - started_s
        self._pool_bytes = torch.cuda.memory_reserved(device) - before
        self._device_bytes = free_before - torch.cuda.mem_get_info(device)[0]

    def replay(self, number: int, key: GraphKey) -> None:
        """Launch a captured step of a set."""
        self._sets[number][key].replay()

    def _make_pools(self) -> list[Any]:
        if self._share_pool:
            return [torch.cuda.graph_pool_handle()] * len(self._sets)
        return [torch.cuda.graph_pool_handle() for _ in self._sets]

    def _capture_all(self, pools: list[Any], stream: Any, report: Callable[[float], None]) -> None:
        keys = [(number, key) for number in range(len(self._sets)) for key in self.keys()]
        for done, (number, key) in enumerate(keys):
            self._launch(number, key)
            stream.synchronize()
            self._sets[number][key] = self._capture_one(number, key, pools[number], stream)
            report((done + 1) / len(keys))

    def _capture_one(self, number: int, key: GraphKey, pool: Any, stream: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        failures: list[Exception] = []
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                try:
                    self._launch(number, key)
                except Exception as error:
                    failures.append(error)
                    raise
        except Exception:
            if failures:  # the end of the capture fails too then, and says less
                raise failures.pop() from None
            raise
        return graph

    def _drop(self, device: torch.device, pools: list[Any]) -> None:
        """Give back what a capture that failed has taken.

        Where the failure made the capture itself invalid, torch leaves its allocator in the middle of it; where it did not,
        the allocator refuses what is asked of it here.
        """
        for graphs in self._sets:
            graphs.clear()
        index = torch.cuda.current_device() if device.index is None else device.index
        for pool in dict.fromkeys(pools):
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(index, pool)  # noqa: SLF001  torch has no public way
                torch._C._cuda_releasePool(index, pool)  # noqa: SLF001  likewise
        torch.cuda.empty_cache()

    def _bucket_of(self, num_tokens: int) -> int:
        return self._sizes[min(bisect_left(self._sizes, num_tokens), len(self._sizes) - 1)]
