"""The scores that a runner gives to the token behind each prefix of some texts, by prefill or by decode steps."""

import torch
from step_driver import StepDriver, make_sequence


def next_scores(runner, prefixes, *, chunk=1000):
    """Return float32 scores [prefixes, V]; with a chunk of 1 every token of a prefix goes through decode steps."""
    kept = []
    launch_sample = runner.launch_sample

    def keep(slot, masks):
        if slot.plan.num_sampled:
            torch.cuda.synchronize()
            kept.append((slot.plan.sampled_keys, runner._gpu.scores(slot.plan).float().cpu()))
        launch_sample(slot, masks)

    runner.launch_sample = keep
    try:
        sequences = [make_sequence(key, prefix, 1) for key, prefix in enumerate(prefixes)]
        StepDriver(runner, chunk=chunk).run_sequences(sequences)
    finally:
        del runner.launch_sample
    rows = {key: scores[index] for keys, scores in kept for index, key in enumerate(keys)}
    return torch.stack([rows[key] for key in range(len(prefixes))])
