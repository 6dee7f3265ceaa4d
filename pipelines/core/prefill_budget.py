"""How many tokens a step may have in all: prompts are computed beside decodes, in chunks of a size that adapts.

A step takes as long as its bytes, weights above all, or its arithmetic, whichever is longer. On an H200 reading the weights
takes as long as the arithmetic of about 170 tokens, and that hardly depends on the model. From this follows the rule:

- Few decodes leave most of the arithmetic unused, so the seats are filled as fast as can be: chunks as large as allowed.
- Many decodes need little beside them to fill it. More would gain nothing: it would delay their tokens, leave the CUDA graphs,
  and use up the prompts early, so that the last steps of a job have decodes alone, in arithmetic that stays unused again.

The `offline` workload (1,024 requests, 256 seats) in a simulation with the figures of an H200, time = max(bytes, arithmetic):
chunks of 8,192 tokens 18.95 s, of 2,048 18.78 s, of 1,024 18.06 s, of 512 16.01 s; this rule 16.13 s; the floor is 15.0 s. On an
H200, where attention's bytes do not overlap with arithmetic, steps of 512 were the quickest as well (docs/benchmarks.md).
"""

_FEW_DECODES = 128
_FILLED_TOKENS = 512  # of a step with many decodes; also what the largest CUDA graph takes
_MIN_CHUNK_TOKENS = 256  # beside more decodes than that leaves room for


def prefill_budget(max_num_batched_tokens: int, num_decodes: int) -> int:
    """Return how many tokens a step of so many decodes may have, those included."""
    if num_decodes < _FEW_DECODES:
        return max_num_batched_tokens
    return min(max_num_batched_tokens, max(_FILLED_TOKENS, num_decodes + _MIN_CHUNK_TOKENS))
