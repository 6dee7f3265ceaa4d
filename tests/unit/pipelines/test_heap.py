"""What is set aside is not gone through, and becomes the collector's again where it may be garbage later."""

import gc

from pipelines.heap import all_set_aside


class Node:
    def __init__(self):
        self.me = self


def test_what_was_there_is_set_aside_for_a_while_and_nothing_else():
    kept = Node()
    try:
        with all_set_aside():
            later = Node()
            assert gc.get_freeze_count() > 0
            assert not any(node is kept for node in gc.get_objects())
            assert any(node is later for node in gc.get_objects())
        assert gc.get_freeze_count() == 0
        assert any(node is kept for node in gc.get_objects())
    finally:
        gc.unfreeze()
