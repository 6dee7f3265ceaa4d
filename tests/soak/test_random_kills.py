"""Hours in minutes: random kills of daemon, engine and text process, torn journals, full disks and restarts.

Files of all sizes come in meanwhile. `GAPLESS_SOAK_KILLS` says how many processes are killed (500; a fifth of them where
answers depend on the batch), `GAPLESS_SOAK_SEED` which (0). A failure prints the seed; docs/soak.md has the log of a run.
"""

import json
import os
import random
import re
import time
from collections import Counter

import daemon_process
import pytest
from daemon_process import Daemon, request_lines
from small_disk import small_disk

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

NUM_KILLS = int(os.environ.get("GAPLESS_SOAK_KILLS", "500"))
SEED = int(os.environ.get("GAPLESS_SOAK_SEED", "0"))
NUM_FATES = max(1, NUM_KILLS // 8)  # files in the test of cancels, deadlines and poison
POISON = 250  # a token id, given as such; the byte tokenizer makes it of no text that is dropped
SIZES = (1, 3, 40, 200)
ALONE, IN_COMPANY = "fake:step_ms=2,eos_every=30", "fake:step_ms=2,eos_every=30,company=1"
ACTIONS = ["daemon"] * 8 + ["engine"] * 4 + ["text"] * 4 + ["all"] * 3 + ["restart"] + ["full disk"] * 2
MAX_OPEN = 30  # files that are not done yet; beyond it no more are dropped
PATIENCE_S = 1200


class Soak:
    """A daemon to which everything happens."""

    def __init__(self, folder, model, disk, chance):
        options = {"engine": ", max_restarts: 1000", "daemon": ", min_free_bytes: 0"}
        self.daemon = Daemon(folder, model, **options)
        self.disk = disk
        self.chance = chance
        self.sizes = {}  # stem -> requests
        self.seen = {}  # stem -> the longest beginning of its output that was readable
        self.counts = Counter()

    def run(self, num_kills):
        """Until so many processes were killed; then wait for everything."""
        self.daemon.start()
        while self.counts["kills"] < num_kills:
            self.drop()
            self.wait()
            self.look()
            self.do(self.chance.choice(ACTIONS))
        started_s = time.monotonic()
        while sum(1 for _ in (self.daemon.root / "done").glob("*")) < len(self.sizes) or self.num_open():
            assert time.monotonic() < started_s + PATIENCE_S, self.daemon.log.read_text()[-5000:]
            assert self.daemon.process.poll() is None, self.daemon.log.read_text()[-5000:]
            time.sleep(0.2)

    def wait(self):
        """Let it run: often for less than a start takes."""
        time.sleep(self.chance.random() * self.chance.choice([0.2, 1.0, 2.5]))

    def drop(self):
        if self.num_open() < MAX_OPEN:
            stem = f"f{len(self.sizes)}"
            self.sizes[stem] = self.chance.choice(SIZES)
            self.daemon.drop(f"{stem}.jsonl", request_lines(self.sizes[stem], temperature=0.9))

    def num_open(self):
        return sum(1 for folder in ("inbox", "work") for _ in (self.daemon.root / folder).glob("*.*l"))

    def look(self):
        """Remember what a person could have read, to hold the end against it."""
        for path in self.daemon.outbox.glob("*.output.jsonl.partial"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            stem = path.name.split(".")[0]
            whole = content[: content.rfind(b"\n") + 1]
            self.seen[stem] = max(self.seen.get(stem, b""), whole, key=len)

    def do(self, action):
        assert self.daemon.process.poll() is None, self.daemon.log.read_text()[
            -5000:
        ]  # on a full disk it waits for room
        match action:
            case "daemon":
                self.daemon.kill()
                self.count(action, 1)
                self.start_again()
            case "engine" | "text":
                if action in self.daemon.children():
                    self.daemon.kill_child(action)
                    self.count(action, 1)
            case "all":
                self.count(action, self.daemon.kill_all())
                self.start_again()
            case "restart":
                self.daemon.port()  # by then it knows what to do with a signal
                assert self.daemon.stop() == 0
                self.counts["restarts by SIGTERM"] += 1
                self.start_again()
            case "full disk" if self.disk is not None:
                self.disk.fill()
                self.counts["times the disk was full"] += 1
                self.wait()
                self.do(self.chance.choice(["daemon", "engine", "text", "all"]))
                self.wait()
                self.disk.empty()

    def start_again(self):
        if self.chance.random() < 0.7:
            num_bytes = self.daemon.tear_journals(self.chance)
            self.counts["bytes of torn journal tails"] += num_bytes
        self.daemon.start()

    def count(self, what, num_kills):
        self.counts[f"kills of {what}"] += num_kills
        self.counts["kills"] += num_kills

    def check(self, reference=None):
        """Each request has one result, what was readable is in the output, and that is the reference's, clock apart."""
        for stem, size in self.sizes.items():
            batch = self.daemon.batch(stem)
            assert batch["request_counts"] == {"total": size, "completed": size, "failed": 0}, stem
            assert sorted(self.daemon.results(stem)) == sorted(f"r{number}" for number in range(size)), stem
            output = (self.daemon.outbox / f"{stem}.output.jsonl").read_bytes()
            assert output.startswith(self.seen.get(stem, b"")), f"{stem}: a result that was readable has changed"
            self.counts["beginnings held against the end"] += stem in self.seen
            if reference is not None:
                assert without_times(output) == reference[size], f"{stem}: other bytes than undisturbed"

    def log(self, name, seconds):
        numbers = ", ".join(f"{number} {what}" for what, number in sorted(self.counts.items()))
        disk = "a tmpfs of 256 MiB" if self.disk else "the ordinary disk, never full: no tmpfs could be mounted"
        print(
            f"\n{name}: seed {SEED}, {seconds:.0f} s, on {disk}: {sum(self.sizes.values())} requests in {len(self.sizes)}"
        )
        print(f"files; {numbers}; 0 lost, 0 doubled, 0 changed")


def without_times(output):
    """An output without the time of its claim."""
    return re.sub(rb'"created":\d+', b'"created":0', output)


def undisturbed(folder, model):
    """The output of each size without any kill."""
    daemon = Daemon(folder, model)
    for size in SIZES:
        daemon.drop(f"s{size}.jsonl", request_lines(size, temperature=0.9))
    daemon.start("--once")
    assert daemon.process.wait(300) == 0
    return {size: without_times((daemon.outbox / f"s{size}.output.jsonl").read_bytes()) for size in SIZES}


@pytest.mark.parametrize(("name", "model", "share"), [("by line alone", ALONE, 1.0), ("by company", IN_COMPANY, 0.2)])
def test_each_request_has_one_result_whatever_happens(tmp_path, name, model, share):
    """Answers that depend on seed and line have the same bytes as undisturbed; those that depend on the batch are there once."""
    (tmp_path / "undisturbed").mkdir()
    reference = undisturbed(tmp_path / "undisturbed", model) if model == ALONE else None
    with small_disk(tmp_path / "soak", "256m") as disk:  # room for all results: nobody takes them away
        soak = Soak(tmp_path / "soak", model, disk, random.Random(SEED))
        soak.daemon.log = tmp_path / "log"  # a full disk is no reason to say nothing
        started_s = time.monotonic()
        try:
            soak.run(round(NUM_KILLS * share))
        except BaseException:
            print(f"\nseed {SEED}, after {dict(soak.counts)}")
            raise
        finally:
            soak.daemon.kill()
        soak.check(reference)
        soak.log(name, time.monotonic() - started_s)


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
    # Each poison request takes about ten starts of the engine.
    monkeypatch.setattr(daemon_process, "DEADLINE_S", 1800.0)
    chance = random.Random(SEED + 1)
    daemon = Daemon(tmp_path, f"fake:step_ms=2,eos_every=30,poison={POISON}", engine=", max_restarts: 1000")
    dropped = {}
    daemon.start()
    try:
        for number in range(NUM_FATES):
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
    print(f"\nseed {SEED}: {NUM_FATES} chances of a kill, files {dict(kinds)}, ended {dict(statuses)}")
    for stem, (kind, size) in dropped.items():
        _check(daemon, stem, kind, size, batches[stem])
