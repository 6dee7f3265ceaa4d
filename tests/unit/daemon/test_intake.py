"""How often an inbox is listed."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemon.durable import DiskStorage
from daemon.folders import Folders
from daemon.inbox import ClaimedFile, Inbox, claim_time
from daemon.intake import Intake
from daemon.settings_daemon import DaemonSettings, Watch
from daemon.waiting import wait_for_event


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    folders = Folders(tmp_path)
    folders.make()
    return Intake("p", folders, DaemonSettings(spool=tmp_path), DiskStorage(), claim_time)


def test_a_listing_that_takes_long_is_not_made_again_at_once(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge folder on a slow share takes a tenth of the time and no more."""
    monkeypatch.setattr(Inbox, "look", lambda *_: time.sleep(0.05))
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


def test_a_file_renamed_into_the_inbox_is_claimed_without_settling(tmp_path: Path) -> None:
    """Its event is what says so; the settling that others wait for would outlast the test."""
    folders = Folders(tmp_path)
    folders.make()
    settings = DaemonSettings(spool=tmp_path, settle_s=3600.0, rescan_s=0.05, watch=Watch.EVENTS)
    intake = Intake("p", folders, settings, DiskStorage(), claim_time)

    async def story() -> list[str]:
        await intake.start()
        (folders.inbox / "written.jsonl").write_text("x")
        (folders.inbox / ".renamed.jsonl.tmp").write_text("x")
        (folders.inbox / ".renamed.jsonl.tmp").rename(folders.inbox / "renamed.jsonl")
        deadline_s = time.monotonic() + 60
        claimed: list[ClaimedFile] = []
        while not claimed and time.monotonic() < deadline_s:
            await intake.look()
            claimed = await intake.claim(10, [])
            if not claimed:
                await intake.wait(is_stuck=False)
        await intake.claims_synced()
        intake.stop()
        return [file.name for file in claimed]

    assert asyncio.run(story()) == ["renamed.jsonl"]
    assert intake.num_waiting == 1


RESCAN_S = 60.0
WATCHED = "events"


async def waits_around_a_claim(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """How long it would wait for an event before a claim and after it."""
    waits: list[float] = []

    async def note(event: asyncio.Event, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return await wait_for_event(event, 0)

    monkeypatch.setattr("daemon.intake.wait_for_event", note)
    folders = Folders(folder)
    folders.make()
    settings = DaemonSettings(spool=folder, settle_s=0.0, rescan_s=RESCAN_S)
    intake = Intake("p", folders, settings, DiskStorage(), claim_time)
    intake._watch.how = how
    await intake.wait(is_stuck=False)
    (folders.inbox / "a.jsonl").write_text("{}")
    while not await intake.claim(1, []):
        intake._next_look_s = 0.0
        await intake.look()
    await intake.claims_synced()
    await intake.wait(is_stuck=False)
    return waits[0], waits[1]


def test_a_file_dropped_behind_a_claim_is_not_noticed_later_than_another(tmp_path, monkeypatch):
    """A claim moves a file away, behind which watchdog keeps all events for a while."""
    before_s, after_s = asyncio.run(waits_around_a_claim(tmp_path, WATCHED, monkeypatch))
    assert (before_s, after_s) == (RESCAN_S, 0.02)


def test_where_no_events_are_waited_for_a_claim_changes_nothing(tmp_path, monkeypatch):
    assert asyncio.run(waits_around_a_claim(tmp_path, "polling", monkeypatch)) == (RESCAN_S, RESCAN_S)


def test_events_are_awaited_again_when_those_behind_a_claim_have_come(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.intake.HELD_BACK_S", 0.0)
    assert asyncio.run(waits_around_a_claim(tmp_path, WATCHED, monkeypatch)) == (RESCAN_S, RESCAN_S)
