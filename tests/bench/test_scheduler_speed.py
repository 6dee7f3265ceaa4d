"""What the scheduler's Python costs the host a step; run with `make bench`."""

import time
from collections import deque
from statistics import median

import pytest
from rig import token_request

from pipelines.config import BatchConfig
from pipelines.core.block_manager import BlockManager
from pipelines.core.prefix_cache import extend_names
from pipelines.core.scheduler import Scheduler

pytestmark = pytest.mark.bench


def test_steady_decode_of_256_sequences():
    """Two steps in flight, prefix caching on, 200 more sequences waiting; CPU time of the thread."""
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
            scheduler.commit(oldest, [7] * len(oldest.sampled_rows))
        seconds.append(time.thread_time() - began_s)
    steady = sorted(seconds[150:])
    p99_us = 1e6 * steady[int(0.99 * len(steady))]
    print(
        f"schedule and commit of {len(flying[0].rows)} rows: {1e6 * median(steady):.0f} us a step, p99 {p99_us:.0f} us"
    )


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
