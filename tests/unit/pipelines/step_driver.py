"""A loop of the barest kind around a runner: fixed blocks for each sequence, a chunk or one token of each a step."""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from pipelines.core.batch import Batch, Row
from pipelines.core.request import Adjustments, TokenRequest
from pipelines.core.sequence import Sequence, TokenMask
from pipelines.runtime.model_runner import ModelRunner
from pipelines.runtime.slot import DeviceSlot


@dataclass(frozen=True)
class Sampling:
    """How one prompt is sampled."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def make_sequence(
    key: int,
    prompt: list[int],
    num_tokens: int,
    sampling: Sampling = Sampling(),
    mask: TokenMask | None = None,
    adjustments: Adjustments | None = None,
) -> Sequence:
    """Return a sequence that wants `num_tokens` tokens."""
    request = TokenRequest(
        key=key,
        file=0,
        priority=0,
        prompt_token_ids=tuple(prompt),
        max_tokens=num_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        n=1,
        stop_token_ids=(),
        wants_deltas=False,
        adjustments=adjustments,
    )
    return Sequence(request, choice=0, token_ids=list(prompt), mask=mask)


@dataclass
class StepDriver:
    """Runs sequences to their end, at most one step a slot in flight."""

    runner: ModelRunner
    chunk: int = 1000  # prompt tokens of a sequence a step
    moves_blocks: bool = False  # each step a sequence's last block is copied to a new one first
    num_in_flight: int = 2
    _flying: deque[tuple[DeviceSlot, Batch]] = field(default_factory=deque)
    _num_steps: int = 0

    def run(self, prompts: Seq[list[int]], num_tokens: int, samplings: Seq[Sampling] | None = None) -> list[list[int]]:
        """Return the tokens of each prompt."""
        samplings = samplings or [Sampling()] * len(prompts)
        sequences = [make_sequence(key, prompt, num_tokens, samplings[key]) for key, prompt in enumerate(prompts)]
        return self.run_sequences(sequences)

    def run_sequences(self, sequences: list[Sequence]) -> list[list[int]]:
        """Run sequences, in the seats of their order, to their end."""
        blocks_each = self.runner.num_blocks // len(sequences)
        spare = [list(range(i * blocks_each, (i + 1) * blocks_each)) for i in range(len(sequences))]
        while True:
            copies: list[tuple[int, int]] = []
            running = [i for i, sequence in enumerate(sequences) if not sequence.has_all_launched]
            rows = [self._row(sequences[i], i, spare[i], copies) for i in running]
            if rows:
                self._launch(Batch(self._num_steps, tuple(rows), tuple(copies)))
                self._num_steps += 1
            while self._flying and (len(self._flying) >= self.num_in_flight or not rows):
                self._commit()
            if not rows and not self._flying:
                return [sequence.output_token_ids for sequence in sequences]

    def _row(self, sequence: Sequence, seat: int, spare: list[int], copies: list[tuple[int, int]]) -> Row:
        start = sequence.num_computed
        carries = start >= sequence.num_prompt_tokens  # a decode: the host never says its token, known or not
        token_ids = (0,) if carries else tuple(sequence.token_ids[start : sequence.num_prompt_tokens][: self.chunk])
        end = start + len(token_ids)
        first_new = len(sequence.block_table)
        if self.moves_blocks and start % self.runner.block_size:
            first_new -= 1
            copies.append((sequence.block_table[-1], spare[-1]))
            spare.insert(0, sequence.block_table[-1])
            sequence.block_table[-1] = spare.pop()
        while len(sequence.block_table) * self.runner.block_size < end:
            sequence.block_table.append(spare.pop())
        samples = end == sequence.num_tokens
        sequence.num_computed = end
        sequence.num_pending += samples
        return Row(
            sequence=sequence,
            seat=seat,
            start=start,
            token_ids=token_ids,
            carries=carries,
            samples=samples,
            opens_seat=start == 0,
            first_new_block=first_new,
            new_blocks=tuple(sequence.block_table[first_new:]),
        )

    def _launch(self, batch: Batch) -> None:
        slot = self.runner.slots[batch.step % len(self.runner.slots)]
        slot.stage(batch)
        self.runner.launch_forward(slot)
        self._flying.append((slot, batch))
        if not batch.mask_awaits_tokens:
            self.runner.launch_sample(slot, _masks(batch))

    def _commit(self) -> None:
        slot, batch = self._flying.popleft()
        for row, token in zip(batch.sampled_rows, slot.read_tokens(), strict=True):
            row.sequence.num_pending -= 1
            row.sequence.token_ids.append(token)
        if self._flying and self._flying[0][1].mask_awaits_tokens:
            late_slot, late = self._flying[0]
            self.runner.launch_sample(late_slot, _masks(late))


def _masks(batch: Batch) -> dict[int, bytes]:
    return {
        index: row.sequence.mask.allowed(row.sequence.output_token_ids)
        for index, row in enumerate(batch.sampled_rows)
        if row.sequence.mask is not None
    }
