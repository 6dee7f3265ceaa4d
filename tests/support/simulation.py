"""The scheduler under a model of a device's time: two steps in flight, no model, no threads, no clock.

A step takes as long as its bytes or its arithmetic, whichever is longer. The figures are those of an 8B model in bf16 on an
H200: weights of 15.01 GB and 131,072 bytes of keys and values a token of context at 4.66 TB/s; 15 s of arithmetic for the 791k
tokens of the `offline` workload.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from pipelines.config import BatchConfig
from pipelines.core.block_manager import BlockManager
from pipelines.core.scheduler import Scheduler

WEIGHT_BYTES, KV_BYTES, BYTES_PER_S = 15.01e9, 131_072, 4.66e12
TOKEN_S = 15.0 / 791_000
LAUNCH_S, MAX_GRAPH_TOKENS = 350 * 4e-6, 512  # of a step that no graph serves; the host has to be done before the next


def step_seconds(batch):
    """How long the device works on a batch."""
    context = sum(batch.context_lens)
    bytes_s = (WEIGHT_BYTES + KV_BYTES * context) / BYTES_PER_S
    launch_s = LAUNCH_S if batch.num_tokens > MAX_GRAPH_TOKENS else 0.0
    return max(bytes_s, TOKEN_S * batch.num_tokens, launch_s)


@dataclass
class Simulation:
    """Runs requests to their end; `ends` decides which token ends a sequence before its max_tokens."""

    seqs: int = 256
    tokens: int = 8192
    num_blocks: int = 12_000
    block_size: int = 64
    prefix_caching: bool = False
    output_len: dict = field(default_factory=dict)  # key -> tokens at which it stops by itself
    stop_token: int = 1
    num_in_flight: int = 2
    checks: bool = False

    def __post_init__(self):
        self.blocks = BlockManager(self.num_blocks, self.block_size, prefix_caching=self.prefix_caching)
        self.scheduler = Scheduler(BatchConfig(self.seqs, self.tokens), self.blocks)
        self.seconds = 0.0
        self.num_steps = 0
        self.num_computed = 0  # tokens
        self.num_generated = 0
        self.admitted_at = {}  # key -> step
        self.finished_at = {}  # (key, choice) -> step
        self.used_share = []  # of the blocks, each step
        self.num_running = []
        self._flying = deque()
        self._events = []

    def at(self, step, requests):
        """Let requests come in front of a step."""
        heapq.heappush(self._events, (step, len(self._events), list(requests)))

    def run(self, max_steps=10**9):
        """Go on until all is done, or for so many steps."""
        end = self.num_steps + max_steps
        while self.num_steps < end and (self._events or self._flying or not self.scheduler.is_empty):
            self.turn()
        return self

    def turn(self):
        """One step more, or one commit."""
        while self._events and self._events[0][0] <= self.num_steps:
            for request in heapq.heappop(self._events)[2]:
                self.scheduler.add(request)
        batch = self.scheduler.schedule() if len(self._flying) < self.num_in_flight else None
        if batch is not None:
            self._launch(batch)
        elif self._flying:
            self._commit()
        elif self._events:
            self.num_steps = self._events[0][0]
        else:
            raise AssertionError("nothing can run and nothing is in flight")
        if self.checks:
            self.scheduler.check_integrity()

    def _launch(self, batch):
        self._flying.append(batch)
        self.seconds += step_seconds(batch)
        self.num_steps += 1
        self.num_computed += batch.num_tokens
        self.used_share.append(self.blocks.num_used / self.num_blocks)
        self.num_running.append(self.scheduler.num_running)
        for row in batch.rows:
            self.admitted_at.setdefault(row.sequence.request.key, self.num_steps)

    def _commit(self):
        batch = self._flying.popleft()
        committed = self.scheduler.commit(batch, [self._token(row) for row in batch.sampled_rows])
        self.num_generated += committed.num_tokens
        for sequence, _ in committed.heard:
            if sequence.finish_reason is not None:
                self.finished_at[sequence.request.key, sequence.choice] = self.num_steps

    def _token(self, row):
        request = row.sequence.request
        length = row.context_len - len(request.prompt_token_ids) + 1
        if length == self.output_len.get(request.key):
            return self.stop_token
        return 2 + (request.seed + row.context_len * 7919) % 50_000
