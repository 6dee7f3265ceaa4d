"""Bad input ends in one clear line and the right exit code, or in a paused pipeline that says why; never in a traceback."""

import socket

import pytest
from commands import gapless
from daemon_process import request_lines

GOOD = "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n"


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        (GOOD + "engine: {}\n", ["gapless.yaml:3:1: engine: found", 'did you mean "engines"?']),
        (
            GOOD.replace("path:", "path: x, path:"),
            ["gapless.yaml:1:32", "engines.e.model.path", "second time", "column 23"],
        ),
        (GOOD + "daemon: {settle_s: soon}\n", ["gapless.yaml:3:20", "daemon.settle_s", '"soon"', "a number"]),
        (
            GOOD.replace("engine: e", "engine: f"),
            ["gapless.yaml:2:25", "pipelines.p.engine", '"f"', "one of the engines: e"],
        ),
        (GOOD.replace("fake:'}", "fake:'}, batch_invariant: true"), ["engines.e.batch_invariant", "not built"]),
        ("engines: [\n", ["gapless.yaml:2:1"]),
    ],
    ids=["unknown key", "duplicate key", "wrong type", "unknown engine", "not built", "bad syntax"],
)
def test_a_mistake_in_the_yaml_names_its_place_and_what_was_expected(tmp_path, yaml, words):
    (tmp_path / "gapless.yaml").write_text(yaml)
    for command in ("run", "check"):
        code, said = gapless(command, cwd=tmp_path)
        assert code == 2
        assert len(said.splitlines()) == 1
        assert [word for word in words if word not in said] == []


def test_without_a_configuration_a_person_is_told_how_to_get_one(tmp_path):
    for command in ("run", "status", "check"):
        code, said = gapless(command, cwd=tmp_path)
        assert (code, len(said.splitlines())) == (2, 1)
        assert "found no gapless.yaml in this folder" in said
        assert "gapless init" in said


def test_a_missing_config_is_named(tmp_path):
    code, said = gapless("run", "nowhere.yaml", cwd=tmp_path)
    assert (code, len(said.splitlines())) == (2, 1)
    assert "nowhere.yaml" in said


@pytest.mark.parametrize("path", ["./no/such/folder", "package:no_such_package", "fake:nonsense=1"])
def test_a_missing_model_is_named_by_one_line(tmp_path, path):
    (tmp_path / "gapless.yaml").write_text(
        GOOD.replace("fake:", path) + "daemon: {http: {port: 0}, log: {level: error}}\n"
    )
    code, said = gapless("run", cwd=tmp_path)
    assert code == 2
    assert len(said.splitlines()) == 1
    assert said.startswith("engine e: ")
    assert path.lstrip("./") in said


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (tmp_path / "gapless.yaml").write_text(GOOD + f"daemon: {{http: {{port: {port}}}}}\n")
        code, said = gapless("run", cwd=tmp_path)
    assert (code, len(said.splitlines())) == (4, 1)
    assert str(port) in said


def test_an_inbox_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "spool" / "p").mkdir(parents=True)
    (tmp_path / "spool" / "p" / "inbox").write_text("a file where a folder should be")
    (tmp_path / "gapless.yaml").write_text(GOOD + "daemon: {http: {port: 0}}\n")
    code, said = gapless("run", cwd=tmp_path)
    assert (code, len(said.splitlines())) == (4, 1)
    assert "spool/p/inbox" in said


def test_a_full_disk_pauses_the_pipeline_and_nothing_is_taken(make_daemon):
    daemon = make_daemon(daemon=", min_free_bytes: 1000000GiB")
    daemon.drop("f.jsonl", request_lines(3))
    daemon.start()
    daemon.until(lambda: "takes no files" in daemon.log.read_text(), "paused")
    daemon.until(lambda: "min_free_bytes" in daemon.get("/status"), "the status says why")
    assert (daemon.inbox / "f.jsonl").exists()
    assert daemon.stop() == 0


def test_an_inbox_that_vanishes_pauses_the_pipeline_until_it_is_back(make_daemon):
    daemon = make_daemon().start()
    daemon.port()
    daemon.inbox.rename(daemon.root / "elsewhere")
    daemon.until(lambda: "takes no files" in daemon.log.read_text(), "paused")
    (daemon.root / "elsewhere").rename(daemon.inbox)
    daemon.drop("f.jsonl", request_lines(3))
    daemon.wait_done("f")
    assert daemon.stop() == 0


def test_commands_without_a_daemon_say_so(tmp_path):
    (tmp_path / "gapless.yaml").write_text(GOOD + "daemon: {http: {port: 1}}\n")
    code, said = gapless("status", cwd=tmp_path)
    assert (code, len(said.splitlines())) == (4, 1)
    assert f"no daemon answers: none runs on {tmp_path}/spool" in said


def test_check_prints_the_effective_configuration_which_loads_again(tmp_path):
    (tmp_path / "gapless.yaml").write_text(GOOD)
    code, said = gapless("check", cwd=tmp_path)
    assert code == 0
    assert "max_num_batched_tokens: 8192" in said
    (tmp_path / "again.yaml").write_text(said)
    assert gapless("check", "again.yaml", cwd=tmp_path) == (0, said)


def test_check_of_a_request_file_lists_its_bad_lines_and_runs_nothing(tmp_path):
    (tmp_path / "f.jsonl").write_text(request_lines(2) + '{"prompt": 5}\n')
    code, said = gapless("check", "f.jsonl", cwd=tmp_path)
    assert code == 3
    assert "f.jsonl line 3" in said
    assert "2 good requests, 1 bad" in said


def test_submit_waits_and_explain_says_where_a_file_is(make_daemon):
    daemon = make_daemon()
    source = daemon.folder / "mine.jsonl"
    source.write_text(request_lines(4))
    daemon.start()
    code, said = gapless("submit", "mine.jsonl", "--wait", cwd=daemon.folder)
    assert code == 0
    assert "mine.output.jsonl" in said
    code, said = gapless("explain", "mine.jsonl", cwd=daemon.folder)
    assert "done/mine.jsonl: it is done: 4 answered, 0 in the errors file" in said
    assert f"(pid {daemon.process.pid})" in said
    code, said = gapless("report", "mine", cwd=daemon.folder)
    assert "4: 4 completed" in said
    (daemon.inbox / "photo.png").write_text("x")
    code, said = gapless("explain", "photo.png", cwd=daemon.folder)
    assert "extension" in said
    assert daemon.stop() == 0
