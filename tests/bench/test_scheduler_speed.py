"""What the scheduler's Python costs the host a step, and a request; run with `make bench`.

All times are processor time of the thread.
"""

import time
from collections import deque
from random import Random
from statistics import median

import pytest
from rig import ListSource, token_request
from simulation import Simulation

from pipelines.config import BatchConfig, Schedule
from pipelines.core.block_manager import BlockManager
from pipelines.core.prefix_cache import extend_names
from pipelines.core.scheduler import Scheduler
from pipelines.engine import Engine
from pipelines.fake import FakeOptions, FakeRunner

pytestmark = pytest.mark.bench


def test_steady_decode_of_256_sequences():
    """Two steps in flight, prefix caching on, 200 more sequences waiting. The aim is 300 us a step."""
    scheduler = Scheduler(BatchConfig(256, 8192), BlockManager(20_000, 64, prefix_caching=True))
    for key in range(456):
        scheduler.add(token_request(key, range(key * 1000, key * 1000 + 512), 4096, stop_token_ids=(2,)))
    flying = deque()
    seconds = []
    for _ in range(500):
        began_s = time.thread_time()
        flying.append(scheduler.schedule())
        if len(flying) == 2:
            oldest = flying.popleft()
            scheduler.commit(oldest, [7] * oldest.num_sampled)
        seconds.append(time.thread_time() - began_s)
    steady = sorted(seconds[150:])
    p99_us = 1e6 * steady[int(0.99 * len(steady))]
    print(
        f"schedule and commit of {len(flying[0].rows)} rows: {1e6 * median(steady):.0f} us a step, p99 {p99_us:.0f} us"
    )


@pytest.mark.parametrize(
    ("max_tokens", "num_output", "num_blocks"),
    [(4, 4, 20_000), (4096, 4, 20_000)],
    ids=["max_tokens of all fit", "admitted by what is expected"],
)
def test_ten_thousand_short_requests(max_tokens, num_output, num_blocks):
    """One file, 4 tokens each, 256 seats: the whole loop under the fake runner, of which admission must not be the most."""
    requests = [token_request(key, [key % 251] * 40, max_tokens, stop_token_ids=(2,)) for key in range(10_000)]
    scheduler = Scheduler(BatchConfig(256, 8192), BlockManager(num_blocks, 64, prefix_caching=True))
    runner = FakeRunner(FakeOptions(eos_every=0 if max_tokens == num_output else num_output), range(3, 200), 2)
    source = ListSource([requests])
    engine = Engine(runner, scheduler, source, Schedule.ASYNC)
    began_s = time.thread_time()
    engine.turn()
    while not scheduler.is_empty:
        engine.turn()
    seconds = time.thread_time() - began_s
    assert len(source.finished()) == len(requests)
    print(f"{len(requests)} requests of about {num_output} tokens, max_tokens {max_tokens}: {seconds:.2f} s")


def test_an_admission_after_every_end():
    """256 seats, answers of 256 tokens on average that a stop token ends, the cache large: about one ends and starts a step."""
    generator = Random(1)
    simulation = Simulation(num_blocks=80_000, prefix_caching=True)
    prompts = [[generator.randrange(2, 50_000) for _ in range(200)] for _ in range(3000)]
    simulation.at(0, [token_request(key, prompt, 4096, stop_token_ids=(1,)) for key, prompt in enumerate(prompts)])
    simulation.output_len = {key: 1 + int(generator.expovariate(1 / 256)) for key in range(3000)}
    seconds = []
    for name in ("schedule", "commit"):
        setattr(simulation.scheduler, name, _timed(getattr(simulation.scheduler, name), seconds))
    simulation.run(2500)
    steady = sorted(map(sum, zip(seconds[1000::2], seconds[1001::2], strict=False)))
    print(
        f"schedule and commit: {1e6 * median(steady):.0f} us a step, p99 {1e6 * steady[int(0.99 * len(steady))]:.0f} us"
    )


def _timed(call, seconds):
    def timed(*args):
        began_s = time.thread_time()
        result = call(*args)
        seconds.append(time.thread_time() - began_s)
        return result

    return timed


def test_naming_the_blocks_of_1024_prompts():
    """512 tokens each, blocks of 64; and looking them up again."""
    blocks = BlockManager(20_000, 64, prefix_caching=True)
    prompts = [list(range(number * 100, number * 100 + 512)) for number in range(1024)]
    began_s = time.thread_time()
    names = [[] for _ in prompts]
    for prompt, of_prompt in zip(prompts, names, strict=True):
        extend_names(of_prompt, prompt, 64)
    named_s = time.thread_time()
    tables = [[] for _ in prompts]
    for table, of_prompt in zip(tables, names, strict=True):
        blocks.make_writable(table, 0, 512)
        for block, name in zip(table, of_prompt, strict=True):
            blocks.name(block, name)
    written_s = time.thread_time()
    for of_prompt in names:
        blocks.release(blocks.adopt(blocks.find_prefix(of_prompt)))
    found_s = time.thread_time()
    print(
        f"a prompt of 512 tokens: hashed in {1e6 * (named_s - began_s) / 1024:.1f} us, blocks taken and named in "
        f"{1e6 * (written_s - named_s) / 1024:.1f} us, found, adopted and released in {1e6 * (found_s - written_s) / 1024:.1f} us"
    )
