"""Commands about a file whose results somebody changed, or replaced by other files of their names: one line, no fault of ours."""

import json

import pytest
from commands import gapless

CONFIG = "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n"
CHANGED = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b'{"status": ["completed"], "request_counts": {}, "metadata": null}',
    b'{"status": "completed", "request_counts": null, "metadata": {"source": 5}}',
    b'{"status": "completed", "request_counts": {"completed": "x", "failed": null}, "metadata": []}',
]


@pytest.fixture
def outbox(tmp_path):
    (tmp_path / "gapless.yaml").write_text(CONFIG)
    for name in ("inbox", "work", "outbox", "done", "failed"):
        (tmp_path / "spool" / "p" / name).mkdir(parents=True)
    return tmp_path / "spool" / "p" / "outbox"


@pytest.mark.parametrize("content", CHANGED)
def test_what_stands_in_the_outbox_may_be_anything(outbox, tmp_path, content):
    """For each command that looks there."""
    for name in ("f.batch.json", "f.report.json", "g~2.batch.json"):
        (outbox / name).write_bytes(content)
    (tmp_path / "spool" / "p" / "done" / "f.jsonl").write_text('{"prompt": "a"}\n')
    for arguments in (("cancel", "f"), ("explain", "f"), ("explain", "g"), ("report", "f"), ("retry", "f")):
        code, said = gapless(*arguments, cwd=tmp_path)
        assert code in {0, 2, 3}, (arguments, said)
        assert "internal error" not in said


def test_a_good_report_of_another_shape_is_no_report(outbox, tmp_path):
    (outbox / "f.report.json").write_text(json.dumps({"file": "f.jsonl", "tokens": 3}))
    code, said = gapless("report", "f", cwd=tmp_path)
    assert code == 2
    assert said.endswith("expected a report as gapless writes it")
