"""Seats: what the device remembers of each running sequence from step to step; touched by the compute stream alone."""

import torch
from torch import Tensor

from pipelines.models.attention import AttentionInputs
from pipelines.runtime.plan import Section, SlotLayout, StepPlan


class Seats:
    """One row of state a seat, and how a staged step changes it."""

    def __init__(self, layout: SlotLayout, device: torch.device) -> None:
        num_seats = layout.max_num_seqs
        self._layout = layout
        self.last_tokens = torch.zeros(num_seats, dtype=torch.int64, device=device)  # [S] sampled by the last step
        self.block_tables = torch.zeros((num_seats, layout.max_num_blocks), dtype=torch.int32, device=device)  # [S, B]
        self.temperatures = torch.zeros(num_seats, dtype=torch.float32, device=device)  # [S]
        self.top_ks = torch.zeros(num_seats, dtype=torch.int64, device=device)  # [S] 0 = all
        self.top_ps = torch.ones(num_seats, dtype=torch.float32, device=device)  # [S]
        self.seeds = torch.zeros(num_seats, dtype=torch.int64, device=device)  # [S]

    def apply(self, words: Tensor, plan: StepPlan) -> None:
        """Take over a step's differences from its slot's device buffer [W] int32."""
        if plan.num_changes:
            changes = words[self._layout.where_changes(plan.num_changes)].view(-1, 2)
            self.block_tables.view(-1).index_copy_(0, changes[:, 0].long(), changes[:, 1])
        if plan.num_openings:
            self._open(words, plan.num_openings)

    def _open(self, words: Tensor, count: int) -> None:
        seats = self._read(words, Section.OPENING_SEATS, count).long()
        lows = self._read(words, Section.SEED_LOWS, count).long() & 0xFFFFFFFF
        highs = self._read(words, Section.SEED_HIGHS, count).long() << 32
        self.seeds.index_copy_(0, seats, highs | lows)
        self.top_ks.index_copy_(0, seats, self._read(words, Section.TOP_KS, count).long())
        temperatures = self._read(words, Section.TEMPERATURES, count).view(torch.float32)
        self.temperatures.index_copy_(0, seats, temperatures)
        self.top_ps.index_copy_(0, seats, self._read(words, Section.TOP_PS, count).view(torch.float32))

    def input_ids(self, words: Tensor, plan: StepPlan) -> Tensor:
        """Return the step's tokens [T] int64: those of the slot, or the seat's last one where the host has not seen it."""
        carry_seats = self._read(words, Section.CARRY_SEATS, plan.num_tokens).long()
        carried = self.last_tokens[carry_seats.clamp(min=0)]
        return torch.where(carry_seats >= 0, carried, self._read(words, Section.INPUT_IDS, plan.num_tokens).long())

    def attention_inputs(self, words: Tensor, plan: StepPlan, block_size: int) -> AttentionInputs:
        """Return what the step's attention reads."""
        return AttentionInputs(
            plan=plan.attention,
            token_tables=self._read(words, Section.TOKEN_SEATS, plan.num_tokens).long(),
            row_tables=self._read(words, Section.ROW_SEATS, plan.num_rows).long(),
            block_tables=self.block_tables,
            positions=self._read(words, Section.POSITIONS, plan.num_tokens).long(),
            context_lens=self._read(words, Section.CONTEXT_LENS, plan.num_rows).long(),
            block_size=block_size,
        )

    def copies(self, words: Tensor, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """Return sources and targets of the step's block copies, [C] int64 each."""
        sources = self._read(words, Section.COPY_SOURCES, plan.num_copies).long()
        return sources, self._read(words, Section.COPY_TARGETS, plan.num_copies).long()

    def sample_tokens(self, words: Tensor, plan: StepPlan) -> Tensor:
        """Return which tokens' scores are sampled, [s] int64."""
        return self._read(words, Section.SAMPLE_TOKENS, plan.num_sampled).long()

    def sample_seats(self, words: Tensor, plan: StepPlan) -> Tensor:
        """Return the seats of the sampled rows, [s] int64."""
        return self._read(words, Section.SAMPLE_SEATS, plan.num_sampled).long()

    def sample_positions(self, words: Tensor, plan: StepPlan) -> Tensor:
        """Return where the sampled tokens will stand, [s] int64."""
        return self._read(words, Section.POSITIONS, plan.num_tokens)[self.sample_tokens(words, plan)].long() + 1

    def sample_order(self, words: Tensor, plan: StepPlan) -> Tensor:
        """Return the sampled rows by kind, [s] int64."""
        return self._read(words, Section.SAMPLE_ORDER, plan.num_sampled).long()

    def told_rows(self, words: Tensor, plan: StepPlan) -> Tensor:
        """Return which sampled rows want log-probabilities, [l] int64."""
        return self._read(words, Section.TOLD_ROWS, len(plan.num_told)).long()

    def _read(self, words: Tensor, section: Section, count: int) -> Tensor:
        return words[self._layout.where(section, count)]
