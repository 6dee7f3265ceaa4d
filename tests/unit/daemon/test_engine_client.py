"""Requests given to an engine are answered, whatever dies; processes are stood in for by what the test says of them."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from daemon import engine_client, restart_policy
from daemon.child import Child
from daemon.ending import EndCause, answer_of
from daemon.engine_client import EngineClient
from daemon.metrics import Metrics
from daemon.result_line import LineError
from daemon.status import EngineState
from daemon.submission import Submission, Unanswered
from pipelines.channel import Peer
from pipelines.config import BatchConfig, EngineConfig, ModelConfig, Schedule
from pipelines.core.request import (
    Cancel,
    Choice,
    DeviceTime,
    EngineStats,
    Failed,
    FinishReason,
    IdleCause,
    Limits,
    Progress,
    Ready,
    RequestOutput,
    RequestRefused,
    SamplingParams,
    TextRequest,
)


class FakeChild:
    """A process: the test says what it says and when it dies."""

    def __init__(self, role, number):
        self.role, self.pid = role, number
        self.last_lines = []
        self.is_ended_by_us = self.moves = False
        self.sent, self.passed_on = [], []
        self.died = asyncio.get_running_loop().create_future()

    def send(self, records):
        self.sent += records

    def has_moved_on(self):
        moves, self.moves = self.moves, False
        return moves

    def pass_on(self, payload):
        self.passed_on.append(payload)

    async def read_until_death(self, on_records, on_frame):
        self.say, self.say_to_other = on_records, on_frame
        return await self.died

    def kill(self):
        self.is_ended_by_us = True
        self.die("killed by SIGKILL")

    def kill_for(self, reason):
        self.die(f"was killed: {reason}")

    def die(self, how="exited with code 86"):
        if not self.died.done():
            self.died.set_result(how)

    @property
    def requests(self):
        return [record for record in self.sent if isinstance(record, TextRequest)]


class World:
    """A client, its processes in the order of their start, and what became of requests."""

    def __init__(self, monkeypatch, max_restarts=2, **options):
        self.children = []
        self.answers = {}
        self.deaths = {}
        self.now_s = 0.0

        async def start(role, _config):
            child = FakeChild(role, len(self.children))
            self.children.append(child)
            return child

        monkeypatch.setattr(Child, "start", start)
        monkeypatch.setattr(restart_policy, "_FIRST_DELAY_S", 0.001)
        monkeypatch.setattr(engine_client, "_TICK_S", 0.001)
        config = EngineConfig("e", ModelConfig("fake:"))
        self.client = EngineClient(
            config, Metrics(), max_restarts, lambda: IdleCause.NO_WORK, now=lambda: self.now_s, **options
        )

    def play(self, story):
        async def run():
            running = asyncio.create_task(self.client.run())
            try:
                async with asyncio.timeout(20):
                    await story()
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

        asyncio.run(run())

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)

    def last(self, role):
        return next(child for child in reversed(self.children) if child.role is role)

    async def until(self, condition):
        while not condition():
            await self.settle()
            await asyncio.sleep(0.001)

    async def up(self, *roles):
        """The newest processes say that they are ready."""
        await self.settle()
        for role in roles or (Peer.TEXT, Peer.ENGINE):
            self.last(role).say([Ready("m", 100, 10)])
        await self.settle()

    def submit(self, *names, file=1, timeout_s=None):
        def submission(name):
            return Submission(
                TextRequest(0, file, 0, SamplingParams(), text=name), 1,
                lambda answer: self.answers.setdefault(name, []).append(answer),
                timeout_s=timeout_s, on_death=lambda count: self.deaths.update({name: count}),
            )  # fmt: skip

        self.client.submit_all([submission(name) for name in names])

    def in_text(self):
        """What the newest text process was sent, by name."""
        return {request.text: request.key for request in self.last(Peer.TEXT).requests}

    def answer(self, *names):
        keys = self.in_text()
        self.last(Peer.TEXT).say(
            [RequestOutput(keys[name], (Choice("x", FinishReason.STOP, 1),), 1, 0) for name in names]
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
        assert "it died of 3 requests, each of them alone" in world.client.reason
        assert world.answers == {}
        world.client.resume()
        await world.settle()
        while len(world.answers) < 16:
            await world.up()
            world.answer(*[name for name in world.in_text() if name not in world.answers])

    world.play(story)
    assert all(isinstance(answers[0], RequestOutput) for answers in world.answers.values())


async def _is_loading(world, number):
    """Wait until the processes of the start with this number are there."""
    await world.until(lambda: len(world.children) == 2 * number)


def test_other_settings_start_both_processes_anew_and_nothing_is_suspected(monkeypatch):
    """What was in flight is sent again, under a new key, with no death to its name."""
    world = World(monkeypatch)
    new = EngineConfig("e", ModelConfig("fake:step_ms=1"))

    async def story():
        await world.up()
        world.submit("a")
        (old_key,) = world.in_text().values()
        world.client.restart(new, falls_back=True)
        await _is_loading(world, 2)
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
        await _is_loading(world, 2)
        world.submit("a")
        world.last(role).say([Failed("no such model", is_config=True)])
        world.last(role).die()
        await _is_loading(world, 3)
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
            await _is_loading(world, number)
        world.last(Peer.ENGINE).die()
        await _is_loading(world, 4)
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
        await _is_loading(world, 2)
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


def _stats(num_running=1, num_batched=()):
    time = DeviceTime(0, 0, 0, 0, 0, 0, 0)
    return EngineStats(time, 0, num_running, 0, 0, 0, 0, (), num_batched)


async def _pass(world, seconds):
    """Let the clock go on and the client look at each instant."""
    for _ in range(10 * seconds):
        world.now_s += 0.1
        await asyncio.sleep(0.002)


def test_an_engine_with_work_that_does_not_get_on_is_killed_as_if_it_had_died(monkeypatch):
    """Steps and answers keep it alive, reports alone do not; an engine without work may be silent for ever."""
    world = World(monkeypatch, stall_s=5.0)

    async def story():
        await world.up()
        await _pass(world, 8)
        assert len(world.children) == 2
        world.submit("a")
        engine = world.last(Peer.ENGINE)
        for _ in range(4):
            await _pass(world, 3)
            engine.say([_stats(num_batched=(1,))])
        assert len(world.children) == 2
        while not world.client.num_restarts:
            await _pass(world, 1)
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
            await _pass(world, 1)
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
            await _pass(world, 2)
            engine.moves = True
        assert world.client.num_restarts == 0
        assert world.client.monitor.heartbeat.age_s(world.now_s) < 3
        await _pass(world, 5)
        await world.until(lambda: world.client.num_restarts == 1)

    world.play(story)


def test_loading_gets_on_by_what_it_says(monkeypatch):
    """As long as it tells of further pieces; then it is killed."""
    world = World(monkeypatch, stall_s=3.0)

    async def story():
        await world.settle()
        engine = world.last(Peer.ENGINE)
        for number in range(5):
            await _pass(world, 2)
            engine.say([Progress("load", number / 10)])
        assert world.client.num_restarts == 0
        await _pass(world, 5)
        await world.until(lambda: world.client.num_restarts == 1)

    world.play(story)


def test_an_engine_is_loaded_on_first_use_and_unloaded_when_nothing_came_for_long(monkeypatch):
    """A request that comes while it is being unloaded is answered by the next one."""
    world = World(monkeypatch, idle_unload_s=5.0)

    async def story():
        await _pass(world, 10)
        assert (world.children, world.client.state) == ([], EngineState.UNLOADED)
        world.submit("a")
        await world.settle()
        assert world.client.state is EngineState.STARTING
        await world.up()
        await _pass(world, 20)
        assert len(world.children) == 2, "a request is on its way"
        world.answer("a")
        await _pass(world, 3)
        world.submit("b")
        world.answer("b")
        await _pass(world, 4)
        assert world.client.state is EngineState.READY
        await _pass(world, 3)
        assert world.client.state is EngineState.UNLOADED
        world.submit("c")
        await _pass(world, 1)
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
        await _pass(world, 20)
        assert (len(world.children), world.client.state) == (2, EngineState.READY)
        world.client.idle_unload_s = 5.0
        await _pass(world, 7)
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
        await _pass(world, 1)
        await world.up()
        assert (world.client.state, world.client.config.model.path) == (EngineState.READY, "fake:")
        await _pass(world, 7)
        assert world.client.state is EngineState.UNLOADED

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
        await _is_loading(world, 2)
        assert world.client.describe() == ""
        await world.up()
        assert list(world.in_text()) == ["a"]
        world.answer("a")

    world.play(story)
    assert world.client.model == "m"
    assert len(world.answers["a"]) == 1
