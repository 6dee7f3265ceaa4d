"""Requests given to an engine are answered, whatever dies."""

import asyncio

import pytest
from engine_world import World

from daemon.ending import EndCause, answer_of
from daemon.result_line import LineError
from daemon.status import EngineState
from daemon.submission import Unanswered
from pipelines.channel import Peer
from pipelines.core.request import (
    Cancel,
    Choice,
    FinishReason,
    RequestOutput,
    RequestRefused,
)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_requests_wait_for_both_processes_and_are_answered_once(world):
    async def story():
        world.submit("a", "b")
        await world.up(Peer.TEXT)
        assert world.in_text() == {}
        await world.up(Peer.ENGINE)
        assert set(world.in_text()) == {"a", "b"}
        world.answer("a")
        world.answer("a")

    world.play(story)
    assert len(world.answers["a"]) == 1
    assert world.client.credits.num_outstanding == 1


def test_the_death_of_the_engine_ends_the_text_process_and_sends_again_what_was_in_flight(world):
    """Under new keys; the text process's end is no death of its own."""

    async def story():
        await world.up()
        world.submit("a", "b")
        old_text, old_keys = world.last(Peer.TEXT), world.in_text()
        world.last(Peer.ENGINE).die()
        await world.settle()
        assert old_text.died.done()
        await world.up()
        assert set(world.in_text()) == {"a", "b"}
        assert not set(world.in_text().values()) & set(old_keys.values())
        old_text.say([RequestOutput(old_keys["a"], (Choice("x", FinishReason.STOP, 1),), 1, 0)])
        assert world.answers == {}, "said under an old key"
        old_text.say_to_other(b"on its way to the dead engine")
        assert world.last(Peer.ENGINE).passed_on == []

    world.play(story)
    assert world.client.num_restarts == 1
    assert world.deaths == {"a": 1, "b": 1}


def test_the_death_of_the_text_process_leaves_the_engine_up_and_has_it_drop_its_requests(world):
    async def story():
        await world.up()
        world.submit("a")
        (key,) = world.in_text().values()
        engine = world.last(Peer.ENGINE)
        world.last(Peer.TEXT).die()
        await world.up(Peer.TEXT)
        assert world.last(Peer.ENGINE) is engine
        assert engine.sent == [Cancel((key,))]
        assert set(world.in_text()) == {"a"}

    world.play(story)
    assert world.deaths == {"a": 1}, "it may be the text process that dies of it"


def test_a_withdrawn_file_is_cut_where_it_runs_and_others_go_on(world):
    async def story():
        await world.up()
        world.submit("a", "b", file=1)
        world.submit("c", file=2)
        keys = world.in_text()
        world.client.withdraw(1, answer_of(EndCause.CANCELLED))
        assert world.last(Peer.TEXT).sent[-1] == Cancel((keys["a"], keys["b"]))
        world.answer("a", "c")

    world.play(story)
    assert [answer.code for name in "ab" for answer in world.answers[name]] == [LineError.CANCELLED] * 2
    assert isinstance(world.answers["c"][0], RequestOutput)
    assert world.client.credits.num_outstanding == 0


def test_what_takes_too_long_is_ended_and_told_so(world):
    async def story():
        await world.up()
        world.submit("slow", timeout_s=5.0)
        world.submit("patient")
        key = world.in_text()["slow"]
        world.now_s = 4.9
        await asyncio.sleep(0.01)
        assert world.answers == {}
        world.now_s = 5.0
        await world.until(lambda: world.answers)
        assert Cancel((key,)) in world.last(Peer.TEXT).sent

    world.play(story)
    assert [*world.answers] == ["slow"]
    assert world.answers["slow"][0].message.startswith("not finished within limits.request_timeout_s (5 s)")


def test_a_request_that_ends_the_engine_fails_alone_without_a_pause(world):
    """Ten times as many deaths as max_restarts allows of those that lead nowhere."""

    async def story():
        await world.up()
        names = [str(number) for number in range(30)]
        world.submit(*names)
        while len(world.answers) < 30:
            await world.up()
            waiting = [name for name in world.in_text() if name not in world.answers]
            if "7" in waiting:
                world.last(Peer.ENGINE).die()
                await world.settle()
            else:
                world.answer(*waiting)

    world.play(story)
    assert isinstance(world.answers["7"][0], Unanswered)
    assert world.answers["7"][0].code is LineError.ENGINE
    assert "exited with code 86" in world.answers["7"][0].detail
    assert sum(isinstance(answers[0], RequestOutput) for answers in world.answers.values()) == 29
    assert 2 < world.client.num_restarts <= 8


def test_what_died_alone_does_not_wait_for_ever_for_a_proof(world):
    """All others were refused before they reached the engine, so nothing is left that it could answer."""

    async def story():
        await world.up()
        world.submit("poison", "wrong")
        while "poison" not in world.answers:
            await world.up()
            waiting = [name for name in world.in_text() if name not in world.answers]
            if "poison" in waiting:
                world.last(Peer.ENGINE).die()
                await world.settle()
            else:
                world.last(Peer.TEXT).say([RequestRefused(world.in_text()["wrong"], "c", None, "m")])

    world.play(story)
    assert world.answers["poison"][0].code is LineError.ENGINE
    assert len(world.answers["wrong"]) == 1


def test_deaths_without_requests_pause_the_engine_with_the_reason_until_it_is_resumed(world):
    async def story():
        await world.up()
        for _ in range(3):
            world.last(Peer.ENGINE).die()
            await world.until(lambda: not world.last(Peer.ENGINE).died.done() or world.client.state is EngineState.DOWN)
        assert world.client.state is EngineState.DOWN
        assert world.client.reason.startswith("it died 3 times without an answer in between; last the engine process")
        count = len(world.children)
        world.submit("a")
        await asyncio.sleep(0.05)
        assert len([child for child in world.children[count:] if child.role is Peer.ENGINE]) == 0
        world.client.resume()
        await world.settle()
        await world.up()
        world.answer("a")

    world.play(story)
    assert world.client.credits.num_outstanding == 0


def test_an_engine_that_dies_of_every_request_is_paused_and_the_requests_are_kept(world):
    async def story():
        await world.up()
        world.submit(*[str(number) for number in range(16)])
        while world.client.state is not EngineState.DOWN:
            await world.up()
            world.last(Peer.ENGINE).die()
            await world.settle()
        assert "it died of 3 requests, each alone" in world.client.reason
        assert world.answers == {}
        world.client.resume()
        await world.settle()
        while len(world.answers) < 16:
            await world.up()
            world.answer(*[name for name in world.in_text() if name not in world.answers])

    world.play(story)
    assert all(isinstance(answers[0], RequestOutput) for answers in world.answers.values())
