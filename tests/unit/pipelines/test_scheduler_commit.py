"""What a step brings is as many tokens as it has rows that sample; anything else is a fault of the engine, said at once."""

import pytest
from rig import token_request

from pipelines.config import BatchConfig
from pipelines.core.block_manager import BlockManager
from pipelines.core.scheduler import Scheduler
from pipelines.errors import InvariantError


@pytest.mark.parametrize("wrong", [1, 3])
@pytest.mark.parametrize("num_steps", [0, 1], ids=["prompts", "steady decodes"])
def test_a_step_with_too_few_or_too_many_tokens_is_not_taken(num_steps: int, wrong: int) -> None:
    """A sequence without its token would wait for it for ever; with the right ones the step is committed afterwards."""
    scheduler = Scheduler(BatchConfig(4, 64), BlockManager(16, 16))
    for key in range(2):
        scheduler.add(token_request(key, [1, 2, 3], 3 + num_steps))
    for _ in range(num_steps):
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.commit(batch, [7, 8])
    batch = scheduler.schedule()
    assert batch is not None
    assert batch.num_steady == (2 if num_steps else 0)
    with pytest.raises(InvariantError, match=rf"brought {wrong} tokens, expected 2"):
        scheduler.commit(batch, [7] * wrong)
    assert scheduler.commit(batch, [7, 8]).num_tokens == 2
    scheduler.check_integrity()
