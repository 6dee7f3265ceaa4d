"""What CUPTI recorded of some steps: what ran on the device and when, and what the host called for it.

The records are those of torch.profiler's trace file. A window runs from the arrival of one step's tokens on the host to that of
a later one. Since every step copies its tokens back once, steps are counted by these copies, whatever the engine says of them.
A call of the host belongs to the window in which it returns: a wait for a step's tokens returns behind their arrival, though it
may begin before or, by a host that is late, after it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import EngineError

SMALL_GAP_US = 5.0  # between kernels of a graph; what a launch by the host costs at the least is longer

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_BY_HOST = frozenset({"cuda_runtime", "cuda_driver"})
_TEMPLATE_WORDS = re.compile(r"^void |[<(].*")  # of a C++ kernel's name
_WAITS = frozenset({"cudaEventSynchronize", "cuEventSynchronize"})
_BLOCKING = (
    "StreamSynchronize",
    "DeviceSynchronize",
    "CtxSynchronize",
    "Malloc",
    "Free",
    "HostAlloc",
    "MemAlloc",
    "MemFree",
)
_SYNCHRONOUS_COPIES = frozenset({"cudaMemcpy", "cudaMemcpy2D", "cudaMemset", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"})


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """A window of whole steps; times in microseconds."""

    num_steps: int
    length_us: float
    busy_us: float  # union of what the compute stream did
    small_gaps_us: float  # of the rest, in gaps shorter than `SMALL_GAP_US`
    num_small_gaps: int
    longest_gap_us: float
    kernel_us: Mapping[str, float]  # by name, each from the end of what ran before it, so that all are the window
    num_to_device: int  # copies
    calls: Mapping[str, int]  # of the host, by name

    @property
    def busy_share(self) -> float:
        """Of the window, small gaps merged."""
        return (self.busy_us + self.small_gaps_us) / self.length_us

    @property
    def num_waits(self) -> int:
        """Times that the host waited for an event."""
        return sum(count for name, count in self.calls.items() if name in _WAITS)

    @property
    def other_waits(self) -> dict[str, int]:
        """Calls that may wait for the device or take its memory; a steady step makes none."""
        return {name: count for name, count in self.calls.items() if _may_block(name)}


def read_trace(events: Iterable[Mapping[str, Any]], num_steps: int, num_behind: int) -> DeviceTrace:
    """Read the events of a trace file: a window of `num_steps`, which ends `num_behind` steps before the last one.

    Raises:
        EngineError: it holds too few copies back to the host.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    on_device = [event for event in complete if event.get("cat") in _ON_DEVICE]
    ends = sorted(_end(event) for event in on_device if "DtoH" in event["name"])
    if len(ends) <= num_steps + num_behind:
        raise EngineError(
            f"the trace has {len(ends)} copies from the device to the host, expected one a step: {num_steps + num_behind + 1}"
        )
    start, end = (ends[-1 - behind] for behind in (num_steps + num_behind, num_behind))
    stream = _busiest_stream(on_device)
    own = sorted((event for event in on_device if event["args"]["stream"] == stream), key=lambda event: event["ts"])
    busy, gaps = _union([(event["ts"], _end(event)) for event in own], start, end)
    small = [gap for gap in gaps if gap < SMALL_GAP_US]
    num_to_device = sum("HtoD" in event["name"] and start <= event["ts"] < end for event in on_device)
    calls = [event["name"] for event in complete if event.get("cat") in _BY_HOST and start <= _end(event) < end]
    return DeviceTrace(
        num_steps=num_steps,
        length_us=end - start,
        busy_us=busy,
        small_gaps_us=sum(small),
        num_small_gaps=len(small),
        longest_gap_us=max(gaps, default=0.0),
        kernel_us=_by_kernel(own, start, end),
        num_to_device=num_to_device,
        calls=dict(Counter(calls)),
    )


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def _by_kernel(events: Iterable[Mapping[str, Any]], start: float, end: float) -> dict[str, float]:
    """Return what each kind of work adds to the time between `start` and `end`; events are in the order of their starts."""
    found: dict[str, float] = defaultdict(float)
    reached = start
    for event in events:
        last = min(_end(event), end)
        if last > reached:
            name = event["name"].replace("(anonymous namespace)::", "")
            found[_TEMPLATE_WORDS.sub("", name) if event["cat"] == "kernel" else "copies"] += last - reached
            reached = last
    return dict(found)


def _may_block(name: str) -> bool:
    is_asynchronous = "Async" in name  # cudaMallocAsync and cudaFreeAsync take their turn in a stream
    return name in _SYNCHRONOUS_COPIES or (any(part in name for part in _BLOCKING) and not is_asynchronous)


def _busiest_stream(events: Sequence[Mapping[str, Any]]) -> Any:
    time_by_stream: Counter[Any] = Counter()
    for event in events:
        if event["cat"] == "kernel":
            time_by_stream[event["args"]["stream"]] += event["dur"]
    if not time_by_stream:
        raise EngineError("the trace has no kernels: CUPTI is missing, or another profiler holds it")
    return time_by_stream.most_common(1)[0][0]


def _union(spans: Iterable[tuple[float, float]], start: float, end: float) -> tuple[float, list[float]]:
    """Return the time covered between `start` and `end` by spans in the order of their starts, and the gaps."""
    covered, gaps, reached = 0.0, [], start
    for first, last in spans:
        first, last = max(first, reached), min(last, end)  # noqa: PLW2901  cut to what is new within the window
        if last <= first:
            continue
        if first > reached:
            gaps.append(first - reached)
        covered += last - first
        reached = last
    if end > reached:
        gaps.append(end - reached)
    return covered, gaps
