"""A process that has work and does not get on is killed; one that gets on in whatever way is not."""

from engine_world import World

from pipelines.channel import Peer
from pipelines.core.request import (
    DeviceTime,
    EngineStats,
    Progress,
)


def _stats(num_running=1, num_batched=()):
    time = DeviceTime(0, 0, 0, 0, 0, 0, 0)
    return EngineStats(time, 0, num_running, 0, 0, 0, 0, (), num_batched)


def test_an_engine_with_work_that_does_not_get_on_is_killed_as_if_it_had_died(monkeypatch):
    """Steps and answers keep it alive, reports alone do not; an engine without work may be silent for ever."""
    world = World(monkeypatch, stall_s=5.0)

    async def story():
        await world.up()
        await world.let_pass(8)
        assert len(world.children) == 2
        world.submit("a")
        engine = world.last(Peer.ENGINE)
        for _ in range(4):
            await world.let_pass(3)
            engine.say([_stats(num_batched=(1,))])
        assert len(world.children) == 2
        while not world.client.num_restarts:
            await world.let_pass(1)
            engine.say([_stats()])
        assert "killed: it did not get on for 5 s (engines.e.stall_s)" in world.client._restarts.last_death
        assert world.client._restarts.last_death.startswith("the engine process")
        await world.up()
        assert list(world.in_text()) == ["a"]

    world.play(story)


def test_a_text_process_that_hangs_is_killed_and_the_engine_keeps_its_model(monkeypatch):
    """The engine says that it has nothing to do while requests are on their way."""
    world = World(monkeypatch, stall_s=3.0)

    async def story():
        await world.up()
        world.submit("a")
        engine = world.last(Peer.ENGINE)
        while not world.client.num_restarts:
            await world.let_pass(1)
            engine.say([_stats(num_running=0)])
        assert world.client._restarts.last_death.startswith("the text process")
        assert world.last(Peer.ENGINE) is engine

    world.play(story)


def test_loading_gets_on_by_what_it_reads(monkeypatch):
    """A process that has no numbers to tell reads files and fills memory; one that hangs does neither."""
    world = World(monkeypatch, stall_s=3.0)

    async def story():
        await world.settle()
        engine = world.last(Peer.ENGINE)
        for _ in range(5):
            await world.let_pass(2)
            engine.moves = True
        assert world.client.num_restarts == 0
        assert world.client.monitor.heartbeat.age_s(world.now_s) < 3
        await world.let_pass(5)
        await world.until(lambda: world.client.num_restarts == 1)

    world.play(story)


def test_loading_gets_on_by_what_it_says(monkeypatch):
    """As long as it tells of further pieces; then it is killed."""
    world = World(monkeypatch, stall_s=3.0)

    async def story():
        await world.settle()
        engine = world.last(Peer.ENGINE)
        for number in range(5):
            await world.let_pass(2)
            engine.say([Progress("load", number / 10)])
        assert world.client.num_restarts == 0
        await world.let_pass(5)
        await world.until(lambda: world.client.num_restarts == 1)

    world.play(story)
