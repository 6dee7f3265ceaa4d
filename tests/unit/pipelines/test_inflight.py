"""The ring of slots keeps its numbered invariants by raising."""

import pytest

from pipelines.core.batch import Batch
from pipelines.core.inflight import InFlight
from pipelines.errors import InvariantError


class _Slot:
    def stage(self, batch):
        raise AssertionError(batch)

    def read_tokens(self):
        raise AssertionError


def _batch(step):
    return Batch(step, others=(), copies=())


@pytest.fixture
def ring():
    return InFlight([_Slot(), _Slot()])


def test_no_more_steps_than_slots(ring):
    for step in range(2):
        ring.push(ring.free_slot(), _batch(step), is_sampled=True)
    with pytest.raises(InvariantError, match="invariant 1"):
        ring.free_slot()


def test_steps_come_back_in_launch_order(ring):
    for step in range(2):
        ring.push(ring.free_slot(), _batch(step), is_sampled=True)
    for step in range(2):
        oldest = ring.pop_oldest()
        assert oldest.batch.step == step
        ring.release(oldest.slot)


def test_steps_cannot_be_launched_out_of_order(ring):
    ring.push(ring.free_slot(), _batch(5), is_sampled=True)
    with pytest.raises(InvariantError, match="invariant 2"):
        ring.push(ring.free_slot(), _batch(5), is_sampled=True)


def test_a_slot_is_not_reused_before_its_commit(ring):
    first = ring.free_slot()
    ring.push(first, _batch(0), is_sampled=True)
    with pytest.raises(InvariantError, match="invariant 3"):
        ring.push(first, _batch(1), is_sampled=True)
    ring.pop_oldest()
    with pytest.raises(InvariantError, match="invariant 3"):
        ring.push(first, _batch(1), is_sampled=True)
    ring.release(first)


def test_only_the_newest_step_may_wait_for_masks(ring):
    with pytest.raises(InvariantError, match="invariant 4"):
        ring.push(ring.free_slot(), _batch(0), is_sampled=False)
    ring.push(ring.free_slot(), _batch(0), is_sampled=True)
    ring.push(ring.free_slot(), _batch(1), is_sampled=False)
    assert ring.has_unsampled
    assert ring.steps_awaiting_masks() == []
    ring.release(ring.pop_oldest().slot)
    (late,) = ring.steps_awaiting_masks()
    with pytest.raises(InvariantError, match="invariant 4"):
        ring.pop_oldest()
    late.is_sampled = True
    assert ring.pop_oldest().batch.step == 1
