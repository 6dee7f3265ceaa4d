"""Blocks are counted right whatever is shared, copied and released."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.block_manager import BlockManager
from pipelines.errors import InvariantError


def test_a_shared_block_is_copied_before_its_second_owner_writes():
    blocks = BlockManager(num_blocks=4, block_size=4)
    parent: list[int] = []
    blocks.make_writable(parent, 0, 6)
    child = blocks.share(parent, 6)
    assert child == parent
    assert blocks.num_missing(child, 5, 6) == 1
    copies = blocks.make_writable(child, 5, 6)
    assert copies == [(parent[1], child[1])]
    assert child[0] == parent[0]
    assert blocks.make_writable(parent, 6, 7) == [], "the last owner writes in place"


def test_more_blocks_than_free_are_refused_and_nothing_changes():
    blocks = BlockManager(num_blocks=2, block_size=4)
    table: list[int] = []
    with pytest.raises(InvariantError):
        blocks.make_writable(table, 0, 9)
    assert (table, blocks.num_free) == ([], 2)


def test_a_double_release_is_noticed():
    blocks = BlockManager(num_blocks=2, block_size=4)
    table: list[int] = []
    blocks.make_writable(table, 0, 1)
    twin = list(table)
    blocks.release(table)
    with pytest.raises(InvariantError):
        blocks.release(twin)


@given(st.lists(st.tuples(st.sampled_from(["grow", "share", "release"]), st.integers(0, 9)), max_size=60))
def test_integrity_holds_after_any_history(history):
    """Random growing, sharing and releasing never loses a block, and no two writers ever hold one block."""
    blocks = BlockManager(num_blocks=24, block_size=4)
    tables: list[list[int]] = [[]]
    sizes = [0]
    for action, argument in history:
        index = argument % len(tables)
        table, size = tables[index], sizes[index]
        if action == "grow" and blocks.num_missing(table, size, size + argument) <= blocks.num_free:
            blocks.make_writable(table, size, size + argument)
            sizes[index] += argument
            written = table[size // 4 : blocks.num_blocks_for(size + argument)] if argument else []
            others = {block for other in tables if other is not table for block in other}
            assert not others & set(written)
        elif action == "share":
            tables.append(blocks.share(table, size))
            sizes.append(size)
        elif action == "release":
            blocks.release(table)
            sizes[index] = 0
        blocks.check_integrity(tables)
