"""What a run leaves behind when it ends in the middle, or is only ended."""

import asyncio
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from file_world import Engine, World

from daemon import file_opening, file_run
from daemon.device_account import DeviceTotals
from daemon.errors import FileFormatError, ReadCancelledError
from daemon.file_journal import create_journal


@pytest.fixture
def make(tmp_path):
    return lambda **kwargs: World(tmp_path, **kwargs)


def open_journals(folder):
    """The descriptors of this process that lead into a folder's journals."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(str(folder)) and path.endswith(".journal")]


def used_device(seconds):
    """A device that was busy for others, for so long, and computed a thousand tokens for them."""
    return SimpleNamespace(totals=DeviceTotals(busy_s=seconds, num_tokens=1000))


def test_a_file_that_is_left_while_it_is_read_again_leaves_nothing_open(make, monkeypatch):
    """A disk that is not mounted any more could not be unmounted for it, and each time takes a descriptor more."""
    world = make()
    is_reading, may_end = threading.Event(), threading.Event()

    def slow_survey(*_args, **_options):
        is_reading.set()
        may_end.wait(20)
        raise FileFormatError("it is of no use any more")

    async def first():
        world.start(Engine(is_ready=False))
        await world.until(lambda: world.run._file is not None)
        await world.kill()

    async def second():
        world.start(Engine())
        await world.until(is_reading.is_set)
        await world.kill()
        may_end.set()

    asyncio.run(first())
    monkeypatch.setattr(file_opening, "survey", slow_survey)
    asyncio.run(second())
    assert open_journals(world.folders.work) == []


def test_a_file_that_is_left_while_it_is_looked_through_is_read_no_further(make, monkeypatch):
    """A huge file takes minutes, for which the end of the daemon would have to wait."""
    world = make()
    is_reading, is_noticed = threading.Event(), threading.Event()

    def endless(*_args, is_cancelled, **_options):
        is_reading.set()
        deadline_s = time.monotonic() + 20
        while not is_cancelled() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        if is_cancelled():
            is_noticed.set()
        raise ReadCancelledError("nobody wants to know any more")

    async def story():
        world.start(Engine())
        await world.until(is_reading.is_set)
        await world.kill()

    monkeypatch.setattr(file_opening, "survey", endless)
    asyncio.run(story())
    assert is_noticed.is_set()
    assert not (world.folders.work / "f.journal").exists()


def test_a_file_that_is_left_while_its_journal_is_made_leaves_nothing_open(make, monkeypatch):
    """The thread that makes it is waited for, and what it made is closed."""
    world = make()
    is_making, may_end = threading.Event(), threading.Event()

    def slow_create(*args, **options):
        is_making.set()
        may_end.wait(20)
        return create_journal(*args, **options)

    async def story():
        world.start(Engine())
        await world.until(is_making.is_set)
        world.task.cancel()
        may_end.set()
        await world.kill()

    monkeypatch.setattr(file_opening, "create_journal", slow_create)
    asyncio.run(story())
    assert (world.folders.work / "f.journal").exists()
    assert open_journals(world.folders.work) == []


def test_a_file_that_is_stopped_by_a_fault_leaves_nothing_open(make, monkeypatch):
    """It stays in work/ for as long as the daemon runs."""
    world = make()

    async def fail(_):
        raise RuntimeError("a fault of ours")

    async def story():
        world.start(Engine())
        await world.until(world.task.done)
        await world.kill()

    monkeypatch.setattr(file_run.FileWork, "run", fail)
    asyncio.run(story())
    assert str(world.task.exception()) == "a fault of ours"
    assert open_journals(world.folders.work) == []


def test_a_file_that_is_not_run_has_no_share_of_what_the_device_did_before(make):
    """Its report tells of the time while it ran, which is none."""
    world = make(on_bad_line="reject")
    world.path.write_text('{"prompt": "a", "temperature": 9}\n')

    async def story():
        engine = Engine()
        engine.account = used_device(500.0)
        world.start(engine)
        await world.end()

    asyncio.run(story())
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    assert report["device_seconds"]["busy"] == 0
    assert (report["cost"]["share_of_tokens"], report["cost"]["gpu_seconds"]) == (0, 0)


def test_tokens_of_earlier_runs_are_not_paid_for_again_where_a_file_is_only_ended(make):
    """Its input is gone at the restart: what was computed for it was paid for by the time before."""
    world = make(lines=3)

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(2)
        await world.until(lambda: len(world.partial()) == 2)
        await world.kill()

    async def second():
        engine = Engine()
        engine.account = used_device(500.0)
        world.start(engine)
        await world.end()

    asyncio.run(first())
    world.path.write_text('{"prompt": "other"}\n')
    asyncio.run(second())
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    assert (report["status"], report["is_resumed"], report["requests"]["completed"]) == ("failed", True, 2)
    assert (report["cost"]["share_of_tokens"], report["cost"]["gpu_seconds"]) == (0, 0)
