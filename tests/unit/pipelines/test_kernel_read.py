"""The kernel that reads memory: it has to read all of it, or the bandwidth is too good to be true."""

import torch
from kernel_support import DEVICE

from pipelines.benchmark.read_kernel import add_up


def test_every_word_is_read_once():
    """The programs' sums add up to the whole, also where the blocks do not divide evenly among them."""
    words = torch.randint(-1000, 1000, (7 * 64,), dtype=torch.int32, generator=torch.Generator().manual_seed(0)).to(
        DEVICE
    )
    sums = torch.full((3,), -7, dtype=torch.int32, device=DEVICE)
    add_up(words, sums, block=64, num_warps=4)
    assert int(sums.sum()) == int(words.sum())
    blocks = words.view(7, 64).sum(1).tolist()
    assert sums.tolist() == [sum(blocks[program::3]) for program in range(3)]
