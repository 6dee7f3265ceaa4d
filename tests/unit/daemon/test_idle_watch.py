"""When an engine is needed no more."""

from daemon.idle_watch import IdleWatch


def test_one_is_needed_until_it_was_idle_for_long_enough() -> None:
    """In a row: a look while it has something begins anew, as does whoever wakes it."""
    watch = IdleWatch(0.0, None)
    watch.unload_s = 5.0
    assert not watch.look(4.9, is_idle=True)
    assert not watch.look(5.0, is_idle=False)
    assert not watch.look(9.9, is_idle=True)
    assert not watch.wake(9.9), "it was needed anyway"
    assert not watch.look(14.8, is_idle=True)
    assert watch.is_needed.is_set()
    assert watch.look(14.9, is_idle=True)
    assert not watch.is_needed.is_set()
    assert watch.wake(20.0)
    assert watch.is_needed.is_set()


def test_one_that_is_to_be_kept_is_always_needed() -> None:
    watch = IdleWatch(0.0, None)
    assert not watch.look(1e9, is_idle=True)
    assert watch.is_needed.is_set()


def test_one_that_may_be_unloaded_is_not_needed_before_anything_is_asked_of_it() -> None:
    assert not IdleWatch(0.0, 5.0).is_needed.is_set()
