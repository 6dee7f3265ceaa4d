"""Edits of the configuration of a real daemon that runs files meanwhile."""

import json
import os
import signal
from collections import Counter

import pytest
from commands import gapless
from daemon_process import request_lines
from live_config import (
    config_error,
    edit,
    mount_as_configmap,
    running,
    save_by_link,
    save_by_rename,
    save_in_place,
    tokens_of,
)

ENDLESS = "fake:step_ms=2"


def reload(daemon):
    """Have it look now; an edit is applied when this returns."""
    return gapless("reload", cwd=daemon.folder)


def says(daemon, text):
    return daemon.until(lambda: text in daemon.log.read_text(), text)


def counts(daemon, stem):
    return (daemon.batch(stem) or {"request_counts": {"completed": 0}})["request_counts"]


@pytest.fixture
def daemon(make_daemon):
    started = make_daemon(ENDLESS).start()
    says(started, "engine e is ready")
    return started


@pytest.mark.parametrize("save", [save_in_place, save_by_rename, save_by_link, mount_as_configmap])
def test_an_edit_is_noticed_however_it_is_saved(make_daemon, save):
    """Twice in a row each; what the next file gets is what the file says then."""
    daemon = make_daemon(ENDLESS)
    text = daemon.config.read_text()
    save(daemon.config, text)
    daemon.start()
    daemon.port()
    for number in (3, 5):
        save(daemon.config, text.replace("max_tokens: 16", f"max_tokens: {number}"))
        says(daemon, f"-> {number}; takes effect with the next file claimed")
        daemon.drop(f"f{number}.jsonl", request_lines(2))
        daemon.wait_done(f"f{number}")
        assert tokens_of(daemon, f"f{number}") == {number}
    assert running(daemon).pipelines["p"].sampling.max_tokens == 5


def test_a_file_keeps_what_it_was_claimed_with_across_edits_and_restarts(daemon):
    edit(daemon, ("max_tokens: 16", "max_tokens: 200"))
    reload(daemon)
    daemon.drop("long.jsonl", request_lines(200))
    daemon.until(lambda: counts(daemon, "long")["completed"] > 0, "running")
    edit(daemon, ("max_tokens: 200", "max_tokens: 3"))
    code, said = reload(daemon)
    assert (code, "pipelines.p.sampling.max_tokens: 200 -> 3; takes effect with the next file claimed" in said) == (
        0,
        True,
    )
    daemon.drop("short.jsonl", request_lines(2))
    daemon.wait_done("short")
    assert daemon.batch("long")["status"] == "in_progress"
    daemon.kill_all()
    daemon.start()
    daemon.wait_done("long")
    assert (tokens_of(daemon, "short"), tokens_of(daemon, "long")) == ({3}, {200})


def test_a_mistake_changes_nothing_and_is_loud_once_until_it_is_mended(daemon):
    before = edit(daemon, ("max_tokens: 16", "max_tokens: 0"), ("settle_s: 0.05", "settle_s: 0.1"))
    error = daemon.until(lambda: config_error(daemon), "refused")
    assert "pipelines.p.sampling.max_tokens: found 0, expected a whole number from 1" in error
    assert "gapless_config_last_reload_successful 0.0" in daemon.get("/metrics")
    assert 'gapless_config_reloads_total{outcome="refused"} 1.0' in daemon.get("/metrics")
    (daemon.folder / "good.yaml").write_text(before)
    shown = gapless("status", "--config", "good.yaml", cwd=daemon.folder)[1]
    assert "the last change of the configuration was refused: " in shown
    code, said = reload(daemon)
    assert (code, "expected a whole number from 1" in said) == (2, True)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.drop("f.jsonl", request_lines(2))
    daemon.wait_done("f")
    assert tokens_of(daemon, "f") == {16}
    assert daemon.log.read_text().count("the one before holds") == 1
    assert running(daemon).daemon.settle_s == 0.05
    daemon.config.write_text(before)
    daemon.until(lambda: config_error(daemon) is None, "mended")
    assert "gapless_config_last_reload_successful 1.0" in daemon.get("/metrics")


def test_what_waits_for_a_restart_is_refused_with_all_that_is_edited_beside_it(daemon):
    edit(daemon, ("port: 0", "port: 9999"), ("max_tokens: 16", "max_tokens: 4"))
    code, said = gapless("reload", "--dry-run", cwd=daemon.folder)
    reason = "daemon.http.port: found 9999, but the daemon runs with 0, and a change waits for a restart"
    assert (code, reason in said) == (2, True)
    code, said = reload(daemon)
    assert (code, reason in said) == (2, True)
    assert running(daemon).pipelines["p"].sampling.max_tokens == 16


def test_settings_of_the_daemon_itself_hold_at_once(daemon):
    """The log, the space that must be free, the price in reports."""
    edit(daemon, ("log: {format: text}", "log: {format: text, level: debug}, price_per_gpu_hour: 3, watch: poll"))
    assert reload(daemon)[0] == 0
    daemon.get("/healthz")
    says(daemon, "[debug")
    says(daemon, "are noticed by: polling, as daemon.watch has it")
    daemon.drop("f.jsonl", request_lines(2))
    daemon.wait_done("f")
    assert json.loads((daemon.outbox / "f.report.json").read_text())["cost"]["price_per_gpu_hour"] == 3
    edit(daemon, ("price_per_gpu_hour: 3", "min_free_bytes: 1000TiB"))
    reload(daemon)
    daemon.wait_paused("disk_full")


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
    assert daemon.status()["paused_because"] is None


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


def test_pipelines_and_engines_come_and_go(daemon):
    """What is removed finishes what it runs and takes nothing new; what comes back goes on with its folders."""
    edit(daemon, ("max_tokens: 16", "max_tokens: 100"))
    reload(daemon)
    daemon.drop("f.jsonl", request_lines(300))
    daemon.until(lambda: counts(daemon, "f")["completed"] > 0, "running")
    before = daemon.config.read_text()
    daemon.config.write_text(
        before.replace("engines: {e:", "engines: {x:").replace("pipelines: {p: {engine: e", "pipelines: {q: {engine: x")
    )
    code, said = reload(daemon)
    assert code == 0
    for line in ("engines.x: added", "pipelines.q: added", "engines.e: removed", "pipelines.p: removed"):
        assert line in said
    other = daemon.folder / "spool" / "q"
    (other / "inbox" / "g.jsonl").write_text(request_lines(2))
    daemon.drop("late.jsonl", request_lines(2))
    daemon.until((other / "outbox" / "g.output.jsonl").exists, "the new ones work")
    daemon.wait_done("f")
    assert len(daemon.results("f")) == 300
    says(daemon, "engine e is gone")
    assert (daemon.inbox / "late.jsonl").exists()
    left = "/spool/p has files (begun: 0, in the inbox: 1) and the configuration no pipeline p"
    says(daemon, left)
    daemon.until(lambda: left in gapless("status", cwd=daemon.folder)[1], "said by status too")

    def names(part):
        return [each["name"] for each in json.loads(daemon.get("/status"))[part]]

    daemon.until(lambda: (names("engines"), names("pipelines")) == (["x"], ["q"]), "only the new ones")
    daemon.config.write_text(before)
    daemon.wait_done("late")
    says(daemon, "engine x is gone")


def test_a_file_of_a_pipeline_that_is_removed_can_still_be_cancelled(daemon):
    """Until it has ended the pipeline is there, for whoever names it."""
    daemon.drop("f.jsonl", request_lines(50, max_tokens=7000))
    daemon.until(lambda: daemon.batch("f"), "claimed")
    text = daemon.config.read_text()
    edit(daemon, ("pipelines: {p:", "pipelines: {q:"))
    reload(daemon)
    assert "pipelines.p: removed" in gapless("reload", "--dry-run", cwd=daemon.folder)[1]
    assert "it is being run" in gapless("explain", "f.jsonl", cwd=daemon.folder)[1]
    assert gapless("cancel", "nothing", cwd=daemon.folder)[0] == 2
    code, said = gapless("cancel", "p/f", cwd=daemon.folder)
    assert (code, "asks to cancel f" in said) == (0, True)
    assert daemon.wait_done("f")["status"] == "cancelled"
    says(daemon, "pipeline p is not in the configuration any more and runs nothing: it is gone")
    daemon.until(lambda: list(running(daemon).pipelines) == ["q"], "gone from what runs")
    daemon.config.write_text(text)


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


def test_a_dry_run_compares_any_file_with_what_runs_and_changes_nothing(daemon):
    """By key and class; a mistake and a key that waits for a restart are exit code 2, no daemon is 4."""
    new = daemon.folder / "new.yaml"
    new.write_text(
        daemon.config.read_text().replace("max_tokens: 16", "max_tokens: 4").replace("step_ms=2", "step_ms=3")
    )
    code, said = gapless("reload", "--dry-run", "new.yaml", cwd=daemon.folder)
    assert (code, said.splitlines()) == (
        0,
        [
            "this would change:",
            "  engines.e.model.path: fake:step_ms=2 -> fake:step_ms=3; takes effect after a drain",
            "  pipelines.p.sampling.max_tokens: 16 -> 4; takes effect with the next file claimed",
        ],
    )
    assert gapless("reload", "--dry-run", cwd=daemon.folder)[0] == 0
    code, said = gapless("reload", "new.yaml", cwd=daemon.folder)
    assert (code, "found a CONFIG without --dry-run" in said) == (2, True)
    assert running(daemon).pipelines["p"].sampling.max_tokens == 16
    daemon.stop()
    code, said = gapless("reload", cwd=daemon.folder)
    assert (code, "no daemon runs on the spool" in said) == (4, True)


def test_a_file_goes_on_with_the_engine_it_was_claimed_for_after_a_restart_too(make_daemon):
    """The pipeline has another engine meanwhile, for files that come later."""
    daemon = make_daemon("fake:step_ms=2,context=300").start()
    says(daemon, "engine e is ready")
    edit(daemon, ("max_tokens: 16}", "max_tokens: 200}"))
    reload(daemon)
    daemon.drop("old.jsonl", request_lines(200))
    daemon.until(lambda: counts(daemon, "old")["completed"] > 0, "running")
    edit(daemon, ("engines: {", "engines: {x: {model: {path: 'fake:context=60'}}, "), ("{engine: e", "{engine: x"))
    reload(daemon)
    daemon.drop("new.jsonl", request_lines(2))
    daemon.wait_done("new")
    daemon.kill_all()
    daemon.start()
    daemon.wait_done("old")
    assert (tokens_of(daemon, "old"), max(tokens_of(daemon, "new")) < 60) == ({200}, True)
