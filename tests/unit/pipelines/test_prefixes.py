"""Beginnings of buffers hold what was asked for, lie in the buffers, and are made once."""

import torch

from pipelines.runtime.prefixes import Prefixes


def test_a_beginning_is_long_enough_and_lies_in_its_buffer() -> None:
    """Also at the end of the buffer, which is no multiple of what beginnings are rounded up to."""
    first, second = torch.zeros(150, dtype=torch.int32), torch.arange(150, dtype=torch.int32)
    prefixes = Prefixes(first, second)
    for count in range(151):
        target, source = prefixes.of(count)
        assert count <= len(target) == len(source) <= 150
        target.copy_(source)
        assert torch.equal(first[:count], second[:count])


def test_beginnings_of_about_the_same_length_are_made_once() -> None:
    """So a step makes no view."""
    prefixes = Prefixes(torch.zeros(1000))
    assert prefixes.of(65)[0] is prefixes.of(128)[0]
    assert prefixes.of(64)[0] is not prefixes.of(65)[0]
