"""What is known of a file before it is run; tokens are counted in a real text process, with the tokenizer of the fake engine."""

import asyncio
import json
import os

import pytest

from daemon.errors import EngineConfigError, EngineStartError
from daemon.file_check import Speed, check_lines, check_tokens, find_speed
from daemon.settings import load_settings
from daemon.token_count import TextProcess, TokenCounts
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import SamplingParams, TextRequest

CONTEXT = 100


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "c.yaml").write_text(
        f"engines: {{e: {{model: {{path: 'fake:context={CONTEXT}'}}}}}}\n"
        "pipelines: {p: {engine: e, models: [m], strict_model: true, sampling: {max_tokens: 30}}}\n"
    )
    return load_settings([tmp_path / "c.yaml"])


def checked(tmp_path, settings, *requests):
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return check_tokens(check_lines(path), settings, "p", tmp_path / "outbox", lambda _: None)


def test_tokens_are_those_of_the_run_and_each_refusal_has_its_line(tmp_path, settings):
    """A token is a byte here. Kept apart: what the pipeline refuses, what only the tokenizer knows, and bad lines."""
    found = checked(
        tmp_path,
        settings,
        {"prompt": "x" * 10},
        {"prompt": "x" * 20, "max_tokens": 5, "n": 3},
        {"prompt": "x" * 100},  # no room for an answer
        {"prompt": 5},
        {"prompt": "x", "model": "other"},
        {"prompt": "x" * 90},  # the pipeline's default is shortened to what fits
        {"prompt": "x" * 90, "max_tokens": 11},  # one's own is not
    )
    assert sorted(found.counts.prompt_tokens) == [10, 20, 90]
    assert found.counts.max_output_tokens == 30 + 3 * 5 + 10
    assert [(one.place.line, one.code) for one in found.refused] == [
        (3, "context_length_exceeded"), (5, "model_not_found"), (7, "context_length_exceeded"),
    ]  # fmt: skip
    assert found.num_too_long == 2
    document = json.loads(json.dumps(found.as_dict()))
    assert document["requests"] == {"total": 7, "good": 3, "bad": 1, "refused": 3}
    assert document["prompt_tokens"] == {"min": 10, "median": 20, "max": 90, "total": 120}
    assert document["bad_lines"][0]["line"] == 4
    assert document["model"] == "fake"
    assert not found.is_good


def test_many_requests_are_all_counted(tmp_path, settings):
    """More than are sent at once, by far; and one that is larger than all that are sent at once."""
    found = checked(
        tmp_path, settings, *({"prompt": "x" * (n % 40 + 1)} for n in range(1000)), {"prompt": "x" * 5_000_000}
    )
    assert len(found.counts.prompt_tokens) == 1000
    assert sum(found.counts.prompt_tokens) == sum(n % 40 + 1 for n in range(1000))
    assert [one.place.line for one in found.refused] == [1001]


def test_a_file_without_a_good_request_has_no_spread(tmp_path, settings):
    """Nothing is divided by nothing."""
    found = checked(tmp_path, settings, {"prompt": 5})
    assert found.as_dict()["prompt_tokens"] == {"min": 0, "median": 0, "max": 0, "total": 0}


def test_lines_alone_say_nothing_of_tokens(tmp_path):
    """Null is not zero."""
    (tmp_path / "f.jsonl").write_text('{"prompt": "x"}\n\n')
    document = check_lines(tmp_path / "f.jsonl").as_dict()
    assert (document["model"], document["prompt_tokens"], document["estimate"]) == (None, None, None)
    assert document["blank_lines"] == 1


def report(outbox, stem, age, **changes):
    outbox.mkdir(exist_ok=True)
    content = {
        "model": "fake",
        "completion_tokens_per_s": 50.0,
        "requests": {"completed": 10},
        "tokens": {"completion": 40},
    }
    path = outbox / f"{stem}.report.json"
    path.write_text(json.dumps(content | changes))
    os.utime(path, (10_000 - age, 10_000 - age))


def test_the_speed_is_that_of_the_newest_report_of_this_model(tmp_path):
    """Reports of other models, of files that ran nothing and of broken content are passed over."""
    outbox = tmp_path / "outbox"
    assert find_speed(outbox, "fake") is None
    report(outbox, "old", 100, completion_tokens_per_s=9)
    report(outbox, "newer", 50)
    report(outbox, "other", 10, model="another")
    report(outbox, "empty", 9, requests={"completed": 0})
    report(outbox, "stopped", 8, completion_tokens_per_s=None)
    (outbox / "torn.report.json").write_text("{")
    assert find_speed(outbox, "fake") == Speed("newer", 50.0, 4.0)


def test_the_estimate_takes_answers_as_long_as_there_and_never_longer_than_they_may_be(tmp_path, settings):
    """Two requests of at most 30 tokens: 4 tokens each as there are 8 in all; 100 each are capped by the limit."""
    report(tmp_path / "outbox", "newer", 50)
    found = checked(tmp_path, settings, {"prompt": "x"}, {"prompt": "y"})
    assert found.seconds() == (8 / 50, 60 / 50)
    report(tmp_path / "outbox", "newest", 1, tokens={"completion": 1000})
    found = checked(tmp_path, settings, {"prompt": "x"}, {"prompt": "y"})
    assert found.seconds() == (60 / 50, 60 / 50)
    assert found.as_dict()["estimate"]["as_file"] == "newest"


def test_a_model_that_is_not_there_is_named():
    """With the exit code of a mistake in the YAML."""

    async def start():
        async with TextProcess.started(EngineConfig("e", ModelConfig("./no/such/model")), lambda _: None):
            pass

    with pytest.raises(EngineConfigError, match=r"engine e: .*no/such/model"):
        asyncio.run(start())


def test_a_process_that_dies_ends_the_count():
    """It does not hang; the block that uses it is told."""

    async def count():
        config = EngineConfig("e", ModelConfig("fake:"))
        async with TextProcess.started(config, lambda _: None) as text:
            text._child.kill()
            requests = [(TextRequest(1, 1, 0, SamplingParams(), text="x"), 1)]
            await text.count(config, requests, lambda _: None)

    with pytest.raises(EngineStartError, match="killed by SIGKILL"):
        asyncio.run(count())


def test_the_median_of_none_is_nothing():
    """Nor is there an error."""
    assert TokenCounts().median() == 0
