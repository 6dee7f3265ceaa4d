"""Steps of the native decoder on a GPU: the staged words lie at a fixed place, and one graph does the rest.

    slot.device --copy--> words --graph: differences to the seats, carry-over, model, greedy sampler--> the slot's tokens
                                                                   `--> scores, of a step that is not plain, for its sampler

Steps that no graph serves (some large ones, bound by arithmetic) launch the same kernels one by one. The words are copied
to a place that all slots share, so that one set of graphs serves all: the copy takes about as long as a kernel's launch. With a
set a slot (`cuda_graphs.per_slot`) there is no copy: each set reads its slot's own words.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipelines.config import CudaGraphsConfig, GraphMode
from pipelines.errors import InvariantError
from pipelines.kernels.attention_plan import StepLimits, StepRows, are_full_rounds, fills_lanes
from pipelines.kernels.greedy import GreedyScratch, sample_greedy
from pipelines.kernels.paged_attention import StepKinds
from pipelines.kernels.rope import TokenPlaces
from pipelines.kernels.step_inputs import SeatState, StagedStep, StepInputs, begin_step
from pipelines.models.native import NativeModel
from pipelines.models.ops_gpu import GpuDecoder, GpuInputs
from pipelines.runtime.cuda_graphs import GraphKey, StepGraphs
from pipelines.runtime.kv_cache import KvCache
from pipelines.runtime.plan import Count, Section, SlotLayout, StepPlan
from pipelines.runtime.prefixes import Prefixes
from pipelines.runtime.seats import Seats
from pipelines.runtime.slot import DeviceSlot


class GpuSteps:
    """Everything between a staged slot and its tokens, or its scores. `forward` runs with the compute stream current."""

    def __init__(
        self,
        model: NativeModel,
        cache: KvCache,
        seats: Seats,
        layout: SlotLayout,
        slots: Sequence[DeviceSlot],
        *,
        results: Tensor,
        config: CudaGraphsConfig,
    ) -> None:
        self._layout = layout
        self._per_slot = config.per_slot
        self._cache = cache
        limits = StepLimits(layout.max_num_seqs, layout.max_num_tokens, model.context)
        self._decoder = GpuDecoder(model.config, model.plain_decoder, cache.layers, limits)
        device = seats.last_tokens.device
        if config.per_slot:
            self._words = [slot.device for slot in slots]  # [W] each, of each set of graphs
        else:
            self._words = [torch.zeros(layout.num_words, dtype=torch.int32, device=device)]
        self._used = [] if config.per_slot else [Prefixes(self._words[0], slot.device) for slot in slots]
        self._staged = [_staged(words, layout) for words in self._words]
        self._seats = SeatState(
            seats.last_tokens, seats.block_tables, seats.temperatures, seats.top_ks, seats.top_ps, seats.seeds
        )
        self._inputs = StepInputs(
            input_ids=torch.zeros(layout.max_num_tokens, dtype=torch.int64, device=device),
            positions=torch.zeros(layout.max_num_tokens, dtype=torch.int32, device=device),
            seats=torch.full((layout.max_num_tokens,), -1, dtype=torch.int32, device=device),
        )
        self._scratch = GreedyScratch.allocate(layout.max_num_seqs, model.vocab_size, device)
        self._num_lanes = self._decoder.attention.num_lanes or 0
        # How many decodes a step may have that are all worked on in one piece.
        numbers = range(1, layout.max_num_seqs + 1) if self._num_lanes else ()
        self._whole_rows = {number for number in numbers if are_full_rounds(number, self._num_lanes)}
        self._tokens = results  # [slots, at least S] int32, each slot's
        self.graphs = StepGraphs(
            0 if config.enabled is GraphMode.OFF else min(config.max_tokens, layout.max_num_tokens),
            layout.max_num_seqs,
            self._launch,
            full_tokens=layout.max_num_tokens,
            whole_rows=self._whole_rows,
            num_sets=len(self._words),
            share_pool=config.share_pool,
        )

    def capture(self, report: Callable[[float], None]) -> None:
        """Capture the graphs on the current stream; the words are all zero, so that what runs meanwhile is padding."""
        self.graphs.capture(self._words[0].device, torch.cuda.current_stream(), report)

    def forward(self, slot: DeviceSlot, plan: StepPlan, end_stretch: Callable[[], object]) -> None:
        """Run a staged step up to its scores, a plain one up to its tokens.

        `end_stretch` is called between the launches of a step without a graph.
        """
        number = self._set_of(slot)
        words = self._words[number]
        if not self._per_slot:
            used, staged = self._used[slot.number].of(plan.num_words)
            used.copy_(staged, non_blocking=True)
        if plan.num_copies:
            self._cache.copy_blocks(
                words[self._layout.where(Section.COPY_SOURCES, plan.num_copies)].long(),
                words[self._layout.where(Section.COPY_TARGETS, plan.num_copies)].long(),
            )
        has_splits = plan.has_chunks or not self._are_whole(plan)
        key = self.graphs.find(plan.num_tokens, has_chunks=plan.has_chunks, has_splits=has_splits)
        if key is None:
            kinds = StepKinds(has_decodes=True, has_chunks=plan.has_chunks, has_splits=has_splits)
            self._run(number, plan.num_tokens, plan.num_sampled, kinds, end_stretch)
        else:
            self.graphs.replay(number, key)

    def num_padding(self, plan: StepPlan) -> int:
        """Tokens that the step's graph computes beside the step's own."""
        key = self.graphs.find(plan.num_tokens, has_chunks=plan.has_chunks)
        return 0 if key is None else key.num_tokens - plan.num_tokens

    def scores(self, plan: StepPlan) -> Tensor:
        """The step's scores [s, V], in a buffer that the next step overwrites."""
        return self._decoder.buffers.scores[: plan.num_sampled]

    def _are_whole(self, plan: StepPlan) -> bool:
        """Whether the decodes of a step without chunks are best worked on in one piece each."""
        return plan.num_rows in self._whole_rows and fills_lanes(plan.row_context_lens, self._num_lanes)

    def _set_of(self, slot: DeviceSlot) -> int:
        return slot.number if self._per_slot else 0

    def _launch(self, number: int, key: GraphKey) -> None:
        num_samples = min(key.num_tokens, self._layout.max_num_seqs)
        kinds = StepKinds(has_decodes=True, has_chunks=key.has_chunks, has_splits=key.has_splits)
        self._run(number, key.num_tokens, num_samples, kinds)

    def _run(
        self,
        number: int,
        num_tokens: int,
        num_samples: int,
        kinds: StepKinds,
        end_stretch: Callable[[], object] | None = None,
    ) -> None:
        """Launch the kernels of a step of at most so many tokens and samples, whose words are those of a set."""
        inputs = StepInputs(
            self._inputs.input_ids[:num_tokens], self._inputs.positions[:num_tokens], self._inputs.seats[:num_tokens]
        )
        begin_step(self._staged[number], self._seats, inputs)
        words, layout = self._words[number], self._layout
        num_rows = layout.max_num_seqs  # always all of them: what a larger step left in the work lists has to go
        scores = self._decoder.run(
            GpuInputs(
                token_ids=inputs.input_ids,
                places=TokenPlaces(inputs.positions, inputs.seats, self._seats.block_tables),
                rows=StepRows(
                    first_tokens=words[layout.where(Section.ROW_FIRST_TOKENS, num_rows)],
                    num_tokens=words[layout.where(Section.ROW_NUM_TOKENS, num_rows)],
                    context_lens=words[layout.where(Section.CONTEXT_LENS, num_rows)],
                    seats=words[layout.where(Section.ROW_SEATS, num_rows)],
                ),
                sample_tokens=words[layout.where(Section.SAMPLE_TOKENS, num_samples)],
                kinds=kinds,
                end_stretch=end_stretch,
            )
        )
        if not num_samples:
            return
        if scores.data_ptr() != self._decoder.buffers.scores.data_ptr():
            raise InvariantError("the decoder's scores do not lie in its buffer")
        sample_greedy(
            scores,
            words[layout.where(Section.SAMPLE_SEATS, num_samples)],
            words[layout.count(Count.GREEDY)],
            self._scratch,
            self._tokens,
            self._seats.last_tokens,
            dependent=self._decoder.dependent,
        )


def _staged(words: Tensor, layout: SlotLayout) -> StagedStep:
    """View the words as the kernel that begins a step reads them."""

    def tokens(section: Section) -> Tensor:
        return words[layout.where(section, layout.max_num_tokens)]

    def seats(section: Section) -> Tensor:
        return words[layout.where(section, layout.max_num_seqs)]

    return StagedStep(
        counts=words[layout.count(Count.TOKENS)],
        input_ids=tokens(Section.INPUT_IDS),
        carry_seats=tokens(Section.CARRY_SEATS),
        positions=tokens(Section.POSITIONS),
        token_seats=tokens(Section.TOKEN_SEATS),
        opening_seats=seats(Section.OPENING_SEATS),
        temperatures=seats(Section.TEMPERATURES),
        top_ks=seats(Section.TOP_KS),
        top_ps=seats(Section.TOP_PS),
        seed_lows=seats(Section.SEED_LOWS),
        seed_highs=seats(Section.SEED_HIGHS),
        changes=words[layout.where_changes(layout.max_num_seqs * layout.max_num_blocks)],
    )
