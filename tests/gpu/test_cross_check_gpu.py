"""CUPTI's record of steady steps: one wait of the host a step, nothing that takes memory, and as busy as the engine says."""

import pytest
import torch

from pipelines.benchmark.cross_check import cross_check
from pipelines.benchmark.subject import open_subject, random_model
from pipelines.benchmark.workload import WorkloadName, build_workload
from pipelines.config import BatchConfig, Dtype, EngineConfig, ModelConfig

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    import transformers

    place = tmp_path_factory.mktemp("random")
    transformers.LlamaConfig(
        vocab_size=32_000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=2048, architectures=["LlamaForCausalLM"],
    ).save_pretrained(place)  # fmt: skip
    config = EngineConfig(
        "check", ModelConfig("", dtype=Dtype.BFLOAT16, device="cuda"), batch=BatchConfig(32, 8192), max_context=1024
    )
    folder = tmp_path_factory.mktemp("model")
    config = random_model(config, place / "config.json", folder)
    with open_subject(config, folder, None) as subject:
        requests = build_workload(WorkloadName.ROLLOUTS, 0.06).requests(subject.vocab_size)
        return cross_check(subject, requests, print)


def test_a_steady_step_waits_once_and_takes_no_memory(windows):
    assert [window.problems for window in windows] == [[], [], []]
    assert all(window.trace.num_waits == window.trace.num_steps for window in windows)


def test_a_steady_step_is_one_copy_to_the_device(windows):
    assert all(window.trace.num_to_device == window.trace.num_steps for window in windows)


def test_what_the_engine_proves_cupti_saw_and_what_cupti_saw_it_did_not_call_idle(windows):
    """Busy by the engine's events includes the device's own small gaps, so those are merged; a slow host proves less."""
    for window in windows:
        proven, seen = window.busy_share, window.trace.busy_share
        assert proven - 0.02 <= seen <= proven + window.unproven_share + 0.02
