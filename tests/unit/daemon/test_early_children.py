"""Processes that were started early are each used once, for the configuration that they have, and none is left over."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon import child as child_module
from daemon.early_children import EarlyChildren
from daemon.spool_lock import lock_of_spool
from pipelines.channel import Peer
from pipelines.config import EngineConfig, ModelConfig

ENGINE = EngineConfig("e", ModelConfig("fake:"))
OTHER = EngineConfig("f", ModelConfig("fake:"))


class NotedChild:
    """What is started in place of a process."""

    def __init__(self, role: Peer) -> None:
        self.role = role
        self.config: EngineConfig | None = None
        self.is_killed = self.is_gone = False

    def configure(self, config: EngineConfig) -> None:
        assert self.config is None, "it is told once"
        self.config = config

    def kill(self) -> None:
        self.is_killed = True

    async def read_until_death(self, *_: object) -> str:
        assert self.is_killed
        self.is_gone = True
        return "killed"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NotedChild]:
    """All that are, in order."""
    children: list[NotedChild] = []

    async def launch(role: Peer) -> NotedChild:
        children.append(NotedChild(role))
        return children[-1]

    monkeypatch.setattr(child_module.Child, "launch", launch)
    return children


@asynccontextmanager
async def launched() -> AsyncIterator[EarlyChildren]:
    early = await EarlyChildren.launch()
    try:
        yield early
    finally:
        await early.end()


def configs(started: list[NotedChild]) -> list[EngineConfig | None]:
    return [child.config for child in started]


def test_a_pair_is_launched_before_there_is_a_configuration_and_gets_the_first(
    started: list[NotedChild], tmp_path: Path
) -> None:
    async def story() -> None:
        async with launched() as early:
            assert [child.role for child in started] == [Peer.ENGINE, Peer.TEXT]
            assert configs(started) == [None, None]
            await early.configure(tmp_path / "spool", [ENGINE, OTHER])
            assert configs(started) == [ENGINE, ENGINE, OTHER, OTHER]

    asyncio.run(story())


def test_each_is_given_out_once_and_a_later_start_is_a_new_one(started: list[NotedChild], tmp_path: Path) -> None:
    async def story() -> None:
        async with launched() as early:
            await early.configure(tmp_path / "spool", [ENGINE, OTHER])
            for config in (OTHER, ENGINE):
                for role in (Peer.TEXT, Peer.ENGINE):
                    child: object = await early.start(role, config)
                    assert child in started[:4]
                    assert (child.role, child.config) == (role, config)  # type: ignore[attr-defined]
            assert len(started) == 4
            assert await early.start(Peer.ENGINE, ENGINE) is started[4]  # type: ignore[comparison-overlap]
            assert started[4].config == ENGINE
        assert not any(child.is_killed for child in started)

    asyncio.run(story())


def test_one_of_another_configuration_is_not_used_and_those_that_nobody_took_are_ended(
    started: list[NotedChild], tmp_path: Path
) -> None:
    async def story() -> None:
        async with launched() as early:
            await early.configure(tmp_path / "spool", [ENGINE])
            changed = EngineConfig("e", ModelConfig("fake:step_ms=2"))
            assert await early.start(Peer.ENGINE, changed) is started[2]  # type: ignore[comparison-overlap]
        assert [child.is_gone for child in started] == [True, True, False]

    asyncio.run(story())


def test_where_no_engine_is_to_be_loaded_the_pair_is_ended_at_once(started: list[NotedChild], tmp_path: Path) -> None:
    async def story() -> None:
        async with launched() as early:
            await early.configure(tmp_path / "spool", [])
            assert [child.is_gone for child in started] == [True, True]

    asyncio.run(story())


@pytest.mark.parametrize("is_configured", [True, False])
def test_they_are_ended_where_the_daemon_does_not_come_up(
    started: list[NotedChild], tmp_path: Path, is_configured: bool
) -> None:
    """Because of its settings, or of something else."""

    async def story() -> None:
        async with launched() as early:
            if is_configured:
                await early.configure(tmp_path / "spool", [ENGINE])
            raise KeyError("no daemon")

    with pytest.raises(KeyError, match="no daemon"):
        asyncio.run(story())
    assert [child.is_gone for child in started] == [True, True]


def test_nothing_loads_for_a_spool_that_cannot_be_had(started: list[NotedChild], tmp_path: Path) -> None:
    """Another daemon runs there, or there can be none; the daemon itself says so."""
    (tmp_path / "file").touch()

    async def story(spool: Path) -> None:
        async with launched() as early:
            await early.configure(spool, [ENGINE])

    with lock_of_spool(tmp_path / "spool"):
        asyncio.run(story(tmp_path / "spool"))
    asyncio.run(story(tmp_path / "file" / "spool"))
    assert configs(started) == [None] * 4
    assert all(child.is_gone for child in started)


def test_where_no_process_can_be_started_whoever_needs_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Peer) -> NotedChild:
        raise OSError(errno.EAGAIN, "too many processes")

    monkeypatch.setattr(child_module.Child, "launch", refuse)

    async def story() -> None:
        async with launched() as early:
            await early.configure(tmp_path / "spool", [ENGINE])
            with pytest.raises(OSError, match="too many processes"):
                await early.start(Peer.ENGINE, ENGINE)

    asyncio.run(story())


def test_the_spool_is_free_again_for_the_daemon(started: list[NotedChild], tmp_path: Path) -> None:
    async def story() -> None:
        async with launched() as early:
            await early.configure(tmp_path / "spool", [ENGINE])
            with lock_of_spool(tmp_path / "spool"):
                assert configs(started) == [ENGINE, ENGINE]

    asyncio.run(story())
