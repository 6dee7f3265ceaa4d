"""Whatever happens to one request can be followed through the daemon's log by the id of its result line."""

import json
import re

import pytest

POISON = 77  # a token id; prompts are given as token ids
WORDS = {
    r"is sent to engine e$": "sent",
    r"is sent to engine e again, apart from others \(deaths so far: \d+\)$": "sent apart",
    r"is sent to engine e again$": "sent again",
    r"was with the engine when that died \(deaths so far: \d+\)$": "died",
    r"is answered after [0-9.]+ s: length, \d+ tokens$": "answered",
    r"is refused \((\w+)\): ": "refused",
    r"gets no answer after [0-9.]+ s \(engine_error\): .* \(pid \d+\) ": "poison",
    r"gets no answer after [0-9.]+ s \(request_timeout\): ": "timed out",
}


def plain(name, ids=(1, 2), **more):
    return json.dumps({"id": name, "prompt": [*ids], "max_tokens": 4} | more) + "\n"


def request_id(line):
    """The id of a result line's request."""
    return "req_" + line["id"].removeprefix("batch_req_")


def log_lines(daemon):
    """The log as JSON; a line that is none fails here."""
    return [json.loads(line) for line in daemon.log.read_text().splitlines()]


def story(lines, identity):
    """What the log says of one request, a word a line."""
    found = []
    for line in lines:
        if line.get("request_id") == identity:
            assert identity in line["message"], "people who read the text find it too"
            found += [word for pattern, word in WORDS.items() if re.search(pattern, line["message"])] or [
                line["message"]
            ]
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The log's lines and the results of a run in which everything happens to somebody."""
    from daemon_process import Daemon

    daemon = Daemon(
        tmp_path_factory.mktemp("log"),
        f"fake:step_ms=5,poison={POISON},context=4096",
        pipeline=", limits: {request_timeout_s: 2}",
    )
    daemon.config.write_text(daemon.config.read_text().replace("log: {format: text}", "log: {level: debug}"))
    bad = [plain("schema", temperature=9), plain("tokenizer", ids=[10**9])]
    daemon.drop("f.jsonl", "".join([plain("good"), plain("poison", ids=[POISON]), plain("other"), *bad]))
    daemon.start("--once")
    assert daemon.process.wait(90) == 3
    daemon.drop("g.jsonl", plain("slow", max_tokens=4000) + plain("quick"))
    daemon.start("--once")
    assert daemon.process.wait(90) == 3
    return log_lines(daemon), daemon.results("f") | daemon.results("g")


def test_each_line_about_a_request_names_it_its_file_and_its_place(told):
    """By fields of their own, the same in every line."""
    lines, results = told
    ids = {request_id(line): name for name, line in results.items()}
    about = [line for line in lines if "request_id" in line]
    assert {line["request_id"] for line in about} == set(ids)
    for line in about:
        assert line["custom_id"] == ids[line["request_id"]]
        assert line["pipeline"] == "p"
        assert line["file"] == ("g.jsonl" if line["custom_id"] in {"slow", "quick"} else "f.jsonl")
    assert {line["line"] for line in about if line["custom_id"] == "other"} == {3}


def test_a_request_that_ends_the_engine_is_followed_from_its_first_try_to_its_end(told):
    """Sent with others, then in halves, then alone, then given up by name."""
    lines, results = told
    found = story(lines, request_id(results["poison"]))
    assert found[:3] == ["sent", "died", "sent apart"]
    assert found[-2:] == ["died", "poison"]
    assert found.count("died") >= 3
    assert found[1:-1] == ["died" if place % 2 == 0 else "sent apart" for place in range(len(found) - 2)]
    grave = [line for line in lines if line["level"] == "error" and line.get("custom_id") == "poison"]
    assert len(grave) == 1


def test_its_neighbour_is_followed_to_its_answer(told):
    """It died with the poison, and is answered all the same."""
    lines, results = told
    found = story(lines, request_id(results["good"]))
    assert found[:2] == ["sent", "died"]
    assert found[-2:] == ["sent apart", "answered"]


@pytest.mark.parametrize(("name", "code"), [("schema", "invalid_value"), ("tokenizer", "invalid_token_id")])
def test_a_refusal_is_said_once_with_its_code(told, name, code):
    """By the daemon, which reads the line, or by the text process, which knows the vocabulary."""
    lines, results = told
    found = [line for line in lines if line.get("request_id") == request_id(results[name])]
    said = [line for line in found if "is refused" in line["message"]]
    assert len(said) == 1
    assert said[0]["level"] == "info"
    assert f"({results[name]['response']['body']['error']['code']})" in said[0]["message"]
    assert results[name]["response"]["body"]["error"]["code"] == code


def test_a_timeout_is_a_warning(told):
    """And the request beside it is answered."""
    lines, results = told
    assert story(lines, request_id(results["slow"])) == ["sent", "timed out"]
    assert [line["level"] for line in lines if line.get("custom_id") == "slow"] == ["debug", "warning"]
    assert story(lines, request_id(results["quick"])) == ["sent", "answered"]


def test_lines_about_an_engine_or_a_file_name_it(told):
    """The death of an engine, and the end of a file."""
    lines, _ = told
    deaths = [line for line in lines if "another is started" in line["message"]]
    assert deaths
    assert {line["engine"] for line in deaths} == {"e"}
    ends = [line for line in lines if " is done: " in line["message"]]
    assert {(line["pipeline"], line["file"]) for line in ends} == {("p", "f.jsonl"), ("p", "g.jsonl")}
