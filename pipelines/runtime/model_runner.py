"""Launches steps of one model on one device; never waits for them."""

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipelines.config import CacheDtype, EngineConfig, Priority
from pipelines.core.runner import GraphUse, Mark, MemoryTraffic, StepTime, unproven_time
from pipelines.core.sequence import SampleKind
from pipelines.counted import counted
from pipelines.errors import EngineError, InvariantError
from pipelines.models.attention import FLOAT8, PagedAttention
from pipelines.models.kv_scales import measure_scales
from pipelines.models.model import Model, check_float8
from pipelines.models.native import NativeModel
from pipelines.models.native_config import is_native
from pipelines.models.source import model_name
from pipelines.runtime.adjustments import SeatCounts
from pipelines.runtime.capture import capture_on, settle_graphs
from pipelines.runtime.cpu_stream import CpuStream
from pipelines.runtime.cuda_stream import CudaClock, CudaStream
from pipelines.runtime.device import peak_bandwidth, resolve_device
from pipelines.runtime.kv_cache import CacheNeeds, KvCache, block_bytes, count_blocks
from pipelines.runtime.masks import MaskBuffer
from pipelines.runtime.memory import StartMemory, free_memory_bytes
from pipelines.runtime.plan import SlotLayout, StepPlan
from pipelines.runtime.sampler import SampleInputs, apply_masks, logprobs, sample
from pipelines.runtime.seats import Seats
from pipelines.runtime.slot import DeviceSlot, Stretch, result_buffers
from pipelines.runtime.streams import (
    ABANDONED,
    COMPUTE_BEGAN,
    COMPUTE_DONE,
    STRETCH_DONE,
    Event,
    Stream,
    StreamSet,
)

if TYPE_CHECKING:
    from pipelines.runtime.gpu_steps import GpuSteps

_SPARE_SHARE = 16  # one such part of the free memory may go into a second copy of weights
_OTHER_KEYS = "batch.max_num_seqs or kv_cache.memory_fraction"  # lowering one leaves more memory to a step
_HIGH, _NORMAL = -1, 0  # priorities of CUDA streams


@dataclass(frozen=True, slots=True)
class _LaunchedStep:
    """A step whose times are not taken yet."""

    plan: StepPlan
    h2d_done: Event
    began: Event
    stretches: list[Stretch]  # at least one
    d2h_done: Event


class ModelRunner:
    """See `pipelines.core.runner.Runner`. `_forward` and `_sample` run in the compute stream's order, all else in the host's."""

    def __init__(
        self,
        config: EngineConfig,
        model_folder: Path,
        streams: StreamSet | None = None,
        report: Callable[[float], None] = lambda _: None,
        report_capture: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Load the model, probe it, and make streams, slots, seats and cache.

        `report` is told how much of the model is loaded, then `report_capture` how many graphs are captured, both 0 .. 1.

        Raises:
            ModelError: the model cannot be run by this engine.
            OutOfMemoryError: weights, cache, buffers or graphs do not fit.
        """
        self.device = resolve_device(config.model.device)
        self.model_name = model_name(config.model)
        memory = StartMemory(self.device)
        with memory.taking("the weights", "the bytes of model.dtype, or choose a smaller model"):
            self._model: Model = _load(model_folder, config, self.device, report)
        self._layout = SlotLayout(
            max_num_tokens=config.batch.max_num_batched_tokens,
            max_num_seqs=config.batch.max_num_seqs,
            max_num_blocks=-(-self.context // config.kv_cache.block_size),
        )
        with memory.taking("the KV cache", "kv_cache.memory_fraction or kv_cache.max_tokens"):
            self._cache = self._make_cache(config)
        self._num_threads = config.num_threads or len(os.sched_getaffinity(0))
        self._priority = config.streams.compute_priority
        self._cuda_clock: CudaClock | None = None  # one for all streams
        with memory.taking("the buffers of a step", f"batch.max_num_batched_tokens, {_OTHER_KEYS}"):
            self._seats = Seats(self._layout, self.device)
            self._counts = SeatCounts(self._layout.max_num_seqs, self._model.vocab_size, self.device)
            self._streams = streams or StreamSet.build(config.streams, self._make_stream)
            self._results = result_buffers(self._layout, config.buffers.slots, self.device)
            self.slots = [self._make_slot(config, number) for number in range(config.buffers.slots)]
            self._gpu = self._make_gpu_steps(config)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # all this was made in the default stream, for which no step waits
        self._launched: deque[_LaunchedStep] = deque()
        with memory.taking("the captured graphs", f"cuda_graphs.max_tokens, {_OTHER_KEYS}"):
            self._no_graphs = settle_graphs(config.cuda_graphs.enabled, partial(self._capture, report_capture))

    @property
    def context(self) -> int:
        """Tokens a sequence may have."""
        return self._model.context

    @property
    def vocab_size(self) -> int:
        """Scores of a row."""
        return self._model.vocab_size

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._cache.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._cache.block_size

    @property
    def traffic(self) -> MemoryTraffic | None:
        """What a decode step has to read; None where that or the memory's bandwidth is not known.

        It is for the native decoder on a GPU, without sliding windows, whose context is not all read.
        """
        model = self._model
        if self.device.type != "cuda" or not isinstance(model, NativeModel):
            return None
        if any(spec.window is not None for spec in model.layers):
            return None
        peak = peak_bandwidth(torch.cuda.get_device_properties(self.device))
        kv_bytes = block_bytes(model.layers, 1, self._cache.dtype)
        return None if peak is None else MemoryTraffic(model.linear_bytes, kv_bytes, peak)

    @property
    def detail(self) -> str:
        """One line on what runs where."""
        cache_bytes = self.num_blocks * block_bytes(self._model.layers, self.block_size, self._cache.dtype)
        if self.device.type == "cpu":
            how = f"{counted(self._num_threads, 'thread')}, {counted(self._model.num_prepacked, 'prepacked linear layer')}"
        elif use := self.graph_use:
            how = (
                f"{counted(use.num_graphs, 'graph')} captured in {use.capture_s:.1f} s, pool {use.pool_bytes / 2**20:.0f} MiB of "
                f"{use.device_bytes / 2**20:.0f} MiB"
            )
        else:
            how = "no graphs: every step launches its kernels one by one"
        kept = "" if self._cache.dtype == self._model.dtype else f" in {_name_of(self._cache.dtype)}"
        cache = f"{self.num_blocks} x {counted(self.block_size, 'token')}{kept} ({cache_bytes / 2**30:.1f} GiB)"
        return f"{self._model.name} on {self.device} in {_name_of(self._model.dtype)}, {how}, KV cache of {cache}"

    @property
    def graph_use(self) -> GraphUse | None:
        """What captured graphs took, None if there are none."""
        return None if self._gpu is None else self._gpu.graphs.use

    @property
    def warnings(self) -> tuple[str, ...]:
        """What does not run as it might, one line each."""
        if self.device.type == "cpu" or not self._no_graphs:
            return ()
        return (f"no graphs, so each step launches its kernels one by one: {self._no_graphs}",)

    def launch_forward(self, slot: DeviceSlot) -> None:
        """See `Runner`."""
        compute = self._streams.compute
        compute.wait(slot.h2d_done)
        slot.began = compute.record(COMPUTE_BEGAN)
        if slot.adjustments is not None and len(slot.adjustments.host.new_seats):
            compute.launch(self._counts.open, slot.adjustments)
        compute.launch(self._forward, slot, slot.plan)
        if slot.plan.awaits_masks:  # the device is done with it before the sampler is launched
            self._end_stretch(slot)

    def launch_sample(self, slot: DeviceSlot, masks: dict[int, bytes]) -> None:
        """See `Runner`."""
        compute = self._streams.compute
        if masks:
            compute.wait(slot.masks.stage(masks, self._streams.h2d))
        if slot.began is None:
            raise InvariantError(f"the sampler of step {slot.plan.step} was launched before its forward pass")
        if not (self._gpu is not None and slot.plan.is_plain):  # else the forward pass has sampled
            compute.launch(self._sample, slot, slot.plan, len(masks))
        slot.launch_read(self._end_stretch(slot, COMPUTE_DONE))
        self._launched.append(_LaunchedStep(slot.plan, slot.h2d_done, slot.began, slot.stretches, slot.d2h_done))

    def abandon(self, slot: DeviceSlot) -> None:
        """See `Runner`. The compute stream has waited for the slot's copies, so behind it none reads or writes its buffers."""
        slot.abandon()
        self._streams.compute.record(ABANDONED).wait()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what the step had got is in pieces that a smaller one may not fit into

    def take_step_times(self) -> list[StepTime]:
        """See `Runner`. A step that failed has no times."""
        times = []
        while self._launched and self._launched[0].d2h_done.is_done:
            step = self._launched.popleft()
            try:
                times.append(self._time(step))
            except EngineError:
                self._launched.clear()  # its reader gets the error; nothing behind it runs
        return times

    def close(self) -> None:
        """See `Runner`."""
        self._streams.close()
        self._model.close()

    def _end_stretch(self, slot: DeviceSlot, name: str = STRETCH_DONE) -> Event:
        """Note what has been launched of a slot's step so far."""
        done = self._streams.compute.record(name)
        slot.stretches.append(Stretch(time.monotonic(), done))
        return done

    def _time(self, step: _LaunchedStep) -> StepTime:
        start_s = step.began.time_s
        marks = [Mark(stretch.launched_s, stretch.done.time_s) for stretch in step.stretches]
        if self.device.type == "cpu":
            # A stretch is one function there, which its thread has in whole when it begins.
            marks[0] = replace(marks[0], launched_s=start_s)
        return StepTime(
            step=step.plan.step,
            launched_s=step.stretches[-1].launched_s,
            inputs_s=step.h2d_done.time_s,
            start_s=start_s,
            end_s=marks[-1].reached_s,
            read_s=step.d2h_done.time_s,
            unproven_s=unproven_time(start_s, marks),
            num_padding=self._gpu.num_padding(step.plan) if self._gpu else 0,
        )

    @torch.inference_mode()
    def _forward(self, slot: DeviceSlot, plan: StepPlan) -> None:
        """Compute stream: apply the step's differences, carry tokens over, run the model."""
        if self._gpu is not None:
            self._gpu.forward(slot, plan, partial(self._end_stretch, slot))
            return
        words = slot.device
        self._seats.apply(words, plan)
        if plan.num_copies:
            self._cache.copy_blocks(*self._seats.copies(words, plan))
        inputs = self._seats.attention_inputs(words, plan, self.block_size)
        slot.scores = self._model.forward(
            self._seats.input_ids(words, plan),
            inputs.positions,
            self._seats.sample_tokens(words, plan),
            PagedAttention(inputs),
            self._cache.layers,
        )

    @torch.inference_mode()
    def _sample(self, slot: DeviceSlot, plan: StepPlan, num_masks: int) -> None:
        """Compute stream: one token for each row that samples, into its seat and into the slot."""
        if not plan.num_sampled:
            return
        if self._gpu is not None:
            slot.scores = self._gpu.scores(plan)
        scores, slot.scores = slot.scores, None
        if scores is None:
            raise InvariantError(f"the sampler of step {plan.step} ran without its forward pass")
        asked = slot.adjustments if slot.adjustments is not None and slot.adjustments.is_sampled else None
        adjusted = scores if asked is None else self._counts.apply(scores, asked)
        if num_masks:
            adjusted = apply_masks(adjusted, *slot.masks.read(num_masks))
        seats = self._seats.sample_seats(slot.device, plan)
        min_ps = None if asked is None else self._counts.min_ps(asked, plan.num_sampled)
        tokens = sample(adjusted, self._sample_inputs(slot, plan, min_ps))
        if plan.num_told:
            told_rows = self._seats.told_rows(slot.device, plan)
            slot.write_logprobs(logprobs(scores, told_rows, tokens, plan.num_logprobs))
        valid = tokens.clamp(min=0)  # a failed row is reported, not run on
        slot.tokens[: plan.num_sampled].copy_(tokens)
        if asked is not None:
            self._counts.note(valid, asked)
        # The last thing of a step, and without need of memory: a step that fails before it leaves the seats to its repeat.
        self._seats.last_tokens.index_copy_(0, seats, valid)

    def _sample_inputs(self, slot: DeviceSlot, plan: StepPlan, min_ps: Tensor | None) -> SampleInputs:
        words, seats = slot.device, self._seats
        rows = seats.sample_seats(words, plan)
        return SampleInputs(
            order=seats.sample_order(words, plan),
            num_greedy=plan.num_by_kind[SampleKind.GREEDY],
            num_plain=plan.num_by_kind[SampleKind.PLAIN],
            num_filtered=plan.num_by_kind[SampleKind.FILTERED],
            temperatures=seats.temperatures[rows],
            top_ks=seats.top_ks[rows],
            top_ps=seats.top_ps[rows],
            seeds=seats.seeds[rows],
            positions=seats.sample_positions(words, plan),
            min_ps=min_ps,
        )

    def _make_cache(self, config: EngineConfig) -> KvCache:
        model = self._model
        match config.kv_cache.dtype:
            case CacheDtype.AUTO:
                needs = CacheNeeds(model.layers, model.dtype, model.context, config.batch.max_num_seqs)
            case CacheDtype.FP8:
                if isinstance(model, NativeModel):
                    check_float8(self.device, "kv_cache.dtype")
                scales = measure_scales(model)
                needs = CacheNeeds(model.layers, FLOAT8, model.context, config.batch.max_num_seqs, scales)
        num_blocks = count_blocks(config.kv_cache, needs, self.device, free_memory_bytes(self.device))
        return KvCache(needs, num_blocks, config.kv_cache.block_size, self.device)

    def _make_gpu_steps(self, config: EngineConfig) -> "GpuSteps | None":
        """The native decoder's kernels and graphs, on a GPU; other models run there as on a CPU."""
        if self.device.type != "cuda" or not isinstance(self._model, NativeModel):
            return None
        from pipelines.runtime.gpu_steps import GpuSteps  # noqa: PLC0415  Triton, which a machine without a GPU may lack

        parts = self._model, self._cache, self._seats, self._layout, self.slots
        return GpuSteps(*parts, results=self._results, config=config.cuda_graphs)

    def _capture(self, report: Callable[[float], None]) -> str:
        """Capture graphs; return why there are none, "" if there are."""
        if self.device.type != "cuda":
            return f"{self.device} has no graphs"
        if self._gpu is None:
            return f"{self._model.name} runs through transformers, and native decoders alone are captured"
        report(0.0)
        return capture_on(self._streams.compute, self._gpu, self._model.name, report)

    def _make_stream(self, name: str) -> Stream:
        if self.device.type == "cuda":
            self._cuda_clock = self._cuda_clock or CudaClock.start(self.device)
            is_first = name == "compute" and self._priority is Priority.HIGH
            return CudaStream(name, self.device, self._cuda_clock, priority=_HIGH if is_first else _NORMAL)
        return CpuStream(name, self._num_threads if name == "compute" else 1)  # a copy needs one thread

    def _make_slot(self, config: EngineConfig, number: int) -> DeviceSlot:
        pinned = config.buffers.pinned and self.device.type != "cpu"
        masks = MaskBuffer(config.batch.max_num_seqs, self.vocab_size, self.device, pinned=pinned)
        return DeviceSlot(
            self._layout,
            self.device,
            self._streams,
            masks,
            self._results[number],
            number=number,
            vocab_size=self.vocab_size,
            pinned=pinned,
        )


def _load(folder: Path, config: EngineConfig, device: torch.device, report: Callable[[float], None]) -> Model:
    """Return the model by the implementation asked for; `auto` is ours where it knows the model."""
    spare_bytes = free_memory_bytes(device) // _SPARE_SHARE
    if is_native(config.model, folder):
        seed = config.model.random_seed
        return NativeModel(
            folder, config.model, device, config.max_context, spare_bytes, report=report, random_seed=seed
        )
    from pipelines.models.adapter import TransformersModel  # noqa: PLC0415  takes seconds, and native models do without

    return TransformersModel(folder, config.model, device, config.max_context, spare_bytes)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
