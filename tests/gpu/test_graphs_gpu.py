"""Which graphs there are: for all slots or for each, from one pool or more; and what becomes of a model that has none."""

import gc
import re

import pytest
import torch
from gpu_models import LENGTHS, NUM_TOKENS, gpu_config, random_prompts, requests_for, small_model
from rig import Rig
from tiny_models import generate

from pipelines.config import (
    BuffersConfig,
    CudaGraphsConfig,
    GraphMode,
    Implementation,
    Priority,
    Schedule,
    StreamsConfig,
)
from pipelines.errors import ModelError
from pipelines.runtime.model_runner import ModelRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PROMPTS = random_prompts(LENGTHS)
LIMITS = [
    {"seqs": 20, "tokens": 400, "num_blocks": 256, "block_size": 16},
    {"seqs": 7, "tokens": 8, "num_blocks": 256, "block_size": 16},
    {"seqs": 12, "tokens": 80, "num_blocks": 16, "block_size": 16},
]
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _needs_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(folder):
    return {key: tuple(generate(folder, prompt, NUM_TOKENS)) for key, prompt in enumerate(PROMPTS)}


def check_tokens(runner, expected):
    for limits in LIMITS:
        for schedule in Schedule:
            rig = Rig(runner, [requests_for(PROMPTS)], schedule, **limits)
            assert {key: output.token_ids for (key, _), output in rig.run().items()} == expected


def reserved():
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # one a stream that was ever used, of any runner
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def closed(runner):
    runner.close()
    runner._gpu = None


SETS = {
    "one set": (CudaGraphsConfig(), 2, 1, 1),
    "a set a slot, one pool": (CudaGraphsConfig(per_slot=True), 2, 2, 1),
    "a set a slot, a pool each": (CudaGraphsConfig(per_slot=True, share_pool=False), 2, 2, 2),
    "three slots": (CudaGraphsConfig(per_slot=True), 3, 3, 1),
}


@pytest.mark.parametrize(("graphs", "slots", "num_sets", "num_pools"), SETS.values(), ids=SETS)
def test_tokens_are_the_same_with_every_kind_of_graphs(folder, expected, graphs, slots, num_sets, num_pools):
    config = gpu_config(folder, GraphMode.ON, cuda_graphs=graphs, buffers=BuffersConfig(slots=slots))
    runner = ModelRunner(config, folder)
    try:
        use = runner.graph_use
        assert (use.num_sets, use.num_pools) == (num_sets, num_pools)
        assert use.num_graphs == num_sets * len(list(runner._gpu.graphs.keys()))
        assert use.device_bytes >= use.pool_bytes, "by what is free on the device, which must be this process's own"
        check_tokens(runner, expected)
    finally:
        closed(runner)


def test_sets_that_share_a_pool_take_less_than_pools_of_their_own(folder):
    sizes = {}
    for name, (graphs, slots, _, _) in SETS.items():
        runner = ModelRunner(
            gpu_config(folder, GraphMode.ON, cuda_graphs=graphs, buffers=BuffersConfig(slots=slots)), folder
        )
        sizes[name] = runner.graph_use.pool_bytes
        closed(runner)
        del runner
        reserved()
    assert sizes["a set a slot, one pool"] <= sizes["a set a slot, a pool each"], sizes


@pytest.mark.parametrize("priority", Priority)
def test_the_compute_stream_has_the_priority_it_is_given(folder, expected, priority):
    runner = ModelRunner(gpu_config(folder, streams=StreamsConfig(compute_priority=priority)), folder)
    try:
        priorities = [runner._streams.h2d._stream.priority, runner._streams.compute._stream.priority]
        assert priorities == [0, -1 if priority is Priority.HIGH else 0]
        check_tokens(runner, expected)
    finally:
        closed(runner)


def spoil(monkeypatch, how, first):
    """Make what the decoder launches fail while it is captured, from the capture of this number on."""
    from pipelines.models.ops_gpu import GpuDecoder

    run = GpuDecoder.run
    captures = []

    def spoiled(self, inputs):
        scores = run(self, inputs)
        if torch.cuda.is_current_stream_capturing():
            captures.append(how)
            if len(captures) >= first:
                torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")  # memory of the pool
                how(inputs)
        return scores

    monkeypatch.setattr(GpuDecoder, "run", spoiled)


def _read(inputs):
    inputs.token_ids.sum().item()


def _raise(_inputs):
    raise ValueError("this model decides on the host")


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize(("how", "reason"), [(_read, "captur"), (_raise, "ValueError: this model decides on the host")])
def test_a_model_that_cannot_be_captured_runs_without_graphs_and_says_so(
    folder, expected, monkeypatch, how, reason, first
):
    """Whether the failure makes the capture invalid (a read on the host) or not; nothing stays behind."""
    before = reserved()
    with monkeypatch.context() as patch:
        spoil(patch, how, first)
        runner = ModelRunner(gpu_config(folder, GraphMode.AUTO), folder)
        assert runner.graph_use is None
        (warning,) = runner.warnings
        assert warning.startswith(
            "no graphs, so each step launches its kernels one by one: native llama cannot be captured: "
        )
        assert re.search(reason, warning), warning
        assert not torch.cuda.is_current_stream_capturing()
        check_tokens(runner, expected)
        with_eager = reserved()
        closed(runner)
        del runner
    after = reserved()
    assert after <= before + 24 * MIB, (before, with_eager, after)
    runner = ModelRunner(gpu_config(folder, GraphMode.ON), folder)  # the next one is captured as ever
    try:
        assert runner.warnings == ()
        check_tokens(runner, expected)
    finally:
        closed(runner)


def test_graphs_that_have_to_be_end_the_start_with_the_reason(folder, monkeypatch):
    spoil(monkeypatch, _raise, 2)
    with pytest.raises(
        ModelError, match=r"cuda_graphs.enabled is true, but native llama cannot be captured: ValueError: this"
    ):
        ModelRunner(gpu_config(folder, GraphMode.ON), folder)


def test_the_adapter_says_that_it_has_no_graphs(folder, expected):
    runner = ModelRunner(gpu_config(folder, GraphMode.AUTO, Implementation.TRANSFORMERS), folder)
    try:
        assert "LlamaForCausalLM runs through transformers" in runner.warnings[0]
        check_tokens(runner, expected)
    finally:
        closed(runner)
    with pytest.raises(
        ModelError, match=r"cuda_graphs.enabled is true, but LlamaForCausalLM runs through transformers"
    ):
        ModelRunner(gpu_config(folder, GraphMode.ON, Implementation.TRANSFORMERS), folder)


def test_without_graphs_asked_for_there_is_no_warning(folder):
    runner = ModelRunner(gpu_config(folder, GraphMode.OFF), folder)
    assert (runner.warnings, runner.graph_use) == ((), None)
    closed(runner)
