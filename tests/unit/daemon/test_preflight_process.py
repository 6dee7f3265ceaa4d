"""Settings of engines are checked in processes of their own, which end whatever happens."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from daemon.errors import EngineConfigError, EngineEnvironmentError
from daemon.preflight import check_engine, check_engines
from daemon.settings_sections import EngineSettings
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


@pytest.fixture
def endless(tmp_path):
    """A model that takes for ever to be looked at."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").touch()
    os.mkfifo(tmp_path / "m" / "config.json")
    return str(tmp_path / "m")


def test_each_engine_that_cannot_be_started_is_named_with_its_reason():
    engines = {"a": engine("fake:"), "b": engine("fake:nonsense=1"), "c": engine("./no/such/model")}
    problems = asyncio.run(check_engines(engines, lambda _: None))
    assert [problem.partition(":")[0] for problem in problems] == ["engine b", "engine c"]
    assert "found option 'nonsense'" in problems[0]
    assert "found no such folder" in problems[1]
    assert checking_processes() == []


def test_a_check_that_does_not_get_on_is_ended(endless):
    with pytest.raises(EngineEnvironmentError, match=r"did not get on for 0\.5 s"):
        asyncio.run(check_engine(EngineConfig("e", ModelConfig(endless)), 0.5, lambda _: None))
    assert checking_processes() == []


def test_a_check_that_nobody_wants_any_more_leaves_no_process(endless):
    async def story():
        task = asyncio.create_task(check_engine(EngineConfig("e", ModelConfig(endless)), 60.0, lambda _: None))
        await until(checking_processes)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await until(lambda: not checking_processes())

    asyncio.run(story())


def test_a_check_that_dies_says_so(endless):
    async def story():
        task = asyncio.create_task(check_engine(EngineConfig("e", ModelConfig(endless)), 60.0, lambda _: None))
        (pid,) = await until(checking_processes)
        os.kill(pid, signal.SIGKILL)
        await task

    with pytest.raises(EngineEnvironmentError, match="the process that checks its model killed by SIGKILL"):
        asyncio.run(story())


def test_a_mistake_is_told_from_a_machine_that_cannot():
    with pytest.raises(EngineConfigError):
        asyncio.run(check_engine(EngineConfig("e", ModelConfig("fake:x=1")), 60.0, lambda _: None))
