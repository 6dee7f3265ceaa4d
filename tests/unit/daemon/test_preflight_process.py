"""Settings of engines are checked in processes of their own, which end whatever happens."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from daemon.child import Child
from daemon.errors import EngineConfigError, EngineEnvironmentError
from daemon.preflight import check_engine, check_engines
from daemon.settings_engine import EngineSettings
from pipelines.channel import Peer
from pipelines.config import EngineConfig, ModelConfig


def checking_processes():
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_mine = f"PPid:\t{os.getpid()}\n" in (entry / "status").read_text()
        except OSError:
            continue
        if is_mine and b"preflight" in words:
            pids.append(int(entry.name))
    return pids


async def until(condition):
    async with asyncio.timeout(60):
        while not (found := condition()):  # noqa: ASYNC110  of another process
            await asyncio.sleep(0.01)
    return found


def engine(path, **keys):
    return EngineSettings.model_validate({"model": {"path": path}} | keys)


REAL = EngineConfig("e", ModelConfig("./no/such/model"))  # a check imports torch, which takes a while, before it looks


async def stopped_check(stall_s=60.0):
    """Begin a check and stop its process by a signal: it hangs. Return the check's task and the process."""
    task = asyncio.create_task(check_engine(REAL, stall_s, lambda _: None))
    (pid,) = await until(checking_processes)
    os.kill(pid, signal.SIGSTOP)
    return task, pid


def test_each_engine_that_cannot_be_started_is_named_with_its_reason():
    engines = {"a": engine("fake:"), "b": engine("fake:nonsense=1"), "c": engine("./no/such/model")}
    problems = asyncio.run(check_engines(engines, lambda _: None))
    assert [problem.partition(":")[0] for problem in problems] == ["engine b", "engine c"]
    assert "found option 'nonsense'" in problems[0]
    assert "found no such folder" in problems[1]
    assert checking_processes() == []


def test_a_check_that_does_not_get_on_is_ended():
    async def story():
        task, _ = await stopped_check(0.5)
        await task

    with pytest.raises(EngineEnvironmentError, match=r"was killed: it did not get on for 0\.5 s"):
        asyncio.run(story())
    assert checking_processes() == []


def test_a_process_that_starts_moves_on_and_one_that_hangs_does_not():
    """While it imports torch it touches pages all the time, without a word."""

    async def story():
        child = await Child.start(Peer.PREFLIGHT, REAL)
        reading = asyncio.create_task(child.read_until_death(lambda _: None, lambda _: None))
        try:
            for _ in range(5):
                await until(child.has_moved_on)
            os.kill(child.pid, signal.SIGSTOP)
            child.has_moved_on()
            await asyncio.sleep(0.3)
            assert not child.has_moved_on()
        finally:
            child.kill()
            await reading
        assert not child.has_moved_on(), "it is gone"

    asyncio.run(story())


def test_a_check_that_nobody_wants_any_more_leaves_no_process():
    async def story():
        task, _ = await stopped_check()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert checking_processes() == []

    asyncio.run(story())


def test_a_check_that_is_given_up_while_its_process_starts_leaves_none():
    async def story():
        for turns in range(12):
            task = asyncio.create_task(check_engine(REAL, 60.0, lambda _: None))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: not checking_processes())

    asyncio.run(story())


def test_a_check_that_dies_says_so():
    async def story():
        task, pid = await stopped_check()
        os.kill(pid, signal.SIGKILL)
        await task

    with pytest.raises(EngineEnvironmentError, match="the process that checks its model killed by SIGKILL"):
        asyncio.run(story())


def test_a_mistake_is_told_from_a_machine_that_cannot():
    with pytest.raises(EngineConfigError):
        asyncio.run(check_engine(EngineConfig("e", ModelConfig("fake:x=1")), 60.0, lambda _: None))
