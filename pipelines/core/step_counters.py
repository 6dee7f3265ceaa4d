"""What the engine counts between two reports: tokens, and a value for each step, request or sequence that got so far.

Counting is in the loop's way, so a step costs a few appends and one look at its rows; sums and buckets are made by whoever
gets the report. Times are CLOCK_MONOTONIC seconds.
"""

from dataclasses import dataclass, field

from pipelines.core.batch import Batch
from pipelines.core.scheduler import Committed


@dataclass(slots=True)
class StepCounters:
    """Increments since the last report; a field means what it means in `EngineStats`."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps_taken_back: int = 0
    notices: list[str] = field(default_factory=list)
    padding_tokens: int = 0
    decode_s: float = 0.0
    decode_floor_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    num_batched: list[int] = field(default_factory=list)
    num_batched_tokens: list[int] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    output_token_s: list[float] = field(default_factory=list)

    def count_launch(self, batch: Batch, now_s: float) -> None:
        """Count a step that was launched just now."""
        self.num_batched.append(batch.num_rows)
        self.num_batched_tokens.append(batch.num_tokens)
        for sequence in [row.sequence for row in batch.opening_rows]:
            if not sequence.first_step_s:  # else it was preempted since
                sequence.first_step_s = now_s
                if sequence.arrived_s:
                    self.queue_s.append(now_s - sequence.arrived_s)

    def count_commit(self, committed: Committed, now_s: float) -> None:
        """Count the tokens that a step gave."""
        self.generation_tokens += committed.num_tokens
        self.prompt_tokens += committed.num_prompt_tokens
        for sequence in committed.started:
            sequence.first_token_s = now_s
            if sequence.arrived_s:
                self.first_token_s.append(now_s - sequence.arrived_s)
        for sequence, _ in committed.heard:
            num_later = len(sequence.token_ids) - sequence.num_prompt_tokens - 1
            if sequence.finish_reason is not None and num_later:
                self.output_token_s.append((now_s - sequence.first_token_s) / num_later)
