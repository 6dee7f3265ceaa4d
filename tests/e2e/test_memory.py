"""What a device without enough memory looks like from outside, with the fake engine."""


def test_steps_that_do_not_fit_run_smaller_and_everybody_hears_of_it(make_daemon):
    """The file is done as if nothing were; the log and the metrics say what happened."""
    daemon = make_daemon("fake:memory=100")
    daemon.drop("a.jsonl", '{"prompt": "' + "word " * 200 + '"}\n{"prompt": "b"}\n')
    daemon.start()
    assert daemon.wait_done("a")["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    daemon.until(
        lambda: 'gapless_steps_taken_back_total{engine="e"} 0.0' not in daemon.get("/metrics"), "it is counted"
    )
    assert daemon.stop() == 0
    log = daemon.log.read_text()
    assert "engine e: a step of " in log
    assert "did not fit and runs again in steps of at most" in log


def test_a_request_whose_smallest_step_does_not_fit_ends_with_the_reason(make_daemon):
    """The engine dies of it, and again when it runs alone; its line says why."""
    daemon = make_daemon("fake:memory=1")
    daemon.drop("a.jsonl", '{"prompt": "' + "word " * 40 + '"}\n')
    daemon.start()
    assert daemon.wait_done("a")["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    (line,) = daemon.lines("a.errors.jsonl")
    assert line["error"]["code"] == "engine_error"
    assert "cannot be made smaller: model.path has room for 1 token" in daemon.log.read_text()
    assert daemon.stop() == 0
