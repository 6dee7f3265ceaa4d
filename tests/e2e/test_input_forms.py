"""Request files of each form, through the whole daemon with the fake engine."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from backports import zstd
from commands import gapless
from daemon_process import request_lines
from openai.types.responses import Response
from pyarrow import parquet

CASES = Path(__file__).parent.parent / "data" / "cases"
COMPRESS = {"gz": gzip.compress, "zst": zstd.compress}


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_gives_the_output_of_the_plain_one(make_daemon, kind):
    """Under the stem before both extensions, not compressed; `created` alone tells the two apart."""
    daemon = make_daemon("fake:")
    content = request_lines(40, temperature=1.0)
    daemon.drop("a.jsonl", content)
    daemon.drop(f"b.jsonl.{kind}", COMPRESS[kind](content.encode()))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    plain, packed = daemon.lines("a.output.jsonl"), daemon.lines("b.output.jsonl")
    for line in plain + packed:
        line["response"]["body"].pop("created")
    assert len(packed) == 40
    assert packed == plain
    assert sorted(path.name for path in (daemon.root / "done").iterdir()) == ["a.jsonl", f"b.jsonl.{kind}"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_that_is_cut_off_fails_and_nothing_of_it_is_run(make_daemon, kind):
    daemon = make_daemon()
    daemon.drop(f"f.jsonl.{kind}", COMPRESS[kind](request_lines(40).encode())[:-9])
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    reason = json.loads((daemon.root / "failed" / "f.reason.json").read_text())
    assert reason["code"] == "invalid_file"
    assert f"f.jsonl.{kind}: found the end of the file within its compressed data" in reason["message"]
    assert (daemon.root / "failed" / f"f.jsonl.{kind}").exists()
    assert daemon.batch("f")["status"] == "failed"
    assert not (daemon.outbox / "f.output.jsonl").exists()


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_goes_on_after_a_kill(make_daemon, kind):
    """Also when only its journal is left to publish, its input is found under both extensions."""
    daemon = make_daemon()
    daemon.drop(f"f.jsonl.{kind}", COMPRESS[kind](request_lines(300).encode()))
    daemon.start()
    daemon.until(lambda: (daemon.batch("f") or {}).get("request_counts", {}).get("completed"), "some answers")
    daemon.kill()
    daemon.start("--once")
    assert daemon.process.wait(90) == 0
    assert len(daemon.results("f")) == 300
    assert (daemon.root / "done" / f"f.jsonl.{kind}").exists()


RESPONSES = {
    "string": {"input": "Say hi"},
    "parts": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again"}]},
        ],
        "max_output_tokens": 4,
        "store": False,
    },
    "tools": {"input": "x", "tools": [{"type": "web_search"}]},
    "background": {"input": "x", "background": True},
    "previous_response_id": {"input": "x", "previous_response_id": "resp_1"},
    "stream": {"input": "x", "stream": True},
    "input": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
}


def test_responses_are_answered_in_openais_form_and_what_is_not_built_is_refused_by_name(make_daemon):
    """Text in, text out; each other feature is an error line that names its field."""
    daemon = make_daemon()
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/responses", "body": {"model": "m"} | body})
        for name, body in RESPONSES.items()
    ]
    daemon.drop("r.jsonl", "\n".join(lines))
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    answered = {line["custom_id"]: line for line in daemon.lines("r.output.jsonl")}
    assert list(answered) == ["string", "parts"]
    for line in answered.values():
        assert Response.model_validate(line["response"]["body"], strict=True).output_text
    short = Response.model_validate(answered["parts"]["response"]["body"])
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert short.usage.output_tokens == 4
    refused = {line["custom_id"]: line["response"]["body"]["error"]["param"] for line in daemon.lines("r.errors.jsonl")}
    names = ("tools", "background", "previous_response_id", "stream")
    assert refused == {name: name for name in names} | {"input": "input[0].content[0].type"}


TEMPLATE = ', template: "Sum up: {{ text }}"'
TABLE = "id,text\n" + "".join(f'{n},"row {n}, with ""quotes"""\n' for n in range(160))


def test_the_hard_table_has_an_outcome_in_each_row(make_daemon):
    """The rows of the case with quotes and commas, and one that makes an empty prompt."""
    daemon = make_daemon(pipeline=', template: "{{ ticket }}", system: "Be brief."')
    daemon.drop("table.csv", (CASES / "table.csv").read_bytes())
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    text = (daemon.outbox / "table.output.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert [row["ticket"] for row in rows][:2] == [
        "My printer, the big one, is on fire",
        'Ich habe mein "Passwort" vergessen',
    ]
    assert [bool(row["output"]) for row in rows] == [True, True, False]
    assert [row["error_code"] for row in rows] == ["", "", "invalid_value"]
    assert "table.csv line 4: template: found an empty prompt" in rows[2]["error_message"]
    (error,) = daemon.lines("table.errors.jsonl")
    assert error["custom_id"] == "line-4"
    batch = daemon.batch("table")
    assert batch["output_file_id"] == "table.output.csv"
    assert batch["error_file_id"] == "table.errors.jsonl"
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert not list(daemon.outbox.glob("*.partial"))
    assert (daemon.root / "done" / "table.csv").exists()


def test_a_table_without_a_template_fails_with_one_message(make_daemon):
    daemon = make_daemon()
    daemon.drop("table.csv", (CASES / "table.csv").read_bytes())
    daemon.drop("good.jsonl", request_lines(2))
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    reason = json.loads((daemon.root / "failed" / "table.reason.json").read_text())
    assert reason["message"].startswith("table.csv: found a table in a pipeline without a template, expected one")
    assert len(daemon.results("good")) == 2


def test_a_parquet_table_gets_its_answers_as_columns(make_daemon):
    daemon = make_daemon(pipeline=TEMPLATE)
    table = pa.table({"text": ["a", "b", None], "n": [1, 2, 3]})
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    daemon.drop("t.parquet", sink.getvalue())
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    found = parquet.read_table(daemon.outbox / "t.output.parquet")
    assert found.select(["text", "n"]).equals(table)
    assert all(found["output"].to_pylist())
    assert found["error_code"].to_pylist() == [None] * 3


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_is_the_same_to_the_last_byte_after_kills(make_daemon, name):
    """Killed in the middle and again a little later; the answers depend on row and seed alone."""
    content = TABLE.encode()
    if name == "t.parquet":
        sink = io.BytesIO()
        parquet.write_table(pa.table({"id": list(range(160)), "text": [f"row {n}" for n in range(160)]}), sink)
        content = sink.getvalue()
    undisturbed, killed = (make_daemon("fake:step_ms=2", pipeline=TEMPLATE) for _ in range(2))
    for daemon in (undisturbed, killed):
        daemon.drop(name, content)
    undisturbed.start("--once")
    assert undisturbed.process.wait(60) == 0
    partial = killed.outbox / "t.output.jsonl.partial"
    for num_lines in (30, 100):
        killed.start()
        killed.until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= num_lines, "in mid-file")  # noqa: B023
        killed.kill()
    killed.start("--once")
    assert killed.process.wait(60) == 0
    output = name.replace("t.", "t.output.")
    assert (killed.outbox / output).read_bytes() == (undisturbed.outbox / output).read_bytes()
    assert sorted(path.name for path in killed.outbox.iterdir()) == ["t.batch.json", output, "t.report.json"]


def test_a_table_keeps_the_template_that_it_was_claimed_with(make_daemon):
    """Also where the configuration has none any more when the daemon comes back."""
    daemon = make_daemon("fake:step_ms=2", pipeline=TEMPLATE)
    daemon.drop("t.csv", TABLE)
    daemon.start()
    partial = daemon.outbox / "t.output.jsonl.partial"
    daemon.until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= 40, "in mid-file")
    daemon.kill()
    daemon.config.write_text(daemon.config.read_text().replace(TEMPLATE, ""))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert daemon.batch("t")["request_counts"] == {"total": 160, "completed": 160, "failed": 0}


def test_check_counts_the_rows_of_a_table_by_the_pipelines_template(make_daemon):
    """Without a daemon: good and bad rows, and their tokens."""
    daemon = make_daemon(pipeline=', template: "{{ ticket }}"')
    code, said = gapless("check", "--config", daemon.config, CASES / "table.csv", cwd=daemon.folder)
    assert code == 3, said
    assert "2 good requests, 1 bad, 0 blank lines" in said
    assert "table.csv line 4: template: found an empty prompt, expected words" in said
