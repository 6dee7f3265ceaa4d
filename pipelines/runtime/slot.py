"""One half of the double buffer: a step's differences on their way to the device, and its tokens on their way back.

The problem: while the device runs step N, the host prepares step N+1. It must not touch what step N still reads, must not wait
for it, and should not pay one transfer for each of the dozen small arrays that a step needs.

So a slot owns its buffers, host and device twins of one layout, and a step is one copy each way:

    host       pack(N) .                pack(N+2) in the same slot, only after commit(N)
    h2d              [copy N]h2d_done
    compute                  wait [differences, carry-over, model, sampler N]compute_done
    d2h                                                                     wait [copy N]d2h_done
    host                                                                                   wait, commit(N)

With two slots step N+1 runs through the other one meanwhile. The variable part of the layout, the block-table differences,
comes last, so that the one copy takes only what is used.

Invariants:
 1. Host and device buffers are different memory on every device, so that on a CPU too a missing wait is a wrong token.
 2. The host buffer is written by `stage` alone; h2d reads it until h2d_done, which lies before d2h_done.
 3. The device buffer is written by h2d alone; compute reads it between h2d_done and compute_done.
 4. The buffer of results is written by the sampler and copied by d2h between compute_done and d2h_done; a later step writes it
    only after this slot's commit.
 5. What the device's threads need of host numbers stands in the slot's frozen `StepPlan`, never in a live `Sequence`.
 6. A step that ran out of memory is abandoned: what follows it in the slot waits until h2d and compute are through with it.
 7. Rows are reordered for the device (see `plan`); tokens come back in the order of `Batch.sampled_rows` all the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.core.batch import Batch
from pipelines.core.request import MAX_LOGPROBS, TokenLogprobs
from pipelines.errors import EngineError, InvariantError
from pipelines.runtime.adjustments import StepAdjustments, gather_adjustments
from pipelines.runtime.masks import MaskBuffer
from pipelines.runtime.plan import Count, SlotLayout, StepPlan, pack
from pipelines.runtime.prefixes import Prefixes
from pipelines.runtime.sampler import FAILED
from pipelines.runtime.streams import D2H_DONE, H2D_DONE, Event, StreamSet


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some of a step's launches: those since the one before."""

    launched_s: float  # the host had made them
    done: Event  # and the device has done them


class DeviceSlot:
    """See the module's head. Staged and read by the host's thread; what has no underscore is for the runner."""

    def __init__(
        self,
        layout: SlotLayout,
        device: torch.device,
        streams: StreamSet,
        masks: MaskBuffer,
        results: Tensor,
        *,
        number: int,
        vocab_size: int,
        pinned: bool,
    ) -> None:
        """Make one of several, of which `results` is the row `number` (see `result_buffers`)."""
        self.number = number
        self._layout = layout
        self._vocab_size = vocab_size
        self._pinned = pinned
        self._streams = streams
        self._host = torch.zeros(layout.num_words, dtype=torch.int32, pin_memory=pinned)  # [W] int32
        self._words = self._host.numpy()
        self._words[Count.SLOT] = number
        self._host_results = torch.zeros(results.shape, dtype=torch.int32, pin_memory=pinned)  # as `results`
        self._used_results = Prefixes(results, self._host_results)
        self._plan: StepPlan | None = None
        self._h2d_done: Event | None = None
        self._d2h_done: Event | None = None
        self.masks = masks
        self.adjustments: StepAdjustments | None = None  # of the step; most have none
        self.device = torch.zeros(layout.num_words, dtype=torch.int32, device=device)  # [W] int32
        self._used = Prefixes(self.device, self._host)
        # [S] int32, FAILED or a token; then for each row that wants them log-probabilities as `logprobs` of the sampler
        self.results = results
        self.tokens = self.results[: layout.max_num_seqs]
        self.began: Event | None = None  # the compute stream has the inputs
        self.stretches: list[Stretch] = []  # of the step launched so far
        self.scores: Tensor | None = None  # [s, V] of the rows that sample; compute stream, forward to sampler

    @property
    def plan(self) -> StepPlan:
        """The step it carries.

        Raises:
            InvariantError: it carries none.
        """
        if self._plan is None:
            raise InvariantError("a slot was launched before it was staged")
        return self._plan

    @property
    def h2d_done(self) -> Event:
        """Its inputs are on the device."""
        if self._h2d_done is None:
            raise InvariantError("a slot was launched before it was staged")
        return self._h2d_done

    @property
    def d2h_done(self) -> Event:
        """Its tokens are on the host."""
        if self._d2h_done is None:
            raise InvariantError("tokens were asked of a slot whose sampler was not launched")
        return self._d2h_done

    def stage(self, batch: Batch) -> None:
        """See `pipelines.core.runner.Slot`; the host buffer is free, because the slot's last step is committed (2)."""
        self._plan = pack(batch, self._layout, self._words)
        self._d2h_done = self.began = None
        self.stretches = []
        asked = gather_adjustments(batch, self._vocab_size)
        self.adjustments = None if asked is None else StepAdjustments(asked, self._pinned, self.device.device)
        self._streams.h2d.launch(_copy, *self._used.of(self._plan.num_words))
        if self.adjustments is not None:
            self._streams.h2d.launch(self.adjustments.copy)
        self._h2d_done = self._streams.h2d.record(H2D_DONE)

    def abandon(self) -> None:
        """Give up the step; wait until the host's buffers are not read for it any more."""
        if self._h2d_done is not None:
            self._h2d_done.wait()
        self._plan = self._h2d_done = self._d2h_done = self.began = None
        self.scores = None

    def launch_read(self, compute_done: Event) -> None:
        """Start the results' copy back to the host."""
        plan = self.plan
        count = self._where_logprobs.stop if plan.num_told else plan.num_sampled
        self._streams.d2h.wait(compute_done)
        results, host_results = self._used_results.of(count)
        self._streams.d2h.launch(_copy, host_results, results)
        self._d2h_done = self._streams.d2h.record(D2H_DONE)

    def read_tokens(self) -> list[int]:
        """See `pipelines.core.runner.Slot`."""
        self.d2h_done.wait()
        tokens: list[int] = self._host_results[: self.plan.num_sampled].tolist()
        if FAILED in tokens:
            raise EngineError(
                f"step {self.plan.step}, request {self.plan.sampled_keys[tokens.index(FAILED)]}: the model's scores are not "
                "finite, or its mask allows no token"
            )
        return tokens

    def read_logprobs(self) -> list[TokenLogprobs]:
        """See `pipelines.core.runner.Slot`."""
        plan, most = self.plan, self.plan.num_logprobs
        words = self._host_results[self._where_logprobs].view(len(plan.num_told), -1)
        values: list[list[float]] = words[:, : 1 + most].view(torch.float32).tolist()
        ids: list[list[int]] = words[:, 1 + most :].tolist()
        return [
            TokenLogprobs(row[0], tuple(zip(others[:count], row[1:], strict=False)))
            for row, others, count in zip(values, ids, plan.num_told, strict=True)
        ]

    def write_logprobs(self, words: Tensor) -> None:
        """Compute stream: put what the sampler's `logprobs` gave where it is copied back from."""
        self.results[self._where_logprobs].copy_(words.flatten())

    @property
    def _where_logprobs(self) -> slice:
        start, plan = self._layout.max_num_seqs, self.plan
        return slice(start, start + len(plan.num_told) * (1 + 2 * plan.num_logprobs))


def result_buffers(layout: SlotLayout, num_slots: int, device: torch.device) -> Tensor:
    """Make the buffers of all slots' results, [slots, W] int32: one tensor, so that a graph can write to any of them."""
    return torch.zeros((num_slots, layout.max_num_seqs * (2 + 2 * MAX_LOGPROBS)), dtype=torch.int32, device=device)


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
