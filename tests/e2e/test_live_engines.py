"""Edits of the engines of a real daemon: limits at once, others behind a drain, models that fail, and the way back."""

import json
import os
import signal
from collections import Counter

import pytest
from commands import gapless
from daemon_process import request_lines
from live_config import ENDLESS, config_error, counts, edit, reload, running, says, tokens_of


@pytest.fixture
def daemon(make_daemon):
    started = make_daemon(ENDLESS).start()
    says(started, "engine e is ready")
    return started


def test_a_running_engine_takes_other_limits_without_a_pause(daemon):
    """From sixteen sequences to two, async to sync and back, in the middle of a file; no request is lost."""
    edit(daemon, ("max_tokens: 16", "max_tokens: 100"))
    reload(daemon)
    daemon.drop("f.jsonl", request_lines(400))

    def num_running():
        return json.loads(daemon.get("/status"))["engines"][0]["num_running"]

    daemon.until(lambda: num_running() == 16, "sixteen run")
    edit(daemon, ("max_num_seqs: 16}", "max_num_seqs: 2}, schedule: sync"))
    assert "engines.e.schedule: async -> sync; takes effect at once" in reload(daemon)[1]
    daemon.until(lambda: num_running() == 2, "two run")
    assert daemon.batch("f")["status"] == "in_progress"
    edit(daemon, ("max_num_seqs: 2}, schedule: sync", "max_num_seqs: 12}"))
    reload(daemon)
    daemon.until(lambda: num_running() == 12, "twelve run")
    daemon.wait_done("f")
    assert len(daemon.results("f")) == 400
    assert daemon.log.read_text().count("engine e is ready") == 1
    daemon.until(lambda: daemon.status()["paused_because"] is None, "not paused")


def test_other_settings_of_an_engine_wait_until_its_files_have_ended(daemon):
    """The edit that comes during the drain is taken with it; a file dropped meanwhile waits for the new engine."""
    edit(daemon, ("max_tokens: 16", "max_tokens: 100"))
    reload(daemon)
    daemon.drop("old.jsonl", request_lines(300))
    daemon.until(lambda: counts(daemon, "old")["completed"] > 0, "running")
    edit(daemon, ("step_ms=2", "step_ms=1"))
    assert "takes effect after a drain" in reload(daemon)[1]
    daemon.drop("new.jsonl", request_lines(3))
    edit(daemon, ("step_ms=1", "step_ms=1,context=50"))
    reload(daemon)
    detail = json.loads(daemon.get("/status"))["engines"][0]["detail"]
    assert detail == "takes no more files: other settings wait for the 1 that it runs to end"
    assert (daemon.inbox / "new.jsonl").exists()
    assert running(daemon).engines["e"].model.path == ENDLESS
    daemon.wait_done("old")
    daemon.wait_done("new")
    assert (tokens_of(daemon, "old"), len(daemon.results("old"))) == ({100}, 300)
    assert max(tokens_of(daemon, "new")) < 50  # the new engine's context
    assert daemon.log.read_text().count("is started anew with other settings") == 1
    daemon.until(
        lambda: running(daemon).engines["e"].model.path == "fake:step_ms=1,context=50", "noted at the next look"
    )


def test_a_reload_now_cuts_over_in_the_middle_of_a_file(daemon):
    """What is answered stays, the rest is made with the new model, and each line and the report say with which."""
    daemon.drop("f.jsonl", request_lines(1500, max_tokens=60))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    edit(daemon, ("step_ms=2", "step_ms=1"))
    assert "takes effect after a drain" in reload(daemon)[1]
    partial = daemon.outbox / "f.output.jsonl.partial"
    before = partial.read_bytes()
    code, said = gapless("reload", "--now", cwd=daemon.folder)
    assert (code, "engines.e: started anew at once; the files that it runs go on with it" in said) == (0, True)
    assert daemon.wait_done("f")["request_counts"] == {"total": 1500, "completed": 1500, "failed": 0}
    assert (daemon.outbox / "f.output.jsonl").read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    prints = Counter(line["response"]["body"]["system_fingerprint"] for line in daemon.lines("f.output.jsonl"))
    made = json.loads((daemon.outbox / "f.report.json").read_text())["made_with"]
    assert {f"fp_{each['model_hash']}": each["answers"] for each in made} == prints
    assert len(prints) == 2
    says(daemon, "engine e is started anew with other settings; 1 of its files go on with them")
    assert gapless("reload", "--now", cwd=daemon.folder)[1].startswith("nothing changes")


def test_a_reload_now_that_cannot_be_loaded_goes_on_with_the_last_good_settings(daemon):
    daemon.drop("f.jsonl", request_lines(1500, max_tokens=60))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    edit(daemon, (ENDLESS, "fake:load_fails=1"))
    code, _ = gapless("reload", "--now", cwd=daemon.folder)
    assert code == 0
    assert daemon.wait_done("f")["request_counts"] == {"total": 1500, "completed": 1500, "failed": 0}
    assert "loading it fails, as it says" in config_error(daemon)
    assert len(json.loads((daemon.outbox / "f.report.json").read_text())["made_with"]) == 1


def test_a_model_that_fails_its_check_leaves_everything_as_it_was(daemon):
    """Before anything drains: files are taken as ever, also those of what was edited beside it, and it is loud."""
    daemon.drop("f.jsonl", request_lines(400, max_tokens=60))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    pids = daemon.children()
    edit(daemon, (ENDLESS, "fake:nonsense=1"), ("max_tokens: 16", "max_tokens: 4"))
    error = daemon.until(lambda: config_error(daemon), "refused")
    assert "engine e: model.path fake:nonsense=1: found option 'nonsense'" in error
    assert "gapless_config_last_reload_successful 0.0" in daemon.get("/metrics")
    daemon.drop("g.jsonl", request_lines(2))
    daemon.wait_done("g")
    assert daemon.batch("f")["status"] == "in_progress"
    assert tokens_of(daemon, "g") == {16}
    code, said = reload(daemon)
    assert (code, "is checked before anything changes..." in said, "found option 'nonsense'" in said) == (2, True, True)
    assert daemon.wait_done("f")["request_counts"]["completed"] == 400
    assert daemon.children() == pids, "no process was ended for it"
    assert "takes no more files" not in daemon.log.read_text()
    assert running(daemon).engines["e"].model.path == ENDLESS


def test_an_edit_ends_the_check_of_the_one_before(daemon):
    """The check of a model can take minutes; who mends the file does not wait for it."""
    edit(daemon, (ENDLESS, "./no/such/model"))  # torch is imported first
    pid = daemon.until(lambda: daemon.children().get("preflight"), "checking")
    os.kill(pid, signal.SIGSTOP)
    says(daemon, "the model of engine e is checked before anything changes")
    daemon.until(lambda: "the configuration was changed" in gapless("status", cwd=daemon.folder)[1], "status says so")
    edit(daemon, ("./no/such/model", ENDLESS), ("max_tokens: 16", "max_tokens: 4"))
    says(daemon, "max_tokens: 16 -> 4")
    daemon.until(lambda: len(daemon.children()) == 2, "the check has ended")
    assert config_error(daemon) is None
    daemon.drop("f.jsonl", request_lines(2))
    daemon.wait_done("f")
    assert tokens_of(daemon, "f") == {4}


def test_an_engine_that_cannot_be_started_goes_back_to_its_last_good_settings(daemon):
    """It says so until it is mended, is not tried over and over, and once more when somebody asks."""
    edit(daemon, (ENDLESS, "fake:load_fails=1"))
    error = daemon.until(lambda: config_error(daemon), "fallen back")
    assert "engine e runs with the last good settings, not with these" in error
    assert "loading it fails, as it says" in error
    assert "gapless_config_last_reload_successful 0.0" in daemon.get("/metrics")
    daemon.drop("f.jsonl", request_lines(2))
    daemon.wait_done("f")
    edit(daemon, ("max_tokens: 16", "max_tokens: 4"))
    says(daemon, "max_tokens: 16 -> 4")
    assert config_error(daemon) == error
    daemon.drop("g.jsonl", request_lines(2))
    daemon.wait_done("g")
    assert (tokens_of(daemon, "f"), tokens_of(daemon, "g")) == ({16}, {4})
    assert daemon.log.read_text().count("started anew") == 1
    assert "engines.e: tried once more" in reload(daemon)[1]
    daemon.until(lambda: daemon.log.read_text().count("the last good ones hold") == 2, "fallen back once more")
    edit(daemon, ("fake:load_fails=1", ENDLESS))
    daemon.until(lambda: config_error(daemon) is None, "mended")
    assert daemon.process.poll() is None


def test_an_engine_that_was_given_up_is_started_with_new_settings_at_once(make_daemon):
    """Its files do not wait for what cannot happen: they go on with it."""
    daemon = make_daemon("fake:step_ms=2,load_ms=200", engine=", max_restarts: 0").start()
    says(daemon, "engine e is ready")
    daemon.kill_child("engine")
    says(daemon, "`gapless resume` tries again")
    daemon.drop("f.jsonl", request_lines(5))
    daemon.wait_paused("engine")
    edit(daemon, ("load_ms=200", "load_ms=10"))
    daemon.wait_done("f")
    assert len(daemon.results("f")) == 5


def test_an_added_engine_that_cannot_be_started_leaves_the_others_alone(daemon):
    """It is down with its reason, and mending the file brings it up."""
    text = daemon.config.read_text()
    daemon.config.write_text(
        text.replace("engines: {", "engines: {bad: {model: {path: 'fake:load_fails=1'}}, ").replace(
            "pipelines: {", "pipelines: {q: {engine: bad}, "
        )
    )
    reload(daemon)

    def engine(name):
        engines = json.loads(daemon.get("/status"))["engines"]
        return next((e for e in engines if e["name"] == name), {"state": "not in the snapshot yet"})

    daemon.until(lambda: engine("bad")["state"] == "down", "down")
    assert "loading it fails, as it says" in engine("bad")["detail"]
    daemon.drop("f.jsonl", request_lines(2))
    daemon.wait_done("f")
    edit(daemon, ("fake:load_fails=1", "fake:"))
    daemon.until(lambda: engine("bad")["state"] == "ready", "up")


def test_an_engine_is_there_only_while_it_is_needed(make_daemon):
    """No process and no memory before the first file and some time after the last; live, like its time."""
    daemon = make_daemon(ENDLESS, engine=", idle_unload_s: 0.3").start()
    daemon.until(lambda: "unloaded" in daemon.get("/status"), "up")
    assert daemon.children() == {}
    assert json.loads(daemon.get("/readyz"))["ready"]
    for stem in ("f", "g"):
        daemon.drop(f"{stem}.jsonl", request_lines(20))
        daemon.wait_done(stem)
        daemon.until(lambda: not daemon.children(), "unloaded")
    assert len(daemon.results("g")) == 20
    assert 'gapless_gpu_idle_seconds_total{cause="down",engine="e"} 0.0' in daemon.get("/metrics")
    edit(daemon, ("idle_unload_s: 0.3", "idle_unload_s: null"))
    daemon.until(lambda: len(daemon.children()) == 2, "kept from now on")
    says(daemon, "engine e is ready")
    assert daemon.stop() == 0


def test_an_engine_that_hangs_is_replaced(make_daemon):
    """Stopped by a signal, it makes no step: after stall_s it is killed, and its requests are answered by the next one."""
    daemon = make_daemon("fake:step_ms=5", engine=", stall_s: 1").start()
    daemon.drop("f.jsonl", request_lines(300, max_tokens=50))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    os.kill(daemon.children()["engine"], signal.SIGSTOP)
    says(daemon, "was killed: it did not get on for 1 s (engines.e.stall_s)")
    daemon.wait_done("f")
    assert len(daemon.results("f")) == 300
    assert daemon.lines("f.errors.jsonl") == []
