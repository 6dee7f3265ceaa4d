"""Options of one file, from the drop to where they end."""

import json

from daemon_process import request_lines


def test_a_file_runs_with_its_options_and_they_travel_with_it(make_daemon):
    daemon = make_daemon("fake:")
    daemon.drop("f.options.yaml", "sampling: {max_tokens: 3}\noutput: {format: plain}\nlimits: {deadline_s: 900}\n")
    daemon.drop("f.jsonl", request_lines(2))
    daemon.drop("g.jsonl", request_lines(2))
    daemon.drop("lonely.options.yaml", "priority: 1\n")
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    plain = daemon.lines("f.output.jsonl")
    assert [(line["id"], line["usage"]["completion_tokens"]) for line in plain] == [("r0", 3), ("r1", 3)]
    assert daemon.batch("f")["completion_window"] == "900s"
    body = daemon.lines("g.output.jsonl")[0]["response"]["body"]
    assert body["usage"]["completion_tokens"] == 16, "the other file has its pipeline's settings"
    done = sorted(path.name for path in (daemon.root / "done").iterdir())
    assert done == ["f.jsonl", "f.options.yaml", "g.jsonl"]
    assert [path.name for path in daemon.inbox.iterdir()] == ["lonely.options.yaml"]


def test_a_file_with_wrong_options_is_refused_with_all_their_mistakes_and_never_run(make_daemon):
    daemon = make_daemon("fake:").start()
    daemon.drop("lonely.options.yaml", "priority: 1\n")
    daemon.drop("f.options.yaml", "sampling: {max_tokns: 3}\npriority: high\n")
    daemon.drop("f.jsonl", request_lines(2))
    batch = daemon.wait_done("f")
    assert batch["status"] == "failed"
    assert [(error["code"], error["line"], error["param"]) for error in batch["errors"]["data"]] == [
        ("invalid_options", 1, "sampling.max_tokns"), ("invalid_options", 2, "priority"),
    ]  # fmt: skip
    reason = json.loads((daemon.root / "failed" / "f.reason.json").read_text())
    assert reason["code"] == "invalid_options"
    assert reason["message"].startswith("f.options.yaml:1:12: sampling.max_tokns: found an unknown key")
    assert 'did you mean "max_tokens"?; and 1 more mistake' in reason["message"]
    failed = sorted(path.name for path in (daemon.root / "failed").iterdir())
    assert failed == ["f.jsonl", "f.options.yaml", "f.reason.json"]
    assert not (daemon.outbox / "f.output.jsonl").exists()
    daemon.until(lambda: "lonely.options.yaml: it waits for a file lonely" in daemon.get("/status"), "explained")
    assert daemon.stop() == 0


def test_a_file_keeps_its_options_through_a_kill(make_daemon):
    daemon = make_daemon("fake:step_ms=10").start()
    daemon.drop("f.options.yaml", "sampling: {max_tokens: 5}\n")
    daemon.drop("f.jsonl", request_lines(400))
    partial = daemon.outbox / "f.output.jsonl.partial"
    daemon.until(lambda: partial.exists() and partial.read_bytes().count(b"\n"), "running")
    daemon.kill()
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    used = {line["response"]["body"]["usage"]["completion_tokens"] for line in daemon.lines("f.output.jsonl")}
    assert used == {5}
    assert (daemon.root / "done" / "f.options.yaml").exists()
    assert not list((daemon.root / "work").iterdir())
