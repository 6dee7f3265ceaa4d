"""Edits of the configuration of a real daemon that runs files meanwhile."""

import json
import signal

import pytest
from commands import gapless
from daemon_process import request_lines
from live_config import (
    ENDLESS,
    config_error,
    counts,
    edit,
    mount_as_configmap,
    reload,
    running,
    save_by_link,
    save_by_rename,
    save_in_place,
    says,
    tokens_of,
)


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
