"""Processes that were started early are each used once, for the configuration that they have, and none is left over."""

import asyncio
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

    def __init__(self, role: Peer, config: EngineConfig) -> None:
        self.role, self.config = role, config
        self.is_killed = self.is_gone = False

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

    async def start(role: Peer, config: EngineConfig) -> NotedChild:
        children.append(NotedChild(role, config))
        return children[-1]

    monkeypatch.setattr(child_module.Child, "start", start)
    return children


def test_each_is_given_out_once_and_a_later_start_is_a_new_one(started: list[NotedChild], tmp_path: Path) -> None:
    async def story() -> None:
        async with EarlyChildren.on(tmp_path / "spool", [ENGINE, OTHER]) as early:
            assert len(started) == 4
            for config in (OTHER, ENGINE):
                for role in (Peer.TEXT, Peer.ENGINE):
                    child: object = await early.start(role, config)
                    assert child in started[:4]
                    assert (child.role, child.config) == (role, config)  # type: ignore[attr-defined]
            assert len(started) == 4
            assert await early.start(Peer.ENGINE, ENGINE) is started[4]  # type: ignore[comparison-overlap]
        assert not any(child.is_killed for child in started)

    asyncio.run(story())


def test_one_of_another_configuration_is_not_used_and_those_that_nobody_took_are_ended(
    started: list[NotedChild], tmp_path: Path
) -> None:
    async def story() -> None:
        async with EarlyChildren.on(tmp_path / "spool", [ENGINE]) as early:
            changed = EngineConfig("e", ModelConfig("fake:step_ms=2"))
            assert await early.start(Peer.ENGINE, changed) is started[2]  # type: ignore[comparison-overlap]
        assert [child.is_gone for child in started] == [True, True, False]

    asyncio.run(story())


def test_they_are_ended_where_the_daemon_does_not_come_up(started: list[NotedChild], tmp_path: Path) -> None:
    async def story() -> None:
        async with EarlyChildren.on(tmp_path / "spool", [ENGINE]):
            raise KeyError("no daemon")

    with pytest.raises(KeyError, match="no daemon"):
        asyncio.run(story())
    assert [child.is_gone for child in started] == [True, True]


def test_nothing_is_started_for_a_spool_that_cannot_be_had(started: list[NotedChild], tmp_path: Path) -> None:
    """Another daemon runs there, or there can be none; the daemon itself says so."""
    (tmp_path / "file").touch()

    async def story(spool: Path) -> None:
        async with EarlyChildren.on(spool, [ENGINE]):
            pass

    with lock_of_spool(tmp_path / "spool"):
        asyncio.run(story(tmp_path / "spool"))
    asyncio.run(story(tmp_path / "file" / "spool"))
    assert started == []


def test_the_spool_is_free_again_for_the_daemon(started: list[NotedChild], tmp_path: Path) -> None:
    async def story() -> None:
        async with EarlyChildren.on(tmp_path / "spool", [ENGINE]):
            with lock_of_spool(tmp_path / "spool"):
                assert len(started) == 2

    asyncio.run(story())
