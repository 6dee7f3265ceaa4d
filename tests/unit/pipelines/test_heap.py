"""What is set aside is not gone through, and becomes the collector's again where it may be garbage later."""

import gc

import pytest

from pipelines.heap import all_set_aside, set_aside


class Node:
    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_set_aside():
    """The suite has set aside what it imports."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def is_gone_through(node):
    return any(each is node for each in gc.get_objects())


def test_what_was_there_is_set_aside_for_a_while_and_nothing_else():
    kept = Node()
    with all_set_aside():
        later = Node()
        assert not is_gone_through(kept)
        assert is_gone_through(later)
    assert is_gone_through(kept)
    assert gc.get_freeze_count() == 0


def test_what_is_set_aside_for_good_stays_so():
    kept = Node()
    set_aside()
    with all_set_aside():
        pass
    assert not is_gone_through(kept)
