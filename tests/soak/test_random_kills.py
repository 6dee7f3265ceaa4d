"""Hours in minutes: random kills of daemon, engine and text process while files of all sizes come in.

`GAPLESS_SOAK_KILLS` says how many (60), `GAPLESS_SOAK_SEED` which (0). A failure prints the seed.
"""

import os
import random
import time

import pytest
from daemon_process import Daemon, request_lines

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

NUM_KILLS = int(os.environ.get("GAPLESS_SOAK_KILLS", "60"))
SEED = int(os.environ.get("GAPLESS_SOAK_SEED", "0"))


def test_each_request_has_one_result_whatever_is_killed(tmp_path):
    chance = random.Random(SEED)
    daemon = Daemon(tmp_path, "fake:step_ms=2,eos_every=30", engine=", max_restarts: 1000")
    sizes = {}
    daemon.start()
    try:
        for number in range(NUM_KILLS):
            stem = f"f{number}"
            sizes[stem] = chance.choice([1, 3, 40, 300])
            daemon.drop(f"{stem}.jsonl", request_lines(sizes[stem], temperature=0.9))
            time.sleep(chance.random() * 1.5)
            role = chance.choice(["daemon", "daemon", "engine", "text"])
            if role == "daemon":
                daemon.kill()
                daemon.start()
            elif role in daemon.children():
                daemon.kill_child(role)
        batches = {stem: daemon.wait_done(stem) for stem in sizes}
    finally:
        daemon.kill()
    print(f"\nseed {SEED}: {NUM_KILLS} kills, {sum(sizes.values())} requests in {len(sizes)} files")
    texts = {}
    for stem, size in sizes.items():
        assert batches[stem]["request_counts"] == {"total": size, "completed": size, "failed": 0}
        results = daemon.results(stem)
        assert sorted(results) == sorted(f"r{number}" for number in range(size))
        answers = {key: line["response"]["body"]["choices"] for key, line in results.items()}
        assert texts.setdefault(size, answers) == answers, "files of the same content have the same answers"
