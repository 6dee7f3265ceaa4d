"""Answers that must look like something, from the file or the pipeline to the output, through all processes."""

import csv
import re

from daemon_process import request_lines


def answers(daemon, stem):
    results = daemon.results(stem).values()
    return [choice["message"]["content"] for line in results for choice in line["response"]["body"]["choices"]]


def test_a_file_and_a_table_get_answers_of_their_form(make_daemon):
    """With the fake engine, whose tokens are chance: so it is the masks alone that give them their form."""
    daemon = make_daemon(pipeline=", template: '{{ a }}', answer: {choice: [yes, no, 'don''t know']}")
    daemon.drop("table.csv", "a\n" + "x\n" * 40)
    daemon.drop("regex.jsonl", request_lines(20, guided_regex="[ab]{3}-[0-9]", n=3, temperature=1.0))
    daemon.drop("wrong.jsonl", request_lines(1, guided_regex="("))
    daemon.drop("none.jsonl", request_lines(5, max_tokens=40))
    assert daemon.start("--once").process.wait(90) == 3
    with (daemon.outbox / "table.output.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["finish_reason"] for row in rows} == {"stop"}
    assert {row["output"] for row in rows} == {"yes", "no", "don't know"}
    found = answers(daemon, "regex")
    assert len(found) == 60
    assert all(re.fullmatch("[ab]{3}-[0-9]", answer) for answer in found)
    assert len(set(found)) > 10
    assert set(answers(daemon, "none")) <= {"yes", "no", "don't know"}
    (line,) = daemon.lines("wrong.errors.jsonl")
    error = line["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("invalid_grammar", "guided_regex")
    assert error["message"].startswith(
        "wrong.jsonl line 1: guided_regex: found a regular expression that cannot be enforced: "
    )


def test_grammars_are_followed_whichever_process_was_started_anew(make_daemon):
    """The engine is told the vocabulary again, or knows it still."""
    daemon = make_daemon().start()
    for number, role in enumerate(["none yet", "text", "engine"]):
        if number:
            pid = daemon.children()[role]
            daemon.kill_child(role)
            daemon.until(lambda role=role, pid=pid: daemon.children().get(role, pid) != pid, "another one")
        daemon.drop(f"{number}.jsonl", request_lines(4, guided_regex=f"[ab]{{3}}-{number}"))
        daemon.until(lambda number=number: (daemon.root / "done" / f"{number}.jsonl").exists(), "done")
        assert all(re.fullmatch(f"[ab]{{3}}-{number}", answer) for answer in answers(daemon, str(number)))


def test_log_probabilities_come_through_to_the_line(make_daemon):
    """One entry a token that is counted, stop string or not; all tokens of the fake engine are equally likely."""
    daemon = make_daemon()
    asked = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "max_tokens": 30, "n": 2}
    daemon.drop("told.jsonl", request_lines(5, **asked))
    daemon.drop("stopped.jsonl", request_lines(5, stop=["e"], **asked))
    assert daemon.start("--once").process.wait(90) == 0
    for line in [*daemon.results("told").values(), *daemon.results("stopped").values()]:
        body = line["response"]["body"]
        assert body["prompt_token_ids"]
        entries = [choice["logprobs"]["content"] for choice in body["choices"]]
        assert sum(map(len, entries)) == body["usage"]["completion_tokens"]
        for choice, told in zip(body["choices"], entries, strict=True):
            assert len(choice["token_ids"]) == len(told)
            assert all(len(one["top_logprobs"]) == 2 for one in told)
            assert (
                bytes(byte for one in told for byte in one["bytes"] or [])
                .decode()
                .startswith(choice["message"]["content"])
            )
