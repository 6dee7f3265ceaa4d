"""What 1,000 scrapes in the middle of a run cost: their latency, and what the engine's loop feels of them."""

import http.client
import statistics
import time

import pytest
from daemon_process import Daemon, request_lines
from prometheus_client.parser import text_string_to_metric_families

NUM_SCRAPES = 1000
PAUSE_S = 0.01  # between two: 100 a second, 500 times as many as Prometheus makes
PORTION_S = 5.0


def loop_of(daemon):
    """Work of the engine's loop so far: seconds and steps."""
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(daemon.get("/metrics"))
        for sample in family.samples
        if sample.name.startswith("gapless_step_host_seconds") and "le" not in sample.labels
    }
    return samples["gapless_step_host_seconds_sum"], samples["gapless_step_host_seconds_count"]


def watched(daemon, action):
    """Host microseconds a step while `action` runs, and the number of steps."""
    before_s, before = loop_of(daemon)
    action()
    after_s, after = loop_of(daemon)
    return 1e6 * (after_s - before_s) / (after - before), after - before


def scrape(daemon, accept, latencies):
    client = http.client.HTTPConnection("127.0.0.1", daemon.port(), timeout=10)
    size = 0
    for _ in range(NUM_SCRAPES):
        started_s = time.perf_counter()
        client.request("GET", "/metrics", headers={"Accept": accept})
        size = len(client.getresponse().read())
        latencies.append(time.perf_counter() - started_s)
        time.sleep(PAUSE_S)
    client.close()
    return size


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_what_a_scrape_takes_and_what_the_engines_loop_feels_of_it(tmp_path, accept):
    daemon = Daemon(tmp_path, "fake:step_ms=9,context=512", pipeline=", priority: 1")
    daemon.config.write_text(daemon.config.read_text().replace("max_tokens: 16", "max_tokens: 400"))
    daemon.start()
    try:
        daemon.drop("long.jsonl", request_lines(3000))
        daemon.until(lambda: (batch := daemon.batch("long")) and batch["request_counts"]["completed"], "running")
        latencies: list[float] = []
        quiet_us, num_quiet = watched(daemon, lambda: time.sleep(PORTION_S))
        busy_us, num_busy = watched(daemon, lambda: scrape(daemon, accept, latencies))
        again_us, num_again = watched(daemon, lambda: time.sleep(PORTION_S))
        assert daemon.batch("long")["status"] == "in_progress", "the run ended before the scrapes did"
    finally:
        daemon.kill()
    rest_us = (quiet_us * num_quiet + again_us * num_again) / (num_quiet + num_again)
    felt_us = (busy_us - rest_us) * num_busy / NUM_SCRAPES
    milliseconds = sorted(1e3 * latency for latency in latencies)
    print(
        f"\n{accept}: {NUM_SCRAPES} scrapes, 10 % {milliseconds[100]:.2f} ms, median {statistics.median(milliseconds):.2f} ms, "
        f"90 % {milliseconds[900]:.2f} ms, 99 % {milliseconds[990]:.2f} ms, longest {milliseconds[-1]:.2f} ms; "
        f"loop {rest_us:.1f} us a step without, {busy_us:.1f} us with ({num_busy:.0f} steps): {felt_us:+.1f} us a scrape"
    )
