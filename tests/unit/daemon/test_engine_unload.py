"""An engine is loaded while something needs it."""

from engine_world import World

from daemon.status import EngineState
from pipelines.channel import Peer
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import (
    Failed,
)


def test_an_engine_is_loaded_on_first_use_and_unloaded_when_nothing_came_for_long(monkeypatch):
    """A request that comes while it is being unloaded is answered by the next one."""
    world = World(monkeypatch, idle_unload_s=5.0)

    async def story():
        await world.let_pass(10)
        assert (world.children, world.client.state) == ([], EngineState.UNLOADED)
        world.submit("a")
        await world.settle()
        assert world.client.state is EngineState.STARTING
        await world.up()
        await world.let_pass(20)
        assert len(world.children) == 2, "a request is on its way"
        world.answer("a")
        await world.let_pass(3)
        world.submit("b")
        world.answer("b")
        await world.let_pass(4)
        assert world.client.state is EngineState.READY
        await world.let_pass(3)
        assert world.client.state is EngineState.UNLOADED
        world.submit("c")
        await world.let_pass(1)
        await world.up()
        world.answer("c")
        assert sorted(world.answers) == ["a", "b", "c"]
        assert (len(world.children), world.client.num_restarts) == (4, 0)
        assert all(child.died.done() for child in world.children[:2])

    world.play(story)


def test_an_engine_that_is_to_be_kept_from_now_on_is_loaded(monkeypatch):
    world = World(monkeypatch, idle_unload_s=5.0)

    async def story():
        await world.settle()
        assert world.children == []
        world.client.idle_unload_s = None
        await world.up()
        await world.let_pass(20)
        assert (len(world.children), world.client.state) == (2, EngineState.READY)
        world.client.idle_unload_s = 5.0
        await world.let_pass(7)
        assert world.client.state is EngineState.UNLOADED

    world.play(story)


def test_other_settings_for_an_unloaded_engine_are_tried_at_once(monkeypatch):
    """Else nobody would know whether they are good; then it goes to sleep again."""
    world = World(monkeypatch, idle_unload_s=5.0)

    async def story():
        await world.settle()
        world.client.restart(EngineConfig("e", ModelConfig("fake:step_ms=1")), falls_back=True)
        await world.settle()
        world.last(Peer.ENGINE).say([Failed("no such model", is_config=True)])
        world.last(Peer.ENGINE).die()
        await world.until(lambda: world.client.failed_change)
        await world.let_pass(1)
        await world.up()
        assert (world.client.state, world.client.config.model.path) == (EngineState.READY, "fake:")
        await world.let_pass(7)
        assert world.client.state is EngineState.UNLOADED

    world.play(story)
