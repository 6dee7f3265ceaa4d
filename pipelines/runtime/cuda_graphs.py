"""Captured graphs of a step, one a number of tokens and kind of rows, all from one memory pool.

A graph serves each step of at most its number of tokens: what there is to do stands in the step's words on the device, and what
lies beyond is padding. Buckets are close (33 sequences do not pay for 64), because in a graph of few tokens each of them costs
next to nothing and there is room for many graphs in one pool: only one of them runs at a time, so they share their memory.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

SMALL_BUCKETS = (1, 2, 4)  # below the first multiple of `_STEP`
_STEP = 8
_WIDE_STEP = 32  # from `_WIDE_FROM` on
_WIDE_FROM = 128


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Which graph."""

    num_tokens: int  # bucket
    has_chunks: bool  # rows of more than one token may be among them


def buckets(max_tokens: int) -> list[int]:
    """Return the numbers of tokens that graphs are captured for, rising, the last one `max_tokens` itself."""
    sizes = [size for size in SMALL_BUCKETS if size < max_tokens]
    size = _STEP
    while size < max_tokens:
        sizes.append(size)
        size += _STEP if size < _WIDE_FROM else _WIDE_STEP
    return [*sizes, max_tokens]


class StepGraphs:
    """The graphs of one runner. Captured at its start; `replay` is called with the compute stream current."""

    def __init__(self, max_tokens: int, max_rows: int, launch: Callable[[GraphKey], None]) -> None:
        self._launch = launch  # launches the step of one key on the current stream
        self._sizes = buckets(max_tokens) if max_tokens else []
        self._max_rows = max_rows
        self._graphs: dict[GraphKey, Any] = {}
        self.capture_s = 0.0  # that capturing took
        self.pool_bytes = 0  # that the graphs hold

    def __len__(self) -> int:
        return len(self._graphs)

    def keys(self) -> Iterator[GraphKey]:
        """The graphs to capture, the largest first, so that the smaller ones fit into its memory."""
        for size in reversed(self._sizes):
            if size > 1:
                yield GraphKey(size, has_chunks=True)
            if size <= self._bucket_of(self._max_rows):
                yield GraphKey(size, has_chunks=False)

    def find(self, num_tokens: int, *, has_chunks: bool) -> GraphKey | None:
        """The smallest graph that serves a step; None if it is too large for all."""
        if not self._sizes or num_tokens > self._sizes[-1]:
            return None
        key = GraphKey(self._bucket_of(num_tokens), has_chunks)
        return key if key in self._graphs else None

    def capture(self, device: torch.device, stream: Any, report: Callable[[float], None]) -> None:
        """Capture all graphs on `stream`, after a run of each that compiles what it needs.

        Raises:
            RuntimeError: the model does something that cannot be captured.
        """
        started_s = time.perf_counter()
        before = torch.cuda.memory_reserved(device)
        pool = torch.cuda.graph_pool_handle()
        keys = list(self.keys())
        with torch.cuda.stream(stream), torch.inference_mode():
            for number, key in enumerate(keys):
                self._launch(key)
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self._launch(key)
                self._graphs[key] = graph
                report((number + 1) / len(keys))
        self.capture_s = time.perf_counter() - started_s
        self.pool_bytes = torch.cuda.memory_reserved(device) - before

    def replay(self, key: GraphKey) -> None:
        """Launch a captured step."""
        self._graphs[key].replay()

    def _bucket_of(self, num_tokens: int) -> int:
        return self._sizes[min(bisect_left(self._sizes, num_tokens), len(self._sizes) - 1)]
