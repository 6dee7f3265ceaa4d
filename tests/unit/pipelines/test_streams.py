"""The CPU streams keep the promises of `Stream`: order, events, failures that reach whoever waits, and a clean end."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from pipelines.config import StreamKind, StreamsConfig
from pipelines.errors import EngineError, InvariantError, OutOfMemoryError
from pipelines.runtime.cpu_stream import CpuStream
from pipelines.runtime.streams import StreamSet


@pytest.fixture
def stream() -> Iterator[CpuStream]:
    stream = CpuStream("compute", num_threads=1)
    yield stream
    stream.close()
    stream.join()


@pytest.fixture
def other() -> Iterator[CpuStream]:
    stream = CpuStream("h2d")
    yield stream
    stream.close()
    stream.join()


def test_launch_returns_before_the_work_is_done_and_keeps_its_order(stream: CpuStream) -> None:
    """The host goes on while the thread is held up; work runs in the order of its launch."""
    gate = threading.Event()
    done: list[int] = []
    stream.launch(gate.wait)
    for number in range(50):
        stream.launch(done.append, number)
    event = stream.record("end")
    assert not event.is_done
    assert done == []
    gate.set()
    event.wait()
    assert done == list(range(50))


def test_event_time_lies_between_what_came_before_and_after(stream: CpuStream) -> None:
    """An event's time is that of the stream coming past it, not of its recording."""
    gate = threading.Event()
    stream.launch(gate.wait)
    event = stream.record("end")
    with pytest.raises(InvariantError, match="before it was done"):
        _ = event.time_s
    opened_s = time.monotonic()
    gate.set()
    event.wait()
    assert opened_s <= event.time_s <= time.monotonic()


def test_a_stream_waits_for_another_streams_event(stream: CpuStream, other: CpuStream) -> None:
    """Work behind `wait` starts only when the other stream has come past the event."""
    gate = threading.Event()
    order: list[str] = []
    other.launch(gate.wait)
    other.launch(order.append, "copy")
    stream.wait(other.record("copied"))
    stream.launch(order.append, "compute")
    computed = stream.record("computed")
    assert not computed.is_done
    gate.set()
    computed.wait()
    assert order == ["copy", "compute"]


def _fail() -> None:
    raise ValueError("first line\nsecond line")


def test_a_failure_reaches_the_host_as_one_line_and_stops_what_is_behind_it(stream: CpuStream) -> None:
    """Events before the failure are well; events behind it raise it; nothing behind it runs."""
    before = stream.record("before")
    ran: list[int] = []
    stream.launch(_fail)
    stream.launch(ran.append, 1)
    after = stream.record("after")
    before.wait()
    with pytest.raises(EngineError, match=r"^a step failed on the compute stream: ValueError: first line$"):
        after.wait()
    assert after.is_done
    with pytest.raises(EngineError):
        _ = after.time_s
    with pytest.raises(EngineError):
        stream.record("later").wait()
    assert ran == []


def test_a_failure_passes_on_to_a_stream_that_waits_for_it(stream: CpuStream, other: CpuStream) -> None:
    """A failed copy fails the step that needs it, with the copy's own error."""
    other.launch(_fail)
    stream.wait(other.record("copied"))
    ran: list[int] = []
    stream.launch(ran.append, 1)
    with pytest.raises(EngineError, match="on the h2d stream"):
        stream.record("computed").wait()
    assert ran == []


def test_running_out_of_memory_names_the_keys_to_lower(stream: CpuStream) -> None:
    """Torch's allocator error becomes one that a person can act on."""
    stream.launch(torch.empty, 1 << 60, dtype=torch.int8)
    with pytest.raises(OutOfMemoryError, match=r"lower batch\.max_num_batched_tokens"):
        stream.record("end").wait()


def test_close_drops_what_has_not_begun_and_fails_its_events(stream: CpuStream) -> None:
    """Nobody who waits on a closed stream hangs."""
    gate = threading.Event()
    ran: list[str] = []
    stream.launch(gate.wait)
    begun = stream.record("begun")
    stream.launch(ran.append, "dropped")
    dropped = stream.record("dropped")
    stream.close()
    too_late = stream.record("too late")
    gate.set()
    stream.join()
    for event in (begun, dropped, too_late):
        assert event.is_done
    with pytest.raises(EngineError, match="closed before this work ran"):
        dropped.wait()
    with pytest.raises(EngineError, match="closed before this work ran"):
        too_late.wait()
    assert ran == []


def test_closing_a_set_ends_streams_that_wait_for_each_other() -> None:
    """The compute stream waits for a copy that is dropped: both threads end all the same."""
    streams = StreamSet.build(StreamsConfig(), CpuStream)
    gate = threading.Event()
    streams.h2d.launch(gate.wait)
    streams.compute.wait(streams.h2d.record("h2d_done"))
    computed = streams.compute.record("compute_done")
    threading.Timer(0.05, gate.set).start()
    streams.close()
    with pytest.raises(EngineError):
        computed.wait()


def test_inference_mode_and_threads_hold_in_the_streams_own_thread() -> None:
    """Both belong to a thread; a copy stream started later does not take the compute stream's threads away."""
    compute = CpuStream("compute", num_threads=2)
    copy = CpuStream("h2d", num_threads=1)
    seen: dict[str, tuple[bool, int]] = {}

    def look(name: str) -> None:
        seen[name] = (torch.is_inference_mode_enabled(), torch.get_num_threads())

    copy.launch(look, "copy")
    copy.record("end").wait()
    compute.launch(look, "compute")
    compute.record("end").wait()
    assert seen == {"copy": (True, 1), "compute": (True, 2)}
    for stream in (compute, copy):
        stream.close()
        stream.join()


def test_before_each_runs_before_each_launch_and_not_for_waits() -> None:
    """What tests use to delay a stream is called in its thread, once a launched function."""
    threads: list[str] = []
    stream = CpuStream("h2d", before_each=lambda: threads.append(threading.current_thread().name))
    stream.launch(int)
    stream.wait(stream.record("a"))
    stream.launch(int)
    stream.record("b").wait()
    assert threads == ["stream-h2d"] * 2
    stream.close()
    stream.join()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (StreamsConfig(), ["h2d", "compute", "d2h"]),
        (StreamsConfig(h2d=StreamKind.COMPUTE), ["compute", "compute", "d2h"]),
        (StreamsConfig(d2h=StreamKind.COMPUTE), ["h2d", "compute", "compute"]),
        (StreamsConfig(h2d=StreamKind.COMPUTE, d2h=StreamKind.COMPUTE), ["compute"] * 3),
    ],
)
def test_streams_are_dedicated_or_the_compute_stream(config: StreamsConfig, expected: list[str]) -> None:
    """The placement that the configuration asks for, with no stream made twice."""
    made: list[str] = []

    def make(name: str) -> CpuStream:
        made.append(name)
        return CpuStream(name)

    streams = StreamSet.build(config, make)
    assert [streams.h2d.name, streams.compute.name, streams.d2h.name] == expected
    assert sorted(made) == sorted(set(expected))
    streams.close()
