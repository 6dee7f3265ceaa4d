"""What a runner thinks of texts token by token, each token given to it and none of its own choosing."""

import torch
from step_driver import make_sequence

from pipelines.core.batch import Batch, Row


def forced_losses(runner, pages, chunk):
    """Return the cross entropy of the token behind each chunk of each page, [pages, chunks] float32.

    `pages` is [pages, tokens] on the runner's device. A chunk of one token is a decode step, a longer one a prefill.
    """
    num_tokens = pages.shape[1]
    num_blocks = -(-num_tokens // runner.block_size)
    sequences = [make_sequence(key, page, 1) for key, page in enumerate(pages.tolist())]
    tables = [list(range(seat * num_blocks, (seat + 1) * num_blocks)) for seat in range(len(sequences))]
    losses = []
    for step, start in enumerate(range(0, num_tokens - chunk, chunk)):
        end = start + chunk
        new = slice(-(-start // runner.block_size), -(-end // runner.block_size))
        rows = tuple(
            Row(
                sequence=sequence,
                seat=seat,
                start=start,
                token_ids=tuple(sequence.token_ids[start:end]),
                carries=False,
                samples=True,
                opens_seat=start == 0,
                first_new_block=new.start,
                new_blocks=tuple(tables[seat][new]),
            )
            for seat, sequence in enumerate(sequences)
        )
        slot = runner.slots[step % len(runner.slots)]
        slot.stage(Batch(step, rows, ()))
        runner.launch_forward(slot)
        torch.cuda.synchronize()
        losses.append(torch.nn.functional.cross_entropy(_scores(runner, slot), pages[:, end], reduction="none"))
        runner.launch_sample(slot, {})
        slot.read_tokens()
    return torch.stack(losses, 1)


def _scores(runner, slot):
    return runner._gpu.scores(slot.plan).float()
