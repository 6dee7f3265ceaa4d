"""How new files are noticed: by events where they come, by polling where they do not, and what is said about it."""

import asyncio
import importlib
import logging
import os
from contextlib import asynccontextmanager, suppress

import pytest

from daemon import watch
from daemon.settings_daemon import Watch
from daemon.waiting import wait_for_event
from daemon.watch import HELD_BACK_S, PROBE, FolderWatch


@asynccontextmanager
async def watching(folder, mode):
    """A watch that has been started and is stopped at the end."""
    found = FolderWatch(folder, mode)
    await found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def no_events(monkeypatch):
    """Let events not come, as from a file system that sends none."""
    monkeypatch.setattr(watch, "PROBE_WAIT_S", 0.05)
    monkeypatch.setattr(watch, "_touch", lambda path: path.parent)


@pytest.fixture
def on_nfs(monkeypatch):
    monkeypatch.setattr(watch, "file_system_of", lambda _: "nfs4")


@pytest.mark.parametrize("mode", [Watch.AUTO, Watch.EVENTS])
def test_a_dropped_file_nudges_and_the_probe_leaves_nothing(tmp_path, mode):
    async def scenario():
        async with watching(tmp_path, mode) as found:
            assert found.how == "events"
            assert list(tmp_path.iterdir()) == []
            found.nudge.clear()
            (tmp_path / "a.jsonl").write_text("x")
            assert await wait_for_event(found.nudge, 20)

    asyncio.run(scenario())


def test_a_rename_from_the_name_that_says_so_is_of_a_whole_file(tmp_path):
    """And none that is made, written, linked, or renamed by a tool that copies folders and brings options behind their file."""

    async def scenario():
        async with watching(tmp_path, Watch.EVENTS) as found:
            (tmp_path / "made.jsonl").write_text("x")
            (tmp_path / "made.jsonl").rename(tmp_path / "renamed.jsonl")
            (tmp_path / ".linked.tmp").write_text("x")
            os.link(tmp_path / ".linked.tmp", tmp_path / "linked.jsonl")
            names = {
                ".a.jsonl.tmp": "a.jsonl",
                ".b.jsonl.Xy12Zw": "b.jsonl",  # rsync
                ".syncthing.c.csv.tmp": "c.csv",
                "d.txt.partial": "d.txt",  # rclone
                ".e.jsonl.tmp": "f.jsonl",
                ".gapless-submit-17-g.jsonl.tmp": "g~2.jsonl",
            }
            for unfinished, name in names.items():
                (tmp_path / unfinished).write_text("x")
                (tmp_path / unfinished).rename(tmp_path / name)
            whole = set()
            while "g~2.jsonl" not in whole:
                assert await wait_for_event(found.nudge, 20)
                found.nudge.clear()
                whole |= found.take_whole()
            assert whole == {"a.jsonl", "g~2.jsonl"}
            assert found.take_whole() == set(), "each is told once"

    asyncio.run(scenario())


def test_watchdog_holds_events_back_for_as_long_as_is_allowed_for():
    delays = []
    for module, name in (
        ("inotify_buffer", "InotifyBuffer"),
        ("inotify_move_event_grouper", "InotifyMoveEventGrouper"),
    ):
        with suppress(ImportError):  # one of watchdog 6, the other of 7
            delays.append(getattr(importlib.import_module(f"watchdog.observers.{module}"), name).delay)
    assert delays == [HELD_BACK_S]


@pytest.mark.usefixtures("no_events")
def test_where_no_events_come_auto_polls_and_says_so(tmp_path, caplog):
    async def scenario():
        async with watching(tmp_path, Watch.AUTO) as found:
            assert found.how == "polling, as no event came within 0.05 s"
            assert found._observer is None

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert "no event came" in caplog.text
    assert str(tmp_path) in caplog.text


@pytest.mark.usefixtures("no_events")
def test_where_no_events_come_and_they_were_asked_for_there_is_a_warning(tmp_path, caplog):
    async def scenario():
        async with watching(tmp_path, Watch.EVENTS) as found:
            assert "none came" in found.how
            assert found._observer is not None, "they may still come"

    asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.usefixtures("on_nfs")
def test_a_network_file_system_is_polled_at_once_without_a_probe(tmp_path, monkeypatch):
    """Our own probe would send an event there; another machine's file does not."""
    monkeypatch.setattr(watch, "_touch", lambda _: pytest.fail("probed"))

    async def scenario():
        async with watching(tmp_path, Watch.AUTO) as found:
            assert found.how == "polling, as other machines' changes on nfs4 send no events"

    asyncio.run(scenario())


@pytest.mark.usefixtures("on_nfs")
def test_the_end_of_a_watch_is_no_error(tmp_path, caplog):
    """Wherever between two reads its thread is when it is stopped, nothing is logged; what else watchdog says is."""

    async def scenario():
        async with watching(tmp_path, Watch.EVENTS) as found:
            return next(iter(found._observer.emitters))

    emitter = asyncio.run(scenario())
    emitter.join(20)
    caplog.clear()
    emitter.queue_events(0)  # as the thread does that has just been stopped
    assert caplog.messages == []
    logging.getLogger("watchdog.observers.inotify").warning("Inotify queue overflowed")
    assert caplog.messages == ["Inotify queue overflowed"]


def test_events_can_be_insisted_on(tmp_path):
    async def scenario():
        async with watching(tmp_path, Watch.EVENTS) as found:
            assert found.how == "events"

    asyncio.run(scenario())


def test_polling_watches_nothing(tmp_path):
    async def scenario():
        async with watching(tmp_path, Watch.POLL) as found:
            assert found.how.startswith("polling")
            (tmp_path / "a.jsonl").write_text("x")
            assert not await wait_for_event(found.nudge, 0.1)

    asyncio.run(scenario())


def test_a_system_without_watches_left_is_polled(tmp_path, monkeypatch):
    """The kernel's limit of watches is reached."""

    def refuse(*_):
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(watch, "_observe", refuse)

    async def scenario():
        async with watching(tmp_path, Watch.AUTO) as found:
            assert found.how == "polling, as the system gives no events (inotify watch limit reached)"

    asyncio.run(scenario())


@pytest.mark.parametrize("is_looked_at_while_away", [True, False])
def test_a_folder_made_anew_is_watched_again(tmp_path, is_looked_at_while_away):
    folder = tmp_path / "inbox"
    folder.mkdir()

    async def scenario():
        async with watching(folder, Watch.AUTO) as found:
            folder.rename(tmp_path / "old")
            if is_looked_at_while_away:
                await found.renew_if_lost()
            folder.mkdir()
            await found.renew_if_lost()
            assert found.how == "events"
            found.nudge.clear()
            (folder / "a.jsonl").write_text("x")
            assert await wait_for_event(found.nudge, 20)

    asyncio.run(scenario())


def test_a_flood_of_events_is_one_nudge(tmp_path):
    """More than any queue holds: nothing is counted on but that there was something."""

    async def scenario():
        async with watching(tmp_path, Watch.EVENTS) as found:
            found.nudge.clear()
            for number in range(20_000):
                (tmp_path / f"{number % 50}.jsonl").touch()
            assert await wait_for_event(found.nudge, 20)

    asyncio.run(scenario())


def test_the_probe_is_a_name_that_no_inbox_takes():
    assert PROBE.startswith(".")
