"""Who ended a process: we, somebody else, or itself."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from daemon.child import Child
from pipelines.channel import Peer
from pipelines.config import EngineConfig, ModelConfig

GOOD = EngineConfig("e", ModelConfig("fake:"))
BROKEN = EngineConfig("e", ModelConfig("fake:load_fails=1"))


def by_hand(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)


def crash(child: Child) -> None:
    os.kill(child.pid, signal.SIGSEGV)


def as_hanging(child: Child) -> None:
    child.kill_for("it hangs")


@pytest.mark.parametrize(
    ("end", "how", "expected"),
    [
        (by_hand, "killed by SIGKILL", True),
        (crash, "killed by SIGSEGV", False),
        (Child.kill, "killed by SIGKILL", False),
        (as_hanging, "was killed: it hangs", False),
    ],
)
def test_a_process_that_is_ended_from_outside_is_told_from_others(
    end: Callable[[Child], None], how: str, expected: bool
) -> None:
    assert asyncio.run(story(GOOD, end)) == (how, expected)


def test_a_process_that_ends_by_itself_was_killed_by_nobody() -> None:
    assert asyncio.run(story(BROKEN, lambda _: None)) == ("exited with code 1", False)


async def story(config: EngineConfig, end: Callable[[Child], None]) -> tuple[str, bool]:
    child = await Child.start(Peer.ENGINE, config)
    end(child)
    how = await child.read_until_death(lambda _: None, lambda _: None)
    return how, child.was_killed_by_others
