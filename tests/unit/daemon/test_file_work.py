"""When a file's answers become durable, and when it ends."""

import asyncio

from file_world import Engine, World

from daemon import file_work
from daemon.file_feed import FileFeed
from daemon.line_reader import QUIET


def test_the_last_answer_is_not_kept_waiting_for_more(tmp_path, monkeypatch):
    """Answers wait for others to share a sync; behind the last one there are none."""
    monkeypatch.setattr(file_work, "GROUP_S", 3600.0)
    world = World(tmp_path, lines=3)

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not world.task.done()
        world.engine.answer(1)
        return await world.end()

    asyncio.run(story())
    assert len(world.lines("output")) == 3
    assert world.batch["status"] == "completed"


def test_others_are_fed_while_a_file_has_nothing_for_a_while(tmp_path, monkeypatch):
    """Blank lines without end would hold up the daemon's only loop, and with it all other files."""
    world = World(tmp_path)
    world.path.write_bytes(b'{"prompt": "a"}\n' + b"\n" * (20 * QUIET) + b'{"prompt": "b"}\n')
    taken, take = [], FileFeed.take

    def counted(self, max_requests, max_tokens):
        found = take(self, max_requests, max_tokens)
        taken.append(len(found))
        return found

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 2)
        world.engine.answer(2)
        return await world.end()

    monkeypatch.setattr(FileFeed, "take", counted)
    assert asyncio.run(story()).num_completed == 2
    assert sum(taken) == 2
    assert taken.count(0) >= 19


def test_a_cancelled_file_comes_to_its_end_behind_what_is_blank(tmp_path):
    world = World(tmp_path)
    world.path.write_bytes(b'{"prompt": "a"}\n' * 100 + b"\n" * (20 * QUIET) + b'{"prompt": "b"}\n')

    async def story():
        world.start(Engine())
        await world.until(lambda: world.engine.submissions)
        world.run.cancel()
        return await world.end()

    assert asyncio.run(story()).num_failed == 101
    assert world.batch["status"] == "cancelled"
