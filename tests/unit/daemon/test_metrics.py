"""Metrics: what each event does to them, and that the reference page lists just what is exported."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from daemon.journal_records import Outcome
from daemon.metrics import Metrics
from daemon.status import FileState
from pipelines.core.request import DeviceTime, EngineStats, IdleCause

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def stats_of(time: DeviceTime) -> EngineStats:
    """An engine's report with a number of its own in every field."""
    return EngineStats(
        device_time=time,
        num_waiting=7,
        num_running=3,
        num_used_blocks=41,
        prompt_tokens=100,
        generation_tokens=20,
        preemptions=2,
        step_s=(0.004, 0.04),
        num_batched=(3, 200),
        steps_taken_back=5,
    )


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A sample's value; None where it does not exist."""
    return metrics.registry.get_sample_value(name, labels)


def test_a_report_of_the_engine_reaches_every_metric_it_is_about() -> None:
    """Each field of the report is found again under its own name and label."""
    metrics = Metrics()
    metrics.add_engine("main")
    time = DeviceTime(start_s=0, end_s=15, busy_s=1, unproven_s=2, empty_s=4, host_s=3, h2d_s=5)
    for _ in range(2):
        metrics.observe_engine_stats("main", stats_of(time), starved_for_feed=False)
    found = {
        name: value(metrics, name, engine="main")
        for name in (
            "gapless_gpu_busy_seconds_total",
            "gapless_gpu_unproven_seconds_total",
            "gapless_prompt_tokens_total",
            "gapless_generation_tokens_total",
            "gapless_preemptions_total",
            "gapless_steps_taken_back_total",
            "gapless_requests_waiting",
            "gapless_requests_running",
            "gapless_kv_blocks_used",
            "gapless_step_seconds_count",
            "gapless_step_seconds_sum",
            "gapless_batch_sequences_sum",
        )
    }
    assert list(found.values()) == pytest.approx([2, 4, 200, 40, 4, 10, 7, 3, 41, 4, 0.088, 406])
    idle = {cause: value(metrics, "gapless_gpu_idle_seconds_total", engine="main", cause=cause) for cause in IdleCause}
    expected = {IdleCause.NO_WORK: 8, IdleCause.HOST: 6, IdleCause.H2D: 10}
    assert idle == {cause: expected.get(cause, 0) for cause in IdleCause}


@pytest.mark.parametrize(("starved", "cause"), [(True, IdleCause.FEED), (False, IdleCause.NO_WORK)])
def test_an_empty_engine_idles_for_feed_only_while_files_wait(starved: bool, cause: IdleCause) -> None:
    """The same report counts under another cause, as the daemon knows it."""
    metrics = Metrics()
    time = DeviceTime(start_s=0, end_s=4, busy_s=0, unproven_s=0, empty_s=4, host_s=0, h2d_s=0)
    metrics.observe_engine_stats("main", stats_of(time), starved_for_feed=starved)
    assert value(metrics, "gapless_gpu_idle_seconds_total", engine="main", cause=cause) == 4


seconds = st.floats(min_value=0, max_value=1e6)


@given(st.lists(st.tuples(seconds, seconds, seconds, seconds, seconds, st.booleans())), seconds)
def test_busy_unproven_and_idle_add_up_to_what_was_reported(
    reports: list[tuple[float, float, float, float, float, bool]], down_s: float
) -> None:
    """No second is lost or counted twice, whatever an engine reports and the daemon adds."""
    metrics = Metrics()
    for busy, unproven, empty, host, h2d, starved in reports:
        parts = (busy, unproven, empty, host, h2d)
        metrics.observe_engine_stats("main", stats_of(DeviceTime(0, sum(parts), *parts)), starved_for_feed=starved)
    metrics.account_idle("main", IdleCause.DOWN, down_s)
    counted = sum(
        sample.value
        for family in metrics.registry.collect()
        if family.name in ("gapless_gpu_busy_seconds", "gapless_gpu_unproven_seconds", "gapless_gpu_idle_seconds")
        for sample in family.samples
        if sample.name.endswith("_total")
    )
    assert counted == pytest.approx(sum(sum(report[:5]) for report in reports) + down_s)


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
    """`set_files` says all of it, not what has changed."""
    metrics = Metrics()
    metrics.set_files("chat", {FileState.WAITING: 2, FileState.IN_PROGRESS: 1})
    metrics.set_files("chat", {FileState.IN_PROGRESS: 3})
    states = {state: value(metrics, "gapless_files", pipeline="chat", state=state) for state in FileState}
    assert states == {state: 3 if state is FileState.IN_PROGRESS else 0 for state in FileState}


def test_an_engine_that_is_down_holds_nothing_and_keeps_its_counters() -> None:
    """Gauges of a dead engine would lie for as long as it is dead; its counters must not go back."""
    metrics = Metrics()
    metrics.note_engine_ready("main", num_blocks=50)
    metrics.observe_engine_stats("main", stats_of(DeviceTime(0, 1, 1, 0, 0, 0, 0)), starved_for_feed=False)
    assert value(metrics, "gapless_kv_blocks_capacity", engine="main") == 50
    metrics.count_engine_restart("main")
    metrics.note_engine_down("main")
    gauges = (
        "gapless_requests_waiting",
        "gapless_requests_running",
        "gapless_kv_blocks_used",
        "gapless_kv_blocks_capacity",
    )
    assert [value(metrics, name, engine="main") for name in gauges] == [0, 0, 0, 0]
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


def exported() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> (type, labels) of everything a daemon exports."""
    metrics = Metrics()
    metrics.add_engine("main")
    metrics.add_pipeline("chat")
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


@pytest.mark.parametrize("words", [IdleCause, FileState, [outcome.name.lower() for outcome in Outcome]])
def test_the_reference_page_explains_every_value_of_a_label(words: list[str]) -> None:
    """Each cause, state and outcome has a row of its own."""
    page = REFERENCE.read_text()
    assert [word for word in words if f"| `{word}` |" not in page] == []
