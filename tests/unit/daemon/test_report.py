"""The report of one file: the same keys in the same order, true numbers, and a table a person can read."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from daemon.device_account import DeviceTotals
from daemon.error_groups import ErrorGroup, ErrorLine
from daemon.journal_records import LineNumbers, Outcome
from daemon.journal_state import Tally
from daemon.report import SEED_RULE, FileReport, Provenance, config_hash
from daemon.report_table import duration, render_report
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import IdleCause


def a_tally() -> Tally:
    tally = Tally()
    for _ in range(1200):
        tally.add(Outcome.COMPLETED, 1, LineNumbers(1, 0, 10, 4, 20))
    tally.add(Outcome.COMPLETED, 1, LineNumbers(0, 1, 10, 0, 16))
    for outcome in (Outcome.REFUSED, Outcome.DUPLICATE, Outcome.DUPLICATE, Outcome.ENGINE_ERROR):
        tally.add(outcome, 1, LineNumbers())
    return tally


def a_device() -> DeviceTotals:
    device = DeviceTotals(busy_s=6.0, unproven_s=1.0, num_tokens=62452)
    device.idle_s[IdleCause.FEED] = 2.0
    device.idle_s[IdleCause.NO_WORK] = 1.0
    device.idle_s[IdleCause.H2D] = 0.001
    return device


REPORT = FileReport(
    source_name="in.jsonl",
    pipeline="chat",
    model="SmolLM2",
    status="completed",
    num_requests=1205,
    tally=a_tally(),
    queued_s=0.51234567,
    running_s=10.0,
    num_resent=3,
    num_blank_lines=2,
    models_asked={"gpt-4o": 7, "a\nb": 1},
    device=a_device(),
    provenance=Provenance("m0de1", "c0nf16", "f00d"),
    errors=(
        ErrorGroup("duplicate_custom_id", ErrorLine("duplicate_custom_id", "a", "in.jsonl line 4: taken"), 2),
        ErrorGroup("engine_error", ErrorLine("engine_error", None, "x" * 200), 1),
    ),
    num_new_tokens=31226,
    price_per_gpu_hour=2.5,
)


def test_the_document_is_complete_and_always_in_the_same_order() -> None:
    """The whole of it, as text: a change of a key or of its place is seen here."""
    idle = {cause.value: 0.0 for cause in IdleCause} | {"feed": 2.0, "no_work": 1.0, "h2d": 0.001}
    expected = {
        "file": "in.jsonl",
        "pipeline": "chat",
        "model": "SmolLM2",
        "model_hash": "m0de1",
        "config_hash": "c0nf16",
        "fingerprint": "f00d",
        "made_with": [],
        "seed_rule": SEED_RULE,
        "status": "completed",
        "failure": None,
        "requests": {
            "total": 1205,
            "completed": 1201,
            "refused": 1,
            "duplicate": 2,
            "cancelled": 0,
            "expired": 0,
            "timed_out": 0,
            "engine_error": 1,
            "resent": 3,
        },
        "errors": [
            {
                "code": "duplicate_custom_id",
                "count": 2,
                "first": {"custom_id": "a", "message": "in.jsonl line 4: taken"},
            },
            {"code": "engine_error", "count": 1, "first": {"custom_id": None, "message": "x" * 200}},
        ],
        "finish_reasons": {"stop": 1200, "length": 1},
        "tokens": {"prompt": 12010, "cached": 4800, "completion": 24016},
        "seconds": {"queued": 0.512, "running": 10.0},
        "completion_tokens_per_s": 2401.6,
        "is_resumed": False,
        "blank_lines": 2,
        "models_asked": {"a\nb": 1, "gpt-4o": 7},
        "device_seconds": {"busy": 6.0, "unproven": 1.0, "idle": idle},
        "cost": {"share_of_tokens": 0.5, "gpu_seconds": 5.0, "price_per_gpu_hour": 2.5, "total": 0.003473},
    }
    assert REPORT.as_json() == json.dumps(expected, indent=2) + "\n"


def test_the_table() -> None:
    """What the demo and the command show, to the letter."""
    assert render_report(json.loads(REPORT.as_json())) == (
        "file              in.jsonl (completed)\n"
        "pipeline          chat, model SmolLM2\n"
        "requests          1,205: 1,201 completed, 1 refused, 2 duplicate, 1 engine error, 3 resent\n"
        "errors            2 x duplicate_custom_id; first a: in.jsonl line 4: taken\n"
        f"                  1 x engine_error; first {'x' * 133}...\n"
        "finish reasons    1,200 stop, 1 length; 0.1 % cut by max_tokens or the context\n"
        "tokens            12,010 prompt (4,800 cached), 24,016 completion\n"
        "time              0.5 s queued, 10.0 s running\n"
        "speed             2,401.6 completion tokens/s\n"
        "device            60.0 % busy, 10.0 % unproven, 10.0 % idle (no_work), 20.0 % idle (feed)\n"
        "cost              0.0035 at 2.5 an hour: 5.0 s of the device, 50.0 % of its tokens meanwhile\n"
        "blank lines       2 skipped\n"
        "models asked for  a\\nb x 1, gpt-4o x 7; served by the pipeline's\n"
        "made with         model m0de1, configuration c0nf16\n"
        "seeds             each request's own, else made of the file's content and the request's place in it\n"
    )


def test_of_a_file_that_failed_it_says_why() -> None:
    failed = replace(REPORT, status="failed", failure=("invalid_file", "in.jsonl: found nothing"))
    report = json.loads(failed.as_json())
    assert report["failure"] == {"code": "invalid_file", "message": "in.jsonl: found nothing"}
    assert render_report(report).splitlines()[:2] == [
        "file              in.jsonl (failed)",
        "why               in.jsonl: found nothing",
    ]
    del report["failure"]
    assert "why" not in render_report(report), "a report that an earlier version wrote"


@pytest.mark.parametrize("device", [None, DeviceTotals()])
def test_a_file_that_was_not_run_has_a_report_too(device: DeviceTotals | None) -> None:
    """Nothing is divided by nothing, and rows without content are left out."""
    report = FileReport("x", "chat", None, "failed", None, Tally(), 0.0, 0.0, device=device)
    document = report.as_dict()
    assert document["completion_tokens_per_s"] is None
    table = render_report(document)
    assert "pipeline          chat, model unknown\n" in table
    for label in ("requests", "finish", "tokens", "time", "speed", "device", "cost", "blank lines", "models asked for"):
        assert f"\n{label}" not in table, "nothing is known of it, which is not nothing"
    rejected = render_report(replace(report, num_requests=3).as_dict())
    assert rejected.endswith("requests          3\n"), "counted, and none was run"
    assert render_report(replace(report, status="completed", num_requests=0).as_dict()).endswith(
        "requests          0\n"
    )


def test_any_name_gives_valid_json_and_one_row() -> None:
    """A name that is no UTF-8, with a newline in it."""
    report = replace(REPORT, source_name=os.fsdecode(b"\xff\n.jsonl"), models_asked={"\ud800": 1})
    document = json.loads(report.as_json().encode("utf-8"))
    assert document["file"] == "\\xff\n.jsonl"
    assert render_report(document).splitlines()[0] == "file              \\xff\\n.jsonl (completed)"


def test_without_a_price_the_share_of_the_device_is_said_all_the_same() -> None:
    """The cost is unknown, not nothing; after a restart it says what it leaves out."""
    document = replace(REPORT, price_per_gpu_hour=None, is_resumed=True).as_dict()
    assert document["cost"]["total"] is None
    table = render_report(document)
    assert "% of its tokens meanwhile, since the daemon's last start; daemon.price_per_gpu_hour is not set\n" in table
    assert "running, restarts of the daemon included\n" in table


def test_what_requests_had_taken_that_were_cut_is_said_to_be_in_no_cost() -> None:
    """A file that was cancelled after hours would else seem to have cost nothing."""
    tally = a_tally()
    for outcome in (Outcome.CANCELLED, Outcome.EXPIRED, Outcome.TIMED_OUT):
        tally.add(outcome, 1, LineNumbers())
    table = render_report(replace(REPORT, tally=tally).as_dict())
    assert "% of its tokens meanwhile; without what was taken by 3 requests cut early\n" in table


def test_a_file_never_pays_for_more_than_the_whole_device() -> None:
    """The engine's last figures may come after the file's last answer."""
    assert replace(REPORT, num_new_tokens=10**9).as_dict()["cost"]["share_of_tokens"] == 1.0


def test_the_hash_of_the_configuration_changes_with_each_part_of_it() -> None:
    """Equal settings, equal hash; other sampling or another engine, another hash."""
    engine = EngineConfig("e", ModelConfig("fake:"))
    first = config_hash({"sampling": {"temperature": 0}, "priority": 1}, engine)
    assert config_hash({"priority": 1, "sampling": {"temperature": 0}}, engine) == first
    assert config_hash({"sampling": {"temperature": 1}, "priority": 1}, engine) != first
    assert config_hash({"sampling": {"temperature": 0}, "priority": 1}, replace(engine, max_context=9)) != first


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (60, "1 min 00 s"),
        (245, "4 min 05 s"),
        (7380, "2 h 03 min"),
    ],
)
def test_a_time_is_said_as_people_say_it(seconds: float, text: str) -> None:
    """With no more digits than matter."""
    assert duration(seconds) == text


@pytest.mark.parametrize("value", [[], None, {}, {"tokens": 3}, {"file": "f", "tokens": {}, "seconds": None}])
def test_what_is_no_report_has_no_table(value: Any) -> None:
    """A person may have changed it in the outbox: the status page and the command say so, and are at no fault."""
    with pytest.raises(ValueError, match="Error"):
        render_report(value)
