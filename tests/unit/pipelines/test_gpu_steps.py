"""What surrounds the kernels on a GPU, run by Triton's interpreter: staged words, carry-over, buckets, greedy sampling."""

import kernel_support as _  # noqa: F401  it chooses the interpreter, before anything imports Triton
import pytest
from rig import Rig, token_request
from runner_models import cpu_config
from tiny_models import config_of, generate, prompts, save_model

from pipelines.config import (
    CudaGraphsConfig,
    GraphMode,
    Schedule,
)
from pipelines.core.request import Adjustments
from pipelines.runtime.cuda_graphs import GraphKey, StepGraphs, buckets
from pipelines.runtime.gpu_steps import GpuSteps
from pipelines.runtime.model_runner import ModelRunner

PROMPTS = prompts([3, 9, 1])
NUM_TOKENS = 4


class PaddedSteps(GpuSteps):
    """Runs each step as a graph would: padded to a bucket."""

    def forward(self, slot, plan, end_stretch):
        self._padded = next(size for size in (2, 4, 8, 16) if size >= plan.num_tokens)
        super().forward(slot, plan, end_stretch)

    def _run(self, number, num_tokens, num_samples, kinds, end_stretch=None):
        del num_tokens, num_samples, end_stretch
        super()._run(number, self._padded, min(self._padded, self._layout.max_num_seqs), kinds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(config_of("llama"), tmp_path_factory.mktemp("llama"))


def runner_with(folder, kind, monkeypatch, *, per_slot=False):
    monkeypatch.setattr("pipelines.models.native.linear_maker", _plain_maker)
    runner = ModelRunner(cpu_config(folder, num_seqs=3, num_tokens=16, num_blocks=24, block_size=16), folder)
    graphs = CudaGraphsConfig(enabled=GraphMode.OFF, per_slot=per_slot)
    parts = runner._model, runner._cache, runner._seats, runner._layout, runner.slots
    runner._gpu = kind(*parts, results=runner._results, config=graphs)
    return runner


def _plain_maker(_target, *, keeps_plain):
    from pipelines.models.ops_cpu import PlainLinear

    del keeps_plain
    return PlainLinear


@pytest.mark.parametrize(
    ("kind", "per_slot"),
    [(GpuSteps, False), (PaddedSteps, False), (PaddedSteps, True)],
    ids=["exact", "padded", "padded, each slot's own words"],
)
def test_the_tokens_are_those_of_generate(folder, kind, per_slot, monkeypatch):
    """Chunks, decodes and both together, one step launched ahead; padding writes nothing that matters."""
    runner = runner_with(folder, kind, monkeypatch, per_slot=per_slot)
    try:
        requests = [token_request(key, prompt, NUM_TOKENS) for key, prompt in enumerate(PROMPTS)]
        rig = Rig(runner, [requests[:2], requests[2:]], Schedule.ASYNC, seqs=3, tokens=8, num_blocks=24, block_size=16)
        got = {key: output.token_ids for (key, _), output in rig.run().items()}
    finally:
        runner.close()
    assert got == {key: tuple(generate(folder, prompt, NUM_TOKENS)) for key, prompt in enumerate(PROMPTS)}


@pytest.mark.parametrize("kind", [GpuSteps, PaddedSteps])
def test_steps_that_are_not_plain_are_sampled_behind_the_forward_pass(folder, kind, monkeypatch):
    """Sampled rows, biases and log-probabilities come and go among greedy ones: same answers as without these kernels."""
    requests = [
        token_request(0, PROMPTS[0], 8),
        token_request(1, PROMPTS[1], 4, temperature=1.3, top_p=0.9),
        token_request(2, PROMPTS[2], 3, adjustments=Adjustments(logit_bias=((7, 40.0),))),
        token_request(3, PROMPTS[0], 5, num_logprobs=2),
    ]
    answers = []
    for with_kernels in (True, False):
        runner = runner_with(folder, kind, monkeypatch)
        if not with_kernels:
            runner._gpu = None
        try:
            arrivals = [requests[:1], requests[1:]]
            rig = Rig(runner, arrivals, Schedule.ASYNC, seqs=3, tokens=8, num_blocks=24, block_size=16)
            answers.append({key: output.token_ids for key, output in rig.run().items()})
        finally:
            runner.close()
    assert answers[0] == answers[1]
    assert answers[0][2, 0] == (7, 7, 7)


def test_buckets_are_close_and_end_at_the_limit():
    sizes = buckets(512)
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert sizes[-1] == 512
    assert sizes == sorted(set(sizes))
    assert next(size for size in sizes if size >= 33) == 40, "33 sequences do not pay for 64"
    assert sizes[-4:] == [256, 320, 384, 512], "cuBLAS takes 512 tokens in less time than 448 or 480"
    assert buckets(1) == [1]


def test_a_step_finds_the_smallest_graph_that_serves_it():
    graphs = StepGraphs(64, 32, lambda _set, _key: None)
    keys = list(graphs.keys())
    graphs._sets = [dict.fromkeys(keys)]
    assert graphs.find(33, has_chunks=True) == GraphKey(40, has_chunks=True)
    assert graphs.find(3, has_chunks=False) == GraphKey(4, has_chunks=False)
    assert graphs.find(65, has_chunks=True) is None


def test_steps_of_whole_decodes_have_graphs_that_join_nothing():
    """Only sizes that such a step may have; any other step finds what serves all of that size."""
    graphs = StepGraphs(64, 40, lambda _set, _key: None, whole_rows={31, 32, 33})
    keys = list(graphs.keys())
    graphs._sets = [dict.fromkeys(keys)]
    assert {key.num_tokens for key in keys if not key.has_splits} == {32, 40}
    assert not any(key.has_chunks for key in keys if not key.has_splits)
    assert graphs.find(33, has_chunks=False, has_splits=False) == GraphKey(40, has_chunks=False, has_splits=False)
    assert graphs.find(33, has_chunks=False) == GraphKey(40, has_chunks=False)
    assert graphs.find(16, has_chunks=False, has_splits=False) == GraphKey(16, has_chunks=False)


def test_full_steps_have_a_graph_and_those_in_between_do_not_pay_for_it():
    """It is captured first, so that the others fit into its memory."""
    graphs = StepGraphs(64, 32, lambda _set, _key: None, full_tokens=1024)
    keys = list(graphs.keys())
    graphs._sets = [dict.fromkeys(keys)]
    full = GraphKey(1024, has_chunks=True)
    assert keys[:2] == [full, GraphKey(64, has_chunks=True)]
    found = [graphs.find(num_tokens, has_chunks=True) for num_tokens in (64, 65, 1008, 1009, 1024, 1025)]
    assert found == [GraphKey(64, has_chunks=True), None, None, full, full, None]
    assert not list(StepGraphs(0, 32, lambda _set, _key: None, full_tokens=1024).keys()), "off is off"
    assert list(StepGraphs(1024, 32, lambda _set, _key: None, full_tokens=1024).keys()).count(full) == 1
