"""An engine over any runner, driven turn by turn in a test."""

from collections import deque

from pipelines.config import BatchConfig, Schedule
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import TokenOutput, TokenRequest
from pipelines.core.scheduler import Scheduler
from pipelines.engine import Engine


class ListSource:
    """Hands out what it is given, one list a turn; keeps what is sent."""

    def __init__(self, arrivals=()):
        self.arrivals = deque(arrivals)
        self.outputs = []
        self.stats = []

    def receive(self, timeout_s):
        del timeout_s
        return self.arrivals.popleft() if self.arrivals else []

    def send_outputs(self, records):
        self.outputs += records

    def send_stats(self, stats):
        self.stats.append(stats)

    def finished(self):
        return {(o.key, o.choice): o for o in self.outputs if isinstance(o, TokenOutput)}


def token_request(key, prompt, max_tokens=6, **changes):
    """A greedy request."""
    fields = {
        "file": 0, "priority": 0, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": key * 7919, "n": 1,
        "stop_token_ids": (), "wants_deltas": False,
    } | changes  # fmt: skip
    return TokenRequest(key=key, prompt_token_ids=tuple(prompt), max_tokens=max_tokens, **fields)


def expect_nothing(scheduler):
    """Have a scheduler admit as if no sequence got another token, so that blocks run out and it preempts."""
    scheduler._admission.forecast.remaining = lambda _: 0.0


class Rig:
    """One engine with its scheduler; each turn is followed by a check of integrity."""

    def __init__(
        self,
        runner,
        arrivals=(),
        schedule=Schedule.ASYNC,
        num_blocks=64,
        block_size=4,
        seqs=4,
        tokens=16,
        *,
        prefix_caching=False,
        looks_ahead=True,
        **engine,
    ):
        self.source = ListSource(arrivals)
        self.blocks = BlockManager(num_blocks, block_size, prefix_caching=prefix_caching)
        self.scheduler = Scheduler(BatchConfig(seqs, tokens), self.blocks)
        if not looks_ahead:
            expect_nothing(self.scheduler)
        self.runner = runner
        self.engine = Engine(runner, self.scheduler, self.source, schedule, **engine)

    def run(self, max_turns=20_000):
        for _ in range(max_turns):
            self.engine.turn()
            self.scheduler.check_integrity()
            is_waiting = self.source.arrivals or self.engine.num_compiling
            if not is_waiting and self.scheduler.is_empty and not len(self.engine._inflight):
                assert self.scheduler.num_used_blocks == 0
                return self.source.finished()
        raise AssertionError("the engine did not come to an end")
