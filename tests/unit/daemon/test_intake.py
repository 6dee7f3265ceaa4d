"""How often an inbox is listed."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemon.durable import DiskStorage
from daemon.folders import Folders
from daemon.inbox import Inbox, claim_time
from daemon.intake import Intake
from daemon.settings_daemon import DaemonSettings


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    folders = Folders(tmp_path)
    folders.make()
    return Intake("p", folders, DaemonSettings(spool=tmp_path), DiskStorage(), claim_time)


def test_a_listing_that_takes_long_is_not_made_again_at_once(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge folder on a slow share takes a tenth of the time and no more."""
    monkeypatch.setattr(Inbox, "look", lambda _, __: time.sleep(0.05))
    asyncio.run(intake.look())
    assert intake._next_look_s - time.monotonic() > 0.4


def test_a_listing_that_waited_for_a_thread_is_made_again_soon(intake: Intake) -> None:
    """A file that is dropped behind it would be seen so many times later as the wait was long."""

    async def story() -> None:
        loop, may_go_on = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocking = loop.run_in_executor(None, may_go_on.wait)
        looking = asyncio.create_task(intake.look())
        await asyncio.sleep(0.3)
        may_go_on.set()
        await blocking
        await looking

    asyncio.run(story())
    assert intake._next_look_s - time.monotonic() < 1.0
