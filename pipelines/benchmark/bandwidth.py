"""The read bandwidth of this machine's memory, measured: the roofline that a run is held against.

A read-only stream, since that is what a decode step is; copies reach less and are no measure. Several ways of reading are
tried and the fastest counts: how fast the memory can be read is asked, not how fast one kernel is.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from pipelines.benchmark.traffic import Bandwidth
from pipelines.counted import counted

_GIB = 1 << 30
_CUDA_BYTES = 8 * _GIB  # far beyond any cache
_CPU_BYTES = _GIB
_REPEATS = 9
_WORD_BYTES = 4
# (programs a multiprocessor, words a program reads at a time, warps): few programs with much in flight, and many with less.
_CUDA_CUTS = ((2, 4096, 8), (4, 4096, 8), (8, 2048, 8), (8, 4096, 8), (16, 2048, 4), (16, 4096, 8), (64, 4096, 8))


def measure_bandwidth(device: torch.device, num_threads: int | None = None, num_bytes: int | None = None) -> Bandwidth:
    """Read so much memory of a device in every way there is; a CPU by so many threads, None = all.

    On a GPU it takes that much memory, at most a quarter of what is free, and gives it back.
    """
    if device.type == "cpu":
        size = num_bytes or _CPU_BYTES
        return max(
            _cpu_bandwidths(size, num_threads or len(os.sched_getaffinity(0))), key=lambda found: found.bytes_per_s
        )
    with torch.cuda.device(device):
        size = num_bytes or min(_CUDA_BYTES, torch.cuda.mem_get_info()[0] // 4)
        found = max(_cuda_bandwidths(device, size), key=lambda found: found.bytes_per_s)
        torch.cuda.empty_cache()
    return found


def _cpu_bandwidths(num_bytes: int, num_threads: int) -> Iterator[Bandwidth]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    values = torch.ones(num_bytes // _WORD_BYTES, dtype=torch.float32)
    for name, read in (("sum", torch.sum), ("max", torch.max)):
        durations_s = []
        for _ in range(_REPEATS):
            started_s = time.perf_counter()
            read(values)
            durations_s.append(time.perf_counter() - started_s)
        how = f"torch.{name} of {num_bytes / _GIB:.1f} GiB, {counted(num_threads, 'thread')}"
        yield Bandwidth(num_bytes / _median(durations_s), how)
    torch.set_num_threads(before)


def _cuda_bandwidths(device: torch.device, num_bytes: int) -> Iterator[Bandwidth]:
    words = torch.randint(-9, 9, (num_bytes // _WORD_BYTES,), dtype=torch.int32, device=device)
    size = f"{num_bytes / _GIB:.1f} GiB"
    yield Bandwidth(num_bytes / _graph_s(partial(torch.sum, words.view(torch.float32))), f"torch.sum of {size}")
    if importlib.util.find_spec("triton") is None:
        return
    from pipelines.benchmark.read_kernel import add_up  # noqa: PLC0415  Triton need not be there

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    for programs, block, num_warps in _CUDA_CUTS:
        sums = torch.empty(processors * programs, dtype=torch.int32, device=device)
        read = partial(add_up, words[: words.numel() // block * block], sums, block=block, num_warps=num_warps)
        how = f"a Triton kernel over {size}, {programs} programs a processor, {block * _WORD_BYTES} bytes at a time"
        yield Bandwidth(num_bytes / _graph_s(read), how)


def _graph_s(read: Callable[[], object]) -> float:
    """Return the median seconds of one replay."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's stub
    with torch.cuda.stream(side):
        read()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        read()
    graph.replay()
    durations_s = []
    for _ in range(_REPEATS):
        begin, end = _event(), _event()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        durations_s.append(begin.elapsed_time(end) / 1e3)
    return _median(durations_s)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's stub


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
