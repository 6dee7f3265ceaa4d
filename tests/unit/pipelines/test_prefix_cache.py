"""Blocks serve whoever begins with the same tokens, and are never taken for others."""

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.block_manager import BlockManager
from pipelines.core.prefix_cache import ComingPrefixes, extend_names
from pipelines.errors import InvariantError

SIZE = 4


def names_of(tokens):
    names = []
    extend_names(names, tokens, SIZE)
    return names


def filled(blocks, tokens):
    """A table whose full blocks are named."""
    table = []
    blocks.make_writable(table, 0, len(tokens))
    for block, name in zip(table, names_of(tokens), strict=False):
        blocks.name(block, name)
    return table


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_two_names_agree_exactly_where_all_tokens_up_to_there_do(one, other):
    """A name stands for the whole beginning, not for the block alone; a block that is not full has none."""
    ones, others = names_of(one), names_of(other)
    assert (len(ones), len(others)) == (len(one) // SIZE, len(other) // SIZE)
    for index, (name, other_name) in enumerate(zip(ones, others, strict=False)):
        end = (index + 1) * SIZE
        assert (name == other_name) == (one[:end] == other[:end])


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(0, 40))
def test_names_are_the_same_however_many_tokens_come_at_once(tokens, cut):
    names = names_of(tokens[:cut])
    extend_names(names, tokens, SIZE)
    assert names == names_of(tokens)


def test_a_released_block_is_found_again_until_it_is_needed_for_something_new():
    blocks = BlockManager(4, SIZE, prefix_caching=True)
    tokens = list(range(8))
    table = filled(blocks, tokens)
    held = list(table)
    blocks.release(table)
    assert blocks.num_free == 4
    assert blocks.find_prefix(names_of(tokens)) == held
    again = blocks.adopt(held)
    assert blocks.num_free == 2
    blocks.check_integrity([again])
    blocks.release(again)
    new = []
    blocks.make_writable(new, 0, 3 * SIZE)
    assert blocks.find_prefix(names_of(tokens)) == held[:1], "the end of a beginning goes before its start"
    blocks.check_integrity([new])


def test_the_block_longest_out_of_use_goes_first():
    blocks = BlockManager(3, SIZE, prefix_caching=True)
    tables = [filled(blocks, [number] * SIZE) for number in range(3)]
    for table in tables:
        blocks.release(table)
    touched = blocks.adopt(blocks.find_prefix(names_of([0] * SIZE)))
    blocks.release(touched)
    blocks.make_writable([], 0, SIZE)
    assert [bool(blocks.find_prefix(names_of([number] * SIZE))) for number in range(3)] == [True, False, True]


def test_a_named_block_that_is_written_again_loses_its_name():
    blocks = BlockManager(2, SIZE, prefix_caching=True)
    table = filled(blocks, list(range(SIZE)))
    blocks.make_writable(table, SIZE - 1, SIZE)
    assert blocks.find_prefix(names_of(list(range(SIZE)))) == []


def test_a_second_block_of_the_same_content_stays_nameless():
    blocks = BlockManager(2, SIZE, prefix_caching=True)
    tables = [filled(blocks, list(range(SIZE))) for _ in range(2)]
    assert blocks.find_prefix(names_of(list(range(SIZE)))) == tables[0]
    blocks.release(tables[0])
    blocks.release(tables[1])
    assert blocks.num_free == 2
    blocks.check_integrity([])


def test_a_block_that_nobody_uses_cannot_be_named():
    with pytest.raises(InvariantError):
        BlockManager(2, SIZE, prefix_caching=True).name(0, b"name")


def test_only_the_owner_settles_what_is_coming():
    coming = ComingPrefixes()
    one, other = object(), object()
    coming.announce([b"a", b"b"], one)
    coming.announce([b"b", b"c"], other)
    coming.settle([b"b", b"c"], other)
    assert b"b" in coming
    assert b"c" not in coming
    coming.settle([b"a", b"b"], one)
    assert not coming


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@given(st.lists(st.tuples(st.sampled_from(["start", "end"]), prompts, st.integers(0, 9)), max_size=40))
def test_what_is_found_always_holds_the_tokens_asked_for(history):
    """A model of the device's memory, written as the tables say: a cached block always holds its own beginning."""
    blocks = BlockManager(12, SIZE, prefix_caching=True)
    memory = {}
    tables = []
    for action, tokens, pick in history:
        if action == "end" and tables:
            blocks.release(tables.pop(pick % len(tables)))
        elif action == "start":
            found = blocks.find_prefix(names_of(tokens))
            for index, block in enumerate(found):
                assert memory[block] == tokens[: (index + 1) * SIZE]
            needed = blocks.num_blocks_for(len(tokens)) - len(found) + blocks.num_idle_among(found)
            if needed > blocks.num_free:
                continue
            table = blocks.adopt(found)
            blocks.make_writable(table, len(found) * SIZE, len(tokens))
            for index, block in enumerate(table):
                memory[block] = tokens[: (index + 1) * SIZE]
            for block, name in zip(table, names_of(tokens), strict=False):
                blocks.name(block, name)
            tables.append(table)
        blocks.check_integrity(tables)


def test_naming_a_thousand_prompts_takes_little_time():
    """1,024 prompts of 512 tokens: about 40 ms in all, on a core shared with others."""
    prompts = [list(range(number, number + 512)) for number in range(1024)]
    started_s = perf_counter()
    for prompt in prompts:
        extend_names([], prompt, 64)
    assert perf_counter() - started_s < 1.0
