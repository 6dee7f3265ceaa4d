"""A real Prometheus scrapes a real daemon: what its panels, rules and checks make of it is right."""

import json
import math
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon_process import Daemon, request_lines
from panel_values import BOARDS
from programs import need_program
from prometheus_client.parser import text_string_to_metric_families
from prometheus_process import SCRAPE_S, Prometheus, Window

from daemon.metrics import Metrics

GRAFANA = Path(__file__).parents[2] / "grafana"
SUPPORT = Path(__file__).parents[1] / "support"
INTERVAL_S = 6  # stands for $__rate_interval
NUM_REQUESTS = 450
# Prometheus extrapolates an increase to the edges of its window, but never below 0: a scrape of twelve.
SLOPPINESS = 0.1
MOMENTS = ("running", "dying", "done")
PANELS = [
    (board, panel["title"], number, target["expr"])
    for board in BOARDS
    for panel in json.loads((GRAFANA / "dashboards" / board).read_text())["panels"]
    for number, target in enumerate(panel["targets"])
]


@dataclass
class Observed:
    """What a run left behind."""

    prometheus: Prometheus
    daemon: Daemon
    moments: dict[str, float]  # Unix times
    final: dict[tuple[str, frozenset], float]  # what the daemon said at the end, by name and labels


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """Run files, an error line and a dead engine under the eyes of a Prometheus."""
    program = need_program("prometheus", "prometheus")
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), "fake:step_ms=20,eos_every=40,weight_mb=10,memory_gb_s=1")
    daemon.program = [str(SUPPORT / "daemon_with_gpus.py")]
    daemon.start()
    prometheus = None
    try:
        prometheus = Prometheus(program, tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{daemon.port()}")
        yield _watch(daemon, prometheus)
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
        if prometheus is not None:
            prometheus.close()


def _watch(daemon, prometheus):
    ready = 'gapless_engine_ready{engine="e"}'
    prometheus.until(lambda: prometheus.query(ready, time.time()) == {frozenset({("engine", "e")}): 1}, "engine ready")
    moments = {}
    daemon.drop("good.jsonl", request_lines(NUM_REQUESTS))
    started_s = time.monotonic()
    daemon.until(lambda: _num_done(daemon, "good") > 0, "first results")
    time.sleep(max(0.0, INTERVAL_S + 1 - (time.monotonic() - started_s)))  # a window that is busy all over
    assert _num_done(daemon, "good") < NUM_REQUESTS, "the run is too short to look at"
    moments["running"] = _moment(prometheus)
    daemon.kill_child("engine")
    daemon.drop("bad.jsonl", request_lines(20) + "{broken\n" * 5)
    daemon.drop("word.json", '"hello"')
    time.sleep(1.5)
    moments["dying"] = _moment(prometheus)
    for stem in ("good", "bad", "word"):
        daemon.until(lambda stem=stem: (daemon.batch(stem) or {}).get("status") in {"completed", "failed"}, stem)
    daemon.until(lambda: not list((daemon.root / "work").iterdir()), "everything published")
    final = daemon.until(lambda: _quiet(daemon), "all counted")
    wanted = final["gapless_choices_total", frozenset({("pipeline", "p"), ("finish_reason", "stop")})]
    prometheus.until(
        lambda: prometheus.query('gapless_choices_total{finish_reason="stop"}', time.time()).popitem()[1] == wanted,
        "last counts scraped",
    )
    time.sleep(1.2)  # two scrapes of an idle daemon
    moments["done"] = _moment(prometheus)
    return Observed(prometheus, daemon, moments, final)


def _moment(prometheus):
    """Now, where the scrape before worked: on a loaded machine one may come too late, and then nothing has a value."""

    def find():
        now = time.time()
        time.sleep(2 * SCRAPE_S)
        return now if [*prometheus.query("up", now).values()] == [1] else None

    return prometheus.until(find, "a scrape that works")


def _num_done(daemon, stem):
    batch = daemon.batch(stem)
    return batch["request_counts"]["completed"] if batch else 0


def _quiet(daemon):
    """Return all samples once nothing is in the engine and every request is counted."""
    samples = _samples(daemon.get("/metrics"))
    ended = sum(value for (name, _), value in samples.items() if name == "gapless_requests_total")
    held = sum(value for (name, _), value in samples.items() if name in {"gapless_requests_running", "gapless_files"})
    return samples if ended == NUM_REQUESTS + 25 and not held else None


def _samples(text):
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def windows(observed):
    """For each moment what was scraped in the interval before it, and in all."""
    return {
        name: (Window(observed.prometheus, at, INTERVAL_S), Window(observed.prometheus, at, 3600))
        for name, at in observed.moments.items()
    }


def _expected(expect, moment, rank_factor=1.0):
    """What a panel should show. Counts that are sloppy move the rank of a quantile, and its value as far as that takes it."""
    for window in moment:
        window.rank_factor = rank_factor
    try:
        return _numbers(expect(*moment))
    except ZeroDivisionError:
        return {}


def _numbers(values):
    return {key: value for key, value in values.items() if not math.isnan(value)}


@pytest.mark.parametrize(("board", "title", "number", "expr"), PANELS, ids=lambda value: str(value)[:40])
def test_a_panel_shows_what_the_scraped_numbers_say(observed, windows, board, title, number, expr):
    """Each query of each panel, at work, while the engine is down, and at rest."""
    expr = expr.replace("$__rate_interval", f"{INTERVAL_S}s").replace("$engine", ".+").replace("$pipeline", ".+")
    for name, at in observed.moments.items():
        found = observed.prometheus.query(expr, at)
        found = {
            frozenset(pair for pair in key if pair[1] != "" and pair[0] != "engine"): v for key, v in found.items()
        }
        found = _numbers(found)
        expect = BOARDS[board][title][number]
        if "quantile" in expr:
            low, high = (_expected(expect, windows[name], factor) for factor in (1 - SLOPPINESS, 1 + SLOPPINESS))
            assert found.keys() == low.keys() == high.keys(), f"{title} {number} when {name}"
            assert all(low[key] <= found[key] <= high[key] for key in found), f"{title} {number} when {name}"
        else:
            expected = _expected(expect, windows[name])
            assert found == pytest.approx(expected, rel=SLOPPINESS, abs=1e-9), f"{title} {number} when {name}"
        if name == "running" and title not in {"Changes of the configuration", "Time of a file"}:
            assert found, f"{title} is empty while everything runs"


def test_every_panel_has_its_expectation():
    """And none is left over from a panel that is gone."""
    assert {(board, title) for board, title, _, _ in PANELS} == {(b, t) for b, panels in BOARDS.items() for t in panels}
    for board, titles in BOARDS.items():
        for title, queries in titles.items():
            assert len(queries) == sum(row[:2] == (board, title) for row in PANELS)


def test_what_is_scraped_at_rest_is_what_the_daemon_says(observed):
    """Every counter and histogram, sample by sample; what time alone changes is left out."""
    moving = {
        "gapless_gpu_idle_seconds_total", "gapless_engine_progress_age_seconds", "gapless_gpu_busy_ratio",
        "gapless_disk_free_bytes", "gapless_main_loop_age_seconds",
    }  # fmt: skip
    scraped = {
        (series.name, frozenset(series.labels.items())): series.points[-1][1]
        for series in Window(observed.prometheus, observed.moments["done"], 3).series
        if series.name.startswith("gapless_")
    }
    for (name, labels), number in observed.final.items():
        if name not in moving and not name.startswith("gapless_nvml"):
            assert scraped[name, labels] == number, (name, labels)
    assert sum(1 for name, _ in observed.final if name not in moving) > 200


def test_the_run_is_counted_right(observed):
    """Known from what was dropped: requests, files, choices and the death."""

    def value(name, **labels):
        return observed.final[name, frozenset(labels.items())]

    assert value("gapless_requests_total", pipeline="p", outcome="completed") == NUM_REQUESTS + 20
    assert value("gapless_requests_total", pipeline="p", outcome="refused") == 5
    assert value("gapless_files_ended_total", pipeline="p", status="completed") == 2
    assert value("gapless_files_ended_total", pipeline="p", status="failed") == 1
    choices = [value("gapless_choices_total", pipeline="p", finish_reason=reason) for reason in ("stop", "length")]
    assert sum(choices) == NUM_REQUESTS + 20
    assert value("gapless_engine_restarts_total", engine="e") >= 1
    assert value("gapless_gpu_idle_seconds_total", engine="e", cause="down") > 0.1
    lines = observed.daemon.lines("good.output.jsonl") + observed.daemon.lines("bad.output.jsonl")
    tokens = sum(line["response"]["body"]["usage"]["completion_tokens"] for line in lines)
    unreported = 200  # at most: what the engine did in the fifth of a second before its death
    assert value("gapless_generation_tokens_total", engine="e") >= tokens - unreported
    assert value("gapless_request_seconds_count", engine="e") == NUM_REQUESTS + 20


def test_busy_unproven_and_idle_add_up_to_wall_time(observed):
    """At each scrape from first to last: what is missing is the step that runs and the report that is due."""
    account = (
        "sum(gapless_gpu_busy_seconds_total) + sum(gapless_gpu_unproven_seconds_total)"
        " + sum(gapless_gpu_idle_seconds_total) + scalar(gapless_start_time_seconds)"
    )
    first, last = observed.moments["running"] - INTERVAL_S, observed.moments["done"]
    found = observed.prometheus.ask(
        "query_range",
        query=f"{account} - scalar(timestamp(gapless_start_time_seconds))",
        start=first,
        end=last,
        step=0.5,
    )
    (series,) = found["result"] or [None]
    lags = [float(value) for _, value in series["values"]]
    assert len(lags) > 2 * INTERVAL_S
    assert max(lags) < 0.1, "nothing is counted twice"
    assert min(lags) > -1.5, "nothing is lost"
    assert abs(lags[-1] - lags[0]) < 0.7


def test_the_band_of_the_dashboard_is_whole(observed):
    """Busy, unproven and the causes of the first panel make 100 %, at work as well as at rest."""
    queries = [row[3].replace("$__rate_interval", f"{INTERVAL_S}s").replace("$engine", ".+") for row in PANELS[:3]]
    for name in ("running", "done"):
        whole = sum(sum(observed.prometheus.query(expr, observed.moments[name]).values()) for expr in queries)
        assert whole == pytest.approx(1, abs=0.06)


def test_the_roofline_ratio_is_the_one_that_the_fake_device_has(observed):
    """10 MB at 1 GB/s take 10 ms, and a step takes 20."""
    ratio = next(row[3] for row in PANELS if row[1] == "Roofline ratio")
    ratio = ratio.replace("$__rate_interval", f"{INTERVAL_S}s").replace("$engine", ".+")
    assert observed.prometheus.query(ratio, observed.moments["running"]) == {frozenset(): pytest.approx(0.5, rel=0.02)}


def test_prometheus_finds_no_fault_with_rules_and_scrapes(observed):
    """Every rule evaluates, and no scrape has failed."""
    rules = [rule for group in observed.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 12
    assert {rule["health"] for rule in rules} == {"ok"}
    (target,) = observed.prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    busy = observed.prometheus.query("gapless:gpu_busy:ratio_rate5m", observed.moments["done"])
    assert busy[frozenset({("engine", "e")})] > 0


def test_annotations_mark_the_restart(observed):
    """Where the engine was killed, and not before."""
    expr = next(
        mark["expr"]
        for mark in json.loads((GRAFANA / "dashboards" / "gpu.json").read_text())["annotations"]["list"]
        if mark["name"] == "restart"
    ).replace("$engine", ".+")
    assert observed.prometheus.query(expr, observed.moments["running"]) == {}
    assert observed.prometheus.query(expr, observed.moments["done"])


def promtool(*arguments, **kwargs):
    """Run it; return its code and words."""
    program = need_program("promtool", "prometheus")
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd=GRAFANA, **kwargs)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules/recording.yml", "rules/alerts.yml"),
        ("test", "rules", "rules/alerts_test.yml"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_promtool_finds_no_fault(arguments):
    """With the configuration, the rules, and what the rules do to made-up series."""
    code, text = promtool(*arguments)
    assert code == 0, text


def test_promtool_finds_no_fault_with_the_metrics():
    """Names and types are by the conventions."""
    metrics = Metrics()
    metrics.add_engine("main")
    metrics.add_pipeline("chat")
    text, _ = metrics.render("")
    code, said = promtool("check", "metrics", input=text.decode())
    assert (code, said) == (0, "")
