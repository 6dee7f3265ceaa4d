"""Only time in which an engine had work and nothing came of it counts."""

from daemon.stall import StallWatch


def test_time_with_work_and_no_progress_adds_up():
    watch = StallWatch(10.0)
    ages = [watch.look(10.0 + second / 2, has_work=True) for second in range(1, 5)]
    assert ages == [0.5, 1.0, 1.5, 2.0]


def test_progress_and_want_of_work_begin_anew():
    watch = StallWatch(0.0)
    assert watch.look(0.5, has_work=True) == 0.5
    watch.note_progress()
    assert watch.look(1.0, has_work=True) == 0.5
    assert watch.look(1.5, has_work=False) == 0.0
    assert watch.look(2.0, has_work=True) == 0.5


def test_a_daemon_that_stood_still_blames_nobody():
    """Minutes between two looks are the daemon's own: it was stopped, or its loop was held up."""
    watch = StallWatch(0.0)
    assert watch.look(600.0, has_work=True) == 1.0
