"""When a file's answers become durable, and when it ends."""

import asyncio

from file_world import Engine, World

from daemon import file_work


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
