"""An engine client whose processes are stood in for by what a test says of them."""

import asyncio
from contextlib import suppress

from daemon import engine_client, restart_policy
from daemon.child import Child
from daemon.engine_client import EngineClient
from daemon.metrics import Metrics
from daemon.submission import Submission
from pipelines.channel import Peer
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import (
    Choice,
    FinishReason,
    IdleCause,
    Ready,
    RequestOutput,
    SamplingParams,
    TextRequest,
)


class FakeChild:
    """A process: the test says what it says and when it dies."""

    def __init__(self, role, number):
        self.role, self.pid = role, number
        self.last_lines = []
        self.is_ended_by_us = self.was_killed_by_others = self.moves = False
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

    async def is_loading(self, number):
        """Wait until the processes of the start with this number are there."""
        await self.until(lambda: len(self.children) == 2 * number)

    async def let_pass(self, seconds):
        """Let the clock go on and the client look at each instant."""
        for _ in range(10 * seconds):
            self.now_s += 0.1
            await asyncio.sleep(0.002)
