"""Hours in minutes: random kills of daemon, engine and text process while files of all sizes come in.

`GAPLESS_SOAK_KILLS` says how many (60), `GAPLESS_SOAK_SEED` which (0). A failure prints the seed.
"""

import json
import os
import random
import time
from collections import Counter

import daemon_process
import pytest
from daemon_process import Daemon, request_lines

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

NUM_KILLS = int(os.environ.get("GAPLESS_SOAK_KILLS", "60"))
POISON = 250  # a token id, given as such; the byte tokenizer makes it of no text that is dropped
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


def _drop_something(daemon, chance, stem):
    """Drop a file of a random kind; return (kind, number of requests)."""
    size = chance.choice([1, 3, 40, 300])
    (kind,) = chance.choices(["plain", "cancelled", "short deadline", "poison"], [4, 3, 2, 1])
    lines = request_lines(size, temperature=0.9)
    if kind == "poison":
        poison = json.dumps({"id": "poison", "prompt": [POISON], "max_tokens": 4}) + "\n"
        lines = "".join(chance.sample([*lines.splitlines(keepends=True), poison], size + 1))
    if kind == "short deadline":
        daemon.drop(f"{stem}.options.yaml", f"limits: {{deadline_s: {chance.choice([1, 2, 4])}}}\n")
    daemon.drop(f"{stem}.jsonl", lines)
    return kind, size + (kind == "poison")


def _check(daemon, stem, kind, size, batch):
    """Each request has one result, and it is one that this kind of file may have."""
    results = daemon.results(stem)
    assert len(results) == size == batch["request_counts"]["total"], stem
    codes = {line["error"]["code"] for line in results.values() if line.get("error")}
    statuses = {"cancelled": {"cancelled", "completed"}, "short deadline": {"expired", "completed"}}
    allowed = {"cancelled": {"batch_cancelled"}, "short deadline": {"batch_expired"}, "poison": {"engine_error"}}
    assert batch["status"] in statuses.get(kind, {"completed"}), stem
    assert codes <= allowed.get(kind, set()), stem
    if kind == "poison":
        assert [key for key, line in results.items() if line.get("error")] == ["poison"]
    assert (batch["status"] == "completed") or codes, "what was cut says so"


def test_cancels_deadlines_and_poison_requests_among_random_kills(tmp_path, monkeypatch):
    monkeypatch.setattr(
        daemon_process, "DEADLINE_S", 1800.0
    )  # each poison request takes about ten starts of the engine
    chance = random.Random(SEED + 1)
    daemon = Daemon(tmp_path, f"fake:step_ms=2,eos_every=30,poison={POISON}", engine=", max_restarts: 1000")
    dropped = {}
    daemon.start()
    try:
        for number in range(NUM_KILLS):
            stem = f"f{number}"
            dropped[stem] = _drop_something(daemon, chance, stem)
            time.sleep(chance.random() * 1.5)
            if dropped[stem][0] == "cancelled":
                (daemon.inbox / f"{stem}.cancel").touch()
            role = chance.choice(["daemon", "engine", "text", "nobody"])
            if role == "daemon":
                daemon.kill()
                daemon.start()
            elif role in daemon.children():
                daemon.kill_child(role)
        batches = {stem: daemon.wait_done(stem) for stem in dropped}
    finally:
        daemon.kill()
    kinds = Counter(kind for kind, _ in dropped.values())
    statuses = Counter(batch["status"] for batch in batches.values())
    print(f"\nseed {SEED}: {NUM_KILLS} chances of a kill, files {dict(kinds)}, ended {dict(statuses)}")
    for stem, (kind, size) in dropped.items():
        _check(daemon, stem, kind, size, batches[stem])
