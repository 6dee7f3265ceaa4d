"""The how-to pages, done as they say."""

import json

import commands
import pytest
from doc_blocks import blocks_of

CONFIG = """\
daemon: {http: {port: 0}, settle_s: 0.05, rescan_s: 0.2, log: {level: error}}
engines: {main: {model: {path: 'fake:step_ms=1,eos_every=40'}}}
pipelines: {chat: {engine: main}}
"""


def gapless(folder, *arguments):
    """Run a command in a folder; return its exit code."""
    return commands.gapless(*arguments, cwd=folder, GAPLESS_CONFIG=str(folder / "gapless.yaml"))[0]


def snippets(page):
    return [block.text for block in blocks_of("python") if block.page == f"docs/how-to/{page}.md"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "gapless.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_evaluation(folder, capsys):
    """Questions out, answers in, joined by id; what failed and what was cut is counted."""
    make, score = snippets("evaluation")
    names = {}
    exec(make, names)  # noqa: S102  as a person would
    names["questions"]["bad"] = ("never asked", "x")
    assert gapless(folder, "check", "--no-tokens", "eval.jsonl") == 0
    assert gapless(folder, "submit", "eval.jsonl") == 0
    assert gapless(folder, "run", "--once") == 0
    exec(score, names)  # noqa: S102
    assert capsys.readouterr().out.startswith("0 of 3 right, 1 failed, ")
    assert names["answers"].keys() == {"sum-1", "capital-1"}


def test_the_batch_object_is_openais(folder, capsys):
    """The example line of the page is run, and the client's own class reads what became of it."""
    (line,) = [block.text for block in blocks_of("jsonl") if block.page == "docs/how-to/from-openai-batch.md"]
    (folder / "questions.jsonl").write_text(line)
    assert gapless(folder, "submit", "questions.jsonl") == 0
    assert gapless(folder, "run", "--once") == 0
    (read,) = snippets("from-openai-batch")
    exec(read, {})  # noqa: S102
    assert capsys.readouterr().out == "completed 1 0\n"
    output = json.loads((folder / "spool/chat/outbox/questions.output.jsonl").read_text())
    assert output["custom_id"] == "q1"
    assert output["response"]["body"]["object"] == "chat.completion"


def test_rollouts_of_the_same_file_are_the_same_until_something_in_it_changes(folder):
    """What the page warns of, and what it advises."""
    line = {"id": "p", "messages": [{"role": "user", "content": "Go"}], "n": 2, "temperature": 1, "max_tokens": 30}
    files = {"a": line, "b": line, "seeded": line | {"seed": 5}, "renamed": line | {"id": "step-2/p"}}
    for stem, body in files.items():
        (folder / f"{stem}.jsonl").write_text(json.dumps(body) + "\n")
        assert gapless(folder, "submit", f"{stem}.jsonl") == 0
    assert gapless(folder, "run", "--once") == 0
    texts = {stem: _texts(folder / f"spool/chat/outbox/{stem}.output.jsonl") for stem in files}
    assert texts["a"] == texts["b"]
    assert texts["seeded"] != texts["a"]
    assert texts["renamed"] != texts["a"]
    assert texts["a"][0] != texts["a"][1]


def test_a_pilot_of_a_table(folder, capsys):
    """The page's own configuration, on the fake engine, and its look at the labels."""
    (config,) = [block.text for block in blocks_of("yaml") if block.page == "docs/how-to/label-a-table.md"]
    head = CONFIG.splitlines()[0]
    (folder / "gapless.yaml").write_text(head + "\n" + config.replace("Qwen/Qwen3-8B", '"fake:step_ms=1"'))
    (folder / "pilot.csv").write_text("product,review\nkettle,it boils\nkettle\n")
    assert gapless(folder, "check", "--no-tokens", "pilot.csv") == 3
    assert gapless(folder, "submit", "pilot.csv") == 0
    assert gapless(folder, "run", "--once") == 3
    (look,) = snippets("label-a-table")
    exec(look, {})  # noqa: S102
    assert "Counter({'invalid_row': 1})" in capsys.readouterr().out


def _texts(path):
    choices = json.loads(path.read_text())["response"]["body"]["choices"]
    return [choice["message"]["content"] for choice in choices]
