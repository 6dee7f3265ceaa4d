"""What 1,000 scrapes in the middle of a run cost: their latency, processor time, and what the engine's loop feels of them."""

import http.client
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon_process import Daemon, request_lines
from prometheus_client.parser import text_string_to_metric_families

from daemon.metrics import Metrics

NUM_ROUNDS = 20  # each a portion without scrapes and one with, so that what else the machine does is in both
NUM_SCRAPES = 50  # a round
PAUSE_S = 0.02  # between two: 50 a second, 250 times as many as Prometheus makes
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)  # Prometheus 2.42's
LOADS = {
    # The engine's settings, the pipeline's max_tokens, requests of the file.
    "long answers": ("fake:step_ms=9,context=512", 400, 4000),
    "short answers": ("fake:step_ms=1,context=512", 2, 400_000),  # the daemon's own loop is busy throughout
}


@dataclass(frozen=True)
class Portion:
    """Some seconds of the run; differences between its end and its beginning."""

    wall_s: float
    daemon_s: float  # processor time of the daemon
    engine_s: float  # processor time of the engine process
    loop_s: float  # work of the engine's loop for its steps, by its own clock
    num_steps: float


class Run:
    """A daemon in the middle of a file."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.pids = daemon.process.pid, daemon.children()["engine"]
        self.client = http.client.HTTPConnection("127.0.0.1", daemon.port(), timeout=10)

    def watched(self, action):
        """What becomes of the counts while `action` runs."""
        before = self._counts()
        action()
        return Portion(*(after - earlier for after, earlier in zip(self._counts(), before, strict=True)))

    def scrape(self, latencies):
        for _ in range(NUM_SCRAPES):
            started_s = time.perf_counter()
            self.client.request("GET", "/metrics", headers={"Accept": ACCEPT})
            self.client.getresponse().read()
            latencies.append(time.perf_counter() - started_s)
            time.sleep(PAUSE_S)

    def _counts(self):
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(self.daemon.get("/metrics"))
            for sample in family.samples
            if sample.name.startswith("gapless_step_host_seconds") and "le" not in sample.labels
        }
        loop_s, num_steps = (samples[f"gapless_step_host_seconds_{end}"] for end in ("sum", "count"))
        return time.monotonic(), *map(processor_s, self.pids), loop_s, num_steps


def processor_s(pid):
    """Seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def felt_us(quiet, busy, figure):
    """What each scrape added to a figure, in microseconds, and the standard error over the rounds."""
    added = []
    for without, with_scrapes in zip(quiet, busy, strict=True):
        expected, count = figure(without, with_scrapes)
        added.append(1e6 * (count - expected) / NUM_SCRAPES)
    return f"{statistics.mean(added):+.0f} +- {statistics.stdev(added) / len(added) ** 0.5:.0f} us"


def by_steps(field):
    """A figure of the engine: expected as much a step as without scrapes."""
    return lambda without, portion: (
        getattr(without, field) / without.num_steps * portion.num_steps,
        getattr(portion, field),
    )


def by_time(without, portion):
    """Processor time of the daemon: expected as much a second as without scrapes."""
    return without.daemon_s / without.wall_s * portion.wall_s, portion.daemon_s


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize("load", LOADS)
def test_what_a_scrape_takes_and_what_the_engines_loop_feels_of_it(tmp_path, load):
    model, max_tokens, num_requests = LOADS[load]
    daemon = Daemon(tmp_path, model)
    daemon.config.write_text(daemon.config.read_text().replace("max_tokens: 16", f"max_tokens: {max_tokens}"))
    daemon.start()
    latencies: list[float] = []
    quiet, busy = [], []
    try:
        daemon.drop("long.jsonl", request_lines(num_requests))
        daemon.until(lambda: (batch := daemon.batch("long")) and batch["request_counts"]["completed"], "running")
        run = Run(daemon)
        for _ in range(NUM_ROUNDS):
            quiet.append(run.watched(lambda: time.sleep(NUM_SCRAPES * PAUSE_S)))
            busy.append(run.watched(lambda: run.scrape(latencies)))
        run.client.close()
        assert daemon.batch("long")["status"] == "in_progress", "the run ended before the scrapes did"
    finally:
        daemon.kill()
    ms = sorted(1e3 * latency for latency in latencies)
    steps = sum(portion.num_steps for portion in busy)
    share = sum(portion.daemon_s for portion in quiet) / sum(portion.wall_s for portion in quiet)
    print(
        f"\n{load}: {len(ms)} scrapes at load {os.getloadavg()[0]:.1f}, the daemon's loop busy {share:.0%} of the time: "
        f"least {ms[0]:.2f} ms, median {statistics.median(ms):.2f} ms, 90 % {ms[len(ms) * 9 // 10]:.2f} ms, "
        f"99 % {ms[len(ms) * 99 // 100]:.2f} ms, longest {ms[-1]:.2f} ms;\n"
        f"a scrape takes {felt_us(quiet, busy, by_time)} of the daemon's processor time, adds "
        f"{felt_us(quiet, busy, by_steps('loop_s'))} to the work of the engine's loop "
        f"and {felt_us(quiet, busy, by_steps('engine_s'))} to the engine process's processor time ({steps:.0f} steps)"
    )


@pytest.mark.bench
def test_the_text_of_a_large_installation_takes_less_than_a_scrape_may():
    """4 engines and 8 pipelines, over 1,100 lines: under 5 ms of processor time, where the machine leaves us one undisturbed."""
    metrics = Metrics()
    for number in range(4):
        metrics.add_engine(f"engine{number}")
    for number in range(8):
        metrics.add_pipeline(f"pipeline{number}")
    for accept in ("text/plain", "application/openmetrics-text"):
        seconds = []
        for _ in range(30):
            started_s = time.thread_time()
            metrics.render(accept)
            seconds.append(time.thread_time() - started_s)
        print(f"{accept}: {1e3 * min(seconds):.2f} ms")
        assert min(seconds) < 0.005
