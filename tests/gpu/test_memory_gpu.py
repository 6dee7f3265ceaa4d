"""A GPU without enough memory, at the start and in mid-run: one clear line, or smaller steps with the same tokens."""

import gc
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import torch
from gpu_models import gpu_config, random_prompts, requests_for, small_model
from rig import Rig

from pipelines.config import BatchConfig, GraphMode, Implementation, KvCacheConfig, Schedule
from pipelines.errors import OutOfMemoryError
from pipelines.runtime.model_runner import ModelRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MIB = 1 << 20
WIDE = {"hidden_size": 256, "intermediate_size": 8192, "num_hidden_layers": 2}


@pytest.fixture(scope="module", autouse=True)
def _needs_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")


def clean():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@contextmanager
def limited_to(more_bytes):
    """Let torch have no more than what it holds and so many bytes."""
    clean()
    limit = torch.cuda.memory_reserved() + more_bytes
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def filled():
    """Take what is free in what torch holds."""
    hogs = []
    for size in (256 * MIB, 32 * MIB, 4 * MIB, MIB, MIB >> 2, MIB >> 5, MIB >> 8, 512):
        with suppress(torch.OutOfMemoryError):
            while True:
                hogs.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    yield
    hogs.clear()


def refusal(config, folder):
    """The one line of a start that ends."""
    with pytest.raises(OutOfMemoryError) as error:
        ModelRunner(config, folder)
    text = str(error.value)
    del error
    clean()
    assert "\n" not in text
    return text


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("wide"), **WIDE)


def test_weights_that_do_not_fit_beside_others_are_refused_before_they_are_read(wide):
    """Another holds all but 32 MiB of the device; the weights are 50 MB."""
    clean()
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(free - 32 * MIB, dtype=torch.uint8, device="cuda")
    try:
        text = refusal(gpu_config(wide), wide)
    finally:
        del hog
    assert "its weights need 0.05 GiB, but 0.0" in text
    assert "free on cuda" in text
    assert "model.dtype" in text


def test_weights_that_torch_cannot_allocate_are_told_of(wide):
    with limited_to(8 * MIB):
        text = refusal(gpu_config(wide), wide)
    assert "too little memory for the weights" in text
    assert "GiB were free" in text


def test_a_cache_that_does_not_fit_names_its_keys(wide):
    """The fraction of what the device has free is more than this process may have."""
    config = replace(gpu_config(wide), kv_cache=KvCacheConfig(block_size=16, memory_fraction=0.9))
    with limited_to(400 * MIB):
        text = refusal(config, wide)
    assert "too little memory for the KV cache" in text
    assert "at once could not be had; lower kv_cache.memory_fraction or kv_cache.max_tokens" in text
    assert "taken before: the weights 0." in text


def test_one_context_that_does_not_fit_says_what_it_needs(wide):
    config = replace(gpu_config(wide), kv_cache=KvCacheConfig(block_size=16, memory_fraction=1e-9))
    text = refusal(config, wide)
    assert "the KV cache of one context of 256 tokens needs" in text
    assert "lower max_context" in text


def test_buffers_of_a_step_that_do_not_fit_name_the_batch(wide):
    """16,384 tokens of 8,192 inner columns are a gigabyte."""
    config = replace(gpu_config(wide), batch=BatchConfig(max_num_seqs=20, max_num_batched_tokens=16384))
    with limited_to(300 * MIB):
        text = refusal(config, wide)
    assert "too little memory for the buffers of a step" in text
    assert "lower batch.max_num_batched_tokens" in text


def test_graphs_that_do_not_fit_are_no_reason_to_run_without_them(wide, monkeypatch):
    from pipelines.models.ops_gpu import GpuDecoder

    run = GpuDecoder.run

    def greedy(self, inputs):
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return run(self, inputs)

    with monkeypatch.context() as patch:
        patch.setattr(GpuDecoder, "run", greedy)
        text = refusal(gpu_config(wide, GraphMode.AUTO), wide)
    assert "too little memory for the captured graphs" in text
    assert "lower cuda_graphs.max_tokens" in text
    ModelRunner(gpu_config(wide, GraphMode.ON), wide).close()  # the device is as good as before


def run_twice(runner, requests, schedule, share, **limits):
    """Run the requests, then once more with a share of the memory that this took beside the model; returns both and the rig."""

    def run():
        rig = Rig(runner, [requests[0::2], requests[1::2]], schedule, **limits)
        return rig.run(), rig

    run()  # what is compiled and kept for good
    clean()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    expected, _ = run()
    taken = torch.cuda.max_memory_allocated() - before
    with limited_to(int(share * taken)):
        got, rig = run()
    clean()
    assert torch.cuda.memory_allocated() <= before
    return expected, got, rig


@pytest.mark.parametrize("schedule", Schedule)
def test_a_prefill_that_does_not_fit_runs_in_smaller_steps(wide, schedule):
    """Through transformers, whose activations are allocated step by step: a hundred megabytes a tensor."""
    config = gpu_config(wide, implementation=Implementation.TRANSFORMERS, tokens=4096)
    runner = ModelRunner(config, wide)
    requests = requests_for(random_prompts([200] * 20), 6)
    try:
        expected, got, rig = run_twice(
            runner, requests, schedule, 0.5, seqs=20, tokens=4096, num_blocks=256, block_size=16
        )
    finally:
        runner.close()
    assert got == expected
    rig.engine._report()
    assert sum(stats.steps_taken_back for stats in rig.source.stats) >= 1
    notices = [notice for stats in rig.source.stats for notice in stats.notices]
    assert "did not fit and runs again in steps of at most" in notices[0]
    assert "batch.max_num_batched_tokens" in notices[0]
    assert rig.scheduler.token_budget < 4096


@pytest.mark.parametrize("graphs", [GraphMode.ON, GraphMode.OFF])
@pytest.mark.parametrize("schedule", Schedule)
def test_a_sampler_that_does_not_fit_behind_a_launched_step_changes_no_token(tmp_path, schedule, graphs):
    """The model's part has run, tokens were carried over, pages written; then sorting 131,072 scores a row finds no memory."""
    folder = small_model(tmp_path, vocab_size=131072)
    config = gpu_config(folder, graphs)
    config = replace(config, batch=BatchConfig(max_num_seqs=64, max_num_batched_tokens=512))
    runner = ModelRunner(config, folder)
    requests = requests_for(random_prompts([5, 1, 9, 3] * 16), 8, temperature=0.8, top_p=0.9)
    try:
        expected, got, rig = run_twice(
            runner, requests, schedule, 0.6, seqs=64, tokens=512, num_blocks=256, block_size=16
        )
    finally:
        runner.close()
    assert got == expected
    rig.engine._report()
    assert sum(stats.steps_taken_back for stats in rig.source.stats) >= 1


def test_what_does_not_fit_at_all_ends_with_one_line(wide):
    config = gpu_config(wide, implementation=Implementation.TRANSFORMERS, tokens=4096)
    runner = ModelRunner(config, wide)
    rig = Rig(
        runner, [requests_for(random_prompts([200] * 20), 6)], seqs=20, tokens=4096, num_blocks=256, block_size=16
    )
    try:
        with (
            limited_to(0),
            filled(),
            pytest.raises(OutOfMemoryError, match=r"a step of 16 tokens cannot be made smaller: .*lower batch"),
        ):
            rig.run()
    finally:
        runner.close()
