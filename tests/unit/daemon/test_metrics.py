"""Metrics: what each event does to them, and that the reference page lists just what is exported."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from prometheus_client import exposition
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from daemon.batch_object import BatchStatus
from daemon.device_account import DeviceTotals
from daemon.file_metrics import FINAL, PipelineGauges
from daemon.gpu_reader import GpuReading
from daemon.journal_records import Outcome
from daemon.metrics import Metrics
from daemon.pause import PauseCause
from daemon.status import FileState
from pipelines.config import Schedule
from pipelines.core.request import DeviceTime, EngineStats, FinishReason, IdleCause, Ready

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def stats_of(**changes: Any) -> EngineStats:
    """An engine's report with a number of its own in every field."""
    fields: dict[str, Any] = {
        "device_time": DeviceTime(0, 1, 1, 0, 0, 0, 0),
        "num_waiting": 7,
        "num_running": 3,
        "num_used_blocks": 41,
        "prompt_tokens": 100,
        "generation_tokens": 20,
        "preemptions": 2,
        "padding_tokens": 9,
        "steps_taken_back": 5,
        "prefix_query_tokens": 110,
        "prefix_hit_tokens": 70,
        "decode_s": 0.5,
        "decode_floor_s": 0.25,
        "step_s": (0.004, 0.04),
        "gap_s": (0.0002, 0.0003),
        "host_s": (0.001, 0.002),
        "num_batched": (3, 200),
        "num_batched_tokens": (5, 7000),
        "queue_s": (0.5, 2.0),
        "first_token_s": (0.7, 3.0),
        "output_token_s": (0.011, 0.012),
    }
    return EngineStats(**(fields | changes))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A sample's value; None where it does not exist."""
    return metrics.registry.get_sample_value(name, labels)


READY = Ready(model="m", context=100, vocab_size=10, max_num_seqs=16, num_blocks=50, block_size=16)


def test_a_report_of_the_engine_reaches_every_metric_it_is_about() -> None:
    """Each field of the report is found again under its own name."""
    metrics = Metrics()
    metrics.add_engine("main")
    for _ in range(2):
        metrics.observe_engine_stats("main", stats_of())
    expected = {
        "gapless_prompt_tokens_total": 200,
        "gapless_generation_tokens_total": 40,
        "gapless_padding_tokens_total": 18,
        "gapless_preemptions_total": 4,
        "gapless_steps_taken_back_total": 10,
        "gapless_prefix_cache_query_tokens_total": 220,
        "gapless_prefix_cache_hit_tokens_total": 140,
        "gapless_decode_seconds_total": 1,
        "gapless_decode_floor_seconds_total": 0.5,
        "gapless_requests_waiting": 7,
        "gapless_requests_running": 3,
        "gapless_kv_blocks_used": 41,
        "gapless_step_seconds_count": 4,
        "gapless_step_seconds_sum": 0.088,
        "gapless_step_gap_seconds_sum": 0.001,
        "gapless_step_host_seconds_sum": 0.006,
        "gapless_batch_sequences_sum": 406,
        "gapless_batch_tokens_sum": 14010,
        "gapless_queue_seconds_sum": 5,
        "gapless_time_to_first_token_seconds_sum": 7.4,
        "gapless_time_per_output_token_seconds_sum": 0.046,
    }
    found = {name: value(metrics, name, engine="main") for name in expected}
    assert found == pytest.approx(expected)


def test_seconds_of_the_device_are_counted_by_kind_and_cause() -> None:
    """What is added is what is found, cause by cause."""
    metrics = Metrics()
    metrics.add_engine("main")
    added = DeviceTotals(busy_s=1.0, unproven_s=2.0)
    added.idle_s |= {cause: float(number) for number, cause in enumerate(IdleCause, start=3)}
    for _ in range(2):
        metrics.account_device("main", added)
    assert value(metrics, "gapless_gpu_busy_seconds_total", engine="main") == 2
    assert value(metrics, "gapless_gpu_unproven_seconds_total", engine="main") == 4
    idle = {cause: value(metrics, "gapless_gpu_idle_seconds_total", engine="main", cause=cause) for cause in IdleCause}
    assert idle == {cause: 2 * seconds for cause, seconds in added.idle_s.items()}


def test_the_mode_of_the_engine_is_one_of_all() -> None:
    """So that a switch shows as one line going down and another going up."""
    metrics = Metrics()
    metrics.set_schedule("main", Schedule.SYNC)
    metrics.set_schedule("main", Schedule.ASYNC)
    modes = {mode: value(metrics, "gapless_engine_schedule", engine="main", schedule=mode) for mode in Schedule}
    assert modes == {Schedule.ASYNC: 1, Schedule.SYNC: 0}


def test_a_gpu_says_what_it_can() -> None:
    """A value that the driver does not give is no sample, rather than a 0 that would be believed."""
    metrics = Metrics()
    metrics.observe_gpu(GpuReading(1, 10, 20, 300.5, 61, dram_ratio=None, sm_ratio=0.5))
    found = {
        name: value(metrics, f"gapless_nvml_{name}", gpu="1")
        for name in ("memory_used_bytes", "memory_total_bytes", "power_watts", "temperature_celsius", "sm_ratio")
    }
    assert list(found.values()) == [10, 20, 300.5, 61, 0.5]
    assert value(metrics, "gapless_nvml_dram_bandwidth_ratio", gpu="1") is None


def test_a_change_of_the_configuration_counts_by_what_became_of_it() -> None:
    """A refused one leaves the time of the last good one alone."""
    metrics = Metrics()
    before = value(metrics, "gapless_config_load_time_seconds")
    metrics.count_config_reload(is_applied=False)
    assert value(metrics, "gapless_config_load_time_seconds") == before
    metrics.count_config_reload(is_applied=True)
    counted = [value(metrics, "gapless_config_reloads_total", outcome=outcome) for outcome in ("applied", "refused")]
    assert counted == [1, 1]
    assert (value(metrics, "gapless_config_load_time_seconds") or 0) >= (before or 0)


def test_what_is_known_beforehand_begins_at_zero() -> None:
    """A rate over the first event is right only if its counter existed before it."""
    metrics = Metrics()
    metrics.add_engine("main")
    metrics.add_pipeline("chat")
    assert value(metrics, "gapless_requests_total", pipeline="chat", outcome="engine_error") == 0
    assert value(metrics, "gapless_gpu_idle_seconds_total", engine="main", cause="down") == 0
    assert value(metrics, "gapless_engine_restarts_total", engine="main") == 0
    assert value(metrics, "gapless_step_seconds_count", engine="main") == 0
    assert value(metrics, "gapless_files", pipeline="chat", state="waiting") == 0


def test_requests_count_by_pipeline_and_outcome() -> None:
    """An outcome of the journal is counted under its name."""
    metrics = Metrics()
    metrics.count_requests("chat", Outcome.COMPLETED, 1)
    metrics.count_requests("chat", Outcome.COMPLETED, 1)
    metrics.count_requests("chat", Outcome.REFUSED, 1)
    metrics.count_requests("other", Outcome.TIMED_OUT, 1)
    assert value(metrics, "gapless_requests_total", pipeline="chat", outcome="completed") == 2
    assert value(metrics, "gapless_requests_total", pipeline="chat", outcome="refused") == 1
    assert value(metrics, "gapless_requests_total", pipeline="other", outcome="timed_out") == 1


def test_a_state_that_no_file_is_in_any_more_goes_back_to_zero() -> None:
    """`set_pipeline` says all of it, not what has changed."""
    metrics = Metrics()
    metrics.set_pipeline("chat", PipelineGauges({FileState.WAITING: 2, FileState.IN_PROGRESS: 1}, 9.0, 8.0, 7))
    names = (
        "gapless_oldest_waiting_file_seconds",
        "gapless_oldest_running_file_seconds",
        "gapless_requests_pending",
    )
    assert [value(metrics, name, pipeline="chat") for name in names] == [9, 8, 7]
    metrics.set_pipeline("chat", PipelineGauges({FileState.IN_PROGRESS: 3}))
    assert [value(metrics, name, pipeline="chat") for name in names] == [0, 0, 0]
    states = {state: value(metrics, "gapless_files", pipeline="chat", state=state) for state in FileState}
    assert states == {state: 3 if state is FileState.IN_PROGRESS else 0 for state in FileState}


def test_a_pause_has_one_cause() -> None:
    """By hand or by the disk, never both; and none once files are taken again."""
    metrics = Metrics()
    for pause in (PauseCause.BY_HAND, PauseCause.STORAGE, None):
        metrics.set_pipeline("chat", PipelineGauges(pause=pause))
        found = {cause: value(metrics, "gapless_pipeline_paused", pipeline="chat", cause=cause) for cause in PauseCause}
        assert found == {cause: cause is pause for cause in PauseCause}


def test_files_and_choices_count_by_how_they_ended() -> None:
    """Each under the word that the Batch object and the output lines use."""
    metrics = Metrics()
    metrics.add_pipeline("chat")
    metrics.count_file("chat", BatchStatus.COMPLETED, 45.0)
    metrics.count_choices("chat", FinishReason.LENGTH, 3)
    assert value(metrics, "gapless_files_ended_total", pipeline="chat", status="completed") == 1
    assert value(metrics, "gapless_files_ended_total", pipeline="chat", status="failed") == 0
    assert value(metrics, "gapless_file_seconds_bucket", pipeline="chat", le="60.0") == 1
    assert value(metrics, "gapless_choices_total", pipeline="chat", finish_reason="length") == 3


def test_an_engine_that_is_down_holds_nothing_and_keeps_its_counters() -> None:
    """Gauges of a dead engine would lie for as long as it is dead; its counters must not go back."""
    metrics = Metrics()
    metrics.add_engine("main")
    metrics.note_engine_ready("main", READY)
    metrics.observe_engine_stats("main", stats_of())
    assert value(metrics, "gapless_kv_blocks_capacity", engine="main") == 50
    assert value(metrics, "gapless_seats_capacity", engine="main") == 16
    metrics.count_engine_restart("main")
    metrics.note_engine_down("main")
    gauges = (
        "gapless_requests_waiting",
        "gapless_requests_running",
        "gapless_kv_blocks_used",
        "gapless_kv_blocks_capacity",
        "gapless_seats_capacity",
    )
    assert [value(metrics, name, engine="main") for name in gauges] == [0, 0, 0, 0, 0]
    assert value(metrics, "gapless_generation_tokens_total", engine="main") == 20
    assert value(metrics, "gapless_engine_restarts_total", engine="main") == 1


def test_the_disk_and_the_journal_are_watched() -> None:
    """Free space is the last one said; each sync is one observation."""
    metrics = Metrics()
    metrics.set_disk_free(5 << 30)
    metrics.set_disk_free(4 << 30)
    metrics.observe_journal_sync(0.003)
    assert value(metrics, "gapless_disk_free_bytes") == 4 << 30
    assert value(metrics, "gapless_journal_sync_seconds_bucket", le="0.002") == 0
    assert value(metrics, "gapless_journal_sync_seconds_bucket", le="0.005") == 1


def test_the_age_of_the_main_loop_grows_while_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is worked out when it is asked for, since a loop that hangs sets nothing."""
    now_s = 100.0
    monkeypatch.setattr("daemon.metrics.time.monotonic", lambda: now_s)
    metrics = Metrics()
    metrics.note_round()
    now_s = 107.5
    assert b"gapless_main_loop_age_seconds 7.5\n" in metrics.render("")[0]
    metrics.note_round()
    assert b"gapless_main_loop_age_seconds 0.0\n" in metrics.render("")[0]


def test_an_engine_that_is_gone_is_not_one_that_is_down() -> None:
    """Else somebody would be told of it for as long as the daemon lives; what it counted stays, and it may come back."""
    metrics = Metrics()
    for _ in range(2):
        metrics.add_engine("main")
        metrics.set_schedule("main", Schedule.ASYNC)
        metrics.observe_engine_stats("main", stats_of())
        metrics.note_engine_down("main")
        metrics.forget_engine("main")
        text = metrics.render("")[0].decode()
        assert not [line for line in text.splitlines() if line.startswith("gapless_engine_") and "restarts" not in line]
        assert "gapless_gpu_busy_ratio{" not in text
    assert value(metrics, "gapless_prompt_tokens_total", engine="main") == 200


def test_a_file_that_stays_in_work_is_counted() -> None:
    """From 0 on, so that the first one is an increase."""
    metrics = Metrics()
    metrics.add_pipeline("chat")
    assert value(metrics, "gapless_files_left_in_work_total", pipeline="chat") == 0
    metrics.count_left_file("chat")
    assert value(metrics, "gapless_files_left_in_work_total", pipeline="chat") == 1


def test_two_daemons_in_one_process_do_not_share_metrics() -> None:
    """The registry is the object's own; nothing is global."""
    one, other = Metrics(), Metrics()
    one.count_requests("chat", Outcome.COMPLETED, 1)
    assert value(other, "gapless_requests_total", pipeline="chat", outcome="completed") is None


def test_both_formats_can_be_parsed_and_hold_the_same_metrics() -> None:
    """Prometheus gets OpenMetrics when it asks for it, and everybody else plain text."""
    metrics = Metrics()
    metrics.add_engine('we"ird\n')
    metrics.add_pipeline("chat")
    text, text_type = metrics.render("text/plain;version=0.0.4, */*")
    openmetrics, openmetrics_type = metrics.render("application/openmetrics-text;version=x;q=0.9,text/plain;q=0.5")
    assert text_type.startswith("text/plain; version=0.0.4")
    assert openmetrics_type.startswith("application/openmetrics-text; version=1.0.0")
    in_text = {
        sample.name for family in text_parser.text_string_to_metric_families(text.decode()) for sample in family.samples
    }
    in_openmetrics = {
        sample.name
        for family in openmetrics_parser.text_string_to_metric_families(openmetrics.decode())
        for sample in family.samples
    }
    assert in_text == in_openmetrics
    assert "gapless_build_info" in in_text


def test_a_scrape_of_a_large_installation_takes_a_third_of_the_work_of_the_librarys_own_writers() -> None:
    """4 engines and 8 pipelines, over 1,100 lines; counted in calls, which no other program disturbs."""
    metrics = Metrics()
    for number in range(4):
        metrics.add_engine(f"engine{number}")
    for number in range(8):
        metrics.add_pipeline(f"pipeline{number}")
    theirs = num_calls(partial(exposition.generate_latest, metrics.registry))
    for accept in ("text/plain", "application/openmetrics-text"):
        assert num_calls(partial(metrics.render, accept)) < theirs / 3


def num_calls(function: Callable[[], object]) -> int:
    """Count the calls of functions, Python's and C's, that one takes when it runs for the second time."""
    counts: Counter[str] = Counter()

    def note(_: FrameType, event: str, __: object) -> None:
        counts[event] += 1

    function()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counts["call"] + counts["c_call"]


def exported() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> (type, labels) of everything a daemon exports."""
    metrics = Metrics()
    metrics.add_engine("main")
    metrics.set_schedule("main", Schedule.ASYNC)
    metrics.add_pipeline("chat")
    metrics.observe_gpu(GpuReading(0, 1, 2, 3.0, 4, 0.5, 0.6))
    result = {}
    for family in metrics.registry.collect():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = tuple(label for label in family.samples[0].labels if label != "le")
        result[family.name + suffix] = ("gauge" if family.type == "info" else family.type, labels)
    return result


def listed() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> (type, labels) as the reference page's table lists them."""
    rows = re.findall(
        r"^\| `(gapless_\w+)` \| (\w+) \| ([^|]*) \| [^|]+ \|$", REFERENCE.read_text(), flags=re.MULTILINE
    )
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_reference_page_lists_what_is_exported() -> None:
    """Page and exporter agree in names, types and labels, in both directions."""
    assert listed() == exported()


@pytest.mark.parametrize("words", [IdleCause, FileState, FINAL, [outcome.name.lower() for outcome in Outcome]])
def test_the_reference_page_explains_every_value_of_a_label(words: list[str]) -> None:
    """Each cause, state and outcome has a row of its own."""
    page = REFERENCE.read_text()
    assert [word for word in words if f"| `{word}` |" not in page] == []
