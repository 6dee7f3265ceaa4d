"""An engine gets other settings: its processes are started anew, and nothing that waits is lost or blamed."""

from dataclasses import replace

import pytest
from engine_world import World

from daemon.status import EngineState
from pipelines.channel import Peer
from pipelines.config import BatchConfig, EngineConfig, ModelConfig, Schedule
from pipelines.core.request import (
    Failed,
    Limits,
    Progress,
    Ready,
)


def test_other_settings_start_both_processes_anew_and_nothing_is_suspected(monkeypatch):
    """What was in flight is sent again, under a new key, with no death to its name."""
    world = World(monkeypatch)
    new = EngineConfig("e", ModelConfig("fake:step_ms=1"))

    async def story():
        await world.up()
        world.submit("a")
        (old_key,) = world.in_text().values()
        world.client.restart(new, falls_back=True)
        await world.is_loading(2)
        assert (world.client.is_changing, world.client.is_ready.is_set()) == (True, False)
        await world.up()
        (key,) = world.in_text().values()
        assert key != old_key
        assert (world.client.is_changing, world.client.failed_change, world.client.num_restarts) == (False, "", 0)
        assert world.client.config is world.client.allocated is new
        assert world.deaths == {}

    world.play(story)


@pytest.mark.parametrize("role", [Peer.TEXT, Peer.ENGINE])
def test_settings_that_cannot_be_loaded_lead_back_to_the_last_good_ones(monkeypatch, role):
    """Whichever process fails; `run` goes on, and requests that wait are answered by the old model."""
    world = World(monkeypatch)

    async def story():
        await world.up()
        good = world.client.config
        world.client.restart(EngineConfig("e", ModelConfig("bad")), falls_back=True)
        await world.is_loading(2)
        world.submit("a")
        world.last(role).say([Failed("no such model", is_config=True)])
        world.last(role).die()
        await world.is_loading(3)
        assert world.client.failed_change == "engine e: no such model"
        assert not world.client.is_changing
        await world.up()
        assert world.client.config is good
        assert list(world.in_text()) == ["a"]
        assert world.client.state is EngineState.READY

    world.play(story)


def test_an_edit_while_others_are_loaded_still_leads_back_to_what_was_good(monkeypatch):
    """Not to those that were being loaded, of which nobody knows."""
    world = World(monkeypatch)

    async def story():
        await world.up()
        good = world.client.config
        for number, path in enumerate(("slow", "bad"), start=2):
            world.client.restart(EngineConfig("e", ModelConfig(path)), falls_back=True)
            await world.is_loading(number)
        world.last(Peer.ENGINE).die()
        await world.is_loading(4)
        assert world.client.config is good

    world.play(story)


def test_a_process_that_was_being_started_with_settings_that_hold_no_more_is_ended(monkeypatch):
    """The edit comes while the operating system makes the processes."""
    world = World(monkeypatch)

    async def story():
        world.client.restart(EngineConfig("e", ModelConfig("new")), falls_back=False)
        await world.until(lambda: len(world.children) >= 2)
        await world.settle()
        assert all(child.is_ended_by_us for child in world.children[:-2])
        await world.up()
        assert world.client.state is EngineState.READY

    world.play(story)


def test_a_process_that_is_ended_for_other_settings_does_not_count_as_up_any_more(monkeypatch):
    """It had finished loading when it was killed, and that is read after: what it would be sent would be lost with it."""
    world = World(monkeypatch)

    async def story():
        await world.up(Peer.TEXT)
        world.submit("a")
        old_engine = world.last(Peer.ENGINE)
        world.client.restart(EngineConfig("e", ModelConfig("new")), falls_back=True)
        old_engine.say([Progress("load", 1.0), Ready("old", 100, 10)])
        assert (world.client.is_ready.is_set(), world.client.is_changing) == (False, True)
        await world.is_loading(2)
        assert world.client.describe() == ""
        await world.up()
        assert list(world.in_text()) == ["a"]
        world.answer("a")

    world.play(story)
    assert world.client.model == "m"
    assert len(world.answers["a"]) == 1


def test_an_engine_that_is_not_vital_is_paused_where_it_cannot_be_started(monkeypatch):
    """The daemon goes on; with settings that are good it comes up."""
    world = World(monkeypatch, is_vital=False)

    async def story():
        await world.settle()
        for role in (Peer.TEXT, Peer.ENGINE):
            world.last(role).say([Failed("no such model", is_config=True)])
            world.last(role).die()
            await world.settle()
        await world.until(lambda: world.client.state is EngineState.DOWN)
        assert "no such model" in world.client.reason
        world.client.restart(EngineConfig("e", ModelConfig("fake:")), falls_back=False)
        await world.is_loading(2)
        await world.up()
        assert world.client.state is EngineState.READY

    world.play(story)


def test_limits_reach_a_running_engine_and_one_that_is_started_again(monkeypatch):
    """After a death it allocates as before and then works under what holds."""
    world = World(monkeypatch)

    async def story():
        await world.up()
        assert world.last(Peer.ENGINE).sent == []
        limited = replace(world.client.config, schedule=Schedule.SYNC, batch=BatchConfig(2, 64))
        world.client.adjust(limited)
        assert world.last(Peer.ENGINE).sent == [Limits(is_async=False, max_num_seqs=2, max_num_batched_tokens=64)]
        assert world.client.credits.num_left == 64
        world.last(Peer.ENGINE).die()
        await world.up()
        assert world.last(Peer.ENGINE).sent == [Limits(is_async=False, max_num_seqs=2, max_num_batched_tokens=64)]
        assert world.client.allocated.batch.max_num_seqs == 256

    world.play(story)


def test_an_engine_that_ends_with_the_daemon_is_not_one_that_is_given_up(monkeypatch):
    """Its pipelines would say so, and ask for a `gapless resume` that mends nothing."""
    world = World(monkeypatch)
    world.play(world.up)
    assert world.client.state is EngineState.ENDED
