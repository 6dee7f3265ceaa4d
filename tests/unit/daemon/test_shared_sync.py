"""Syncs of folders that are shared: each caller is covered by one that began after its call."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemon.durable import DiskStorage
from daemon.shared_sync import SharedDiskStorage

NUM_CALLERS = 40


@pytest.fixture
def syncs(monkeypatch):
    """The real syncs as (folder, begin, end); each takes 20 ms."""
    seen = []

    def sync_dir(_storage, path):
        begin_s = time.monotonic()
        time.sleep(0.02)
        seen.append((path, begin_s, time.monotonic()))

    monkeypatch.setattr(DiskStorage, "sync_dir", sync_dir)
    return seen


def test_each_call_is_covered_by_a_sync_that_began_after_it_and_few_are_made(syncs):
    storage, spans = SharedDiskStorage(), []
    gate = threading.Barrier(NUM_CALLERS)

    def call(number):
        gate.wait()
        for _ in range(3):
            called_s = time.monotonic()
            storage.sync_dir(Path("/a"))
            spans.append((called_s, time.monotonic()))
            time.sleep(0.001 * (number % 7))

    with ThreadPoolExecutor(NUM_CALLERS) as pool:
        list(pool.map(call, range(NUM_CALLERS)))
    assert len(spans) == 3 * NUM_CALLERS
    for called_s, returned_s in spans:
        assert any(called_s <= begin_s and end_s <= returned_s for _, begin_s, end_s in syncs)
    assert len(syncs) < len(spans) / 3


def test_folders_do_not_wait_for_each_other(syncs):
    storage = SharedDiskStorage()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: storage.sync_dir(Path(f"/{number}")), range(8)))
    assert len(syncs) == 8
    assert max(begin_s for _, begin_s, _ in syncs) < min(end_s for _, _, end_s in syncs) + 1.0


def test_an_error_reaches_everybody_whom_the_sync_was_for_and_nobody_later(monkeypatch):
    storage, results = SharedDiskStorage(), []
    inside, go_on = threading.Event(), threading.Event()
    errors = [None, errno.EIO, None]

    def sync_dir(_storage, _path):
        inside.set()
        go_on.wait(20)
        if (code := errors.pop(0)) is not None:
            raise OSError(code, os.strerror(code))

    def call():
        try:
            storage.sync_dir(Path("/a"))
        except OSError as error:
            results.append(error.errno)
        else:
            results.append(None)

    monkeypatch.setattr(DiskStorage, "sync_dir", sync_dir)
    first = threading.Thread(target=call)
    first.start()
    assert inside.wait(20)
    others = [threading.Thread(target=call) for _ in range(3)]
    for thread in others:
        thread.start()
    deadline_s = time.monotonic() + 20
    while not (storage._next and sum(thread.is_alive() for thread in others) == 3):
        assert time.monotonic() < deadline_s
    time.sleep(0.05)  # let all three join the group; one that comes later would need a third sync and see no error
    go_on.set()
    for thread in (first, *others):
        thread.join(20)
    assert results[0] is None
    assert sorted(map(str, results[1:])) == ["5", "5", "5"]
    call()
    assert results[-1] is None
