"""`daemon.retention` on a real daemon: off by default, and only over what it put there itself."""

from daemon_process import request_lines


def test_finished_files_go_when_they_are_old_enough_and_nothing_else_does(make_daemon):
    """The default keeps all; with a limit of no days the next start removes done and outbox of what is finished, not failed/."""
    daemon = make_daemon("fake:")
    daemon.drop("f.jsonl", request_lines(2) + "{broken\n")
    daemon.drop("word.json", '"hello"')
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    (daemon.root / "done" / "mine.jsonl").write_text("x")
    (daemon.outbox / "mine.output.jsonl").write_text("x")
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert (daemon.root / "done" / "f.jsonl").exists()
    assert (daemon.outbox / "f.output.jsonl").exists()
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace("settle_s", "retention: {done_days: 0, outbox_days: 0}, settle_s"))
    daemon.start()
    daemon.until(lambda: len(list(daemon.outbox.iterdir())) == 1, "results removed")
    daemon.until(lambda: len(list((daemon.root / "done").iterdir())) == 1, "inputs removed")
    assert daemon.stop() == 0
    assert (daemon.root / "done" / "mine.jsonl").exists()
    assert (daemon.outbox / "mine.output.jsonl").exists()
    assert sorted(path.name for path in (daemon.root / "failed").iterdir()) == ["word.json", "word.reason.json"]
    assert f"retention: removed {daemon.outbox / 'f.errors.jsonl'}" in daemon.log.read_text()
    assert (daemon.root / "finished.jsonl").read_bytes() == b""
