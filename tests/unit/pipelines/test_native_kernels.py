"""The native decoder by kernels, under Triton's interpreter: the scores and the pages of the decoder by torch."""

from dataclasses import replace

import kernel_support  # noqa: F401  it chooses the interpreter, or skips; before anything imports Triton
import pytest
import torch
from native_kernels import LIMITS, STEPS, KernelDriver, compare
from native_models import CONFIGS, linears

from pipelines.config import Dtype, ModelConfig
from pipelines.errors import InvariantError
from pipelines.models.native import NativeModel
from pipelines.models.projections_gpu import GpuOptions

PATHS = {
    "own projections": GpuOptions(),
    "own projections, norms apart": GpuOptions(fuses_norms=False),
    "own projections of few tokens": GpuOptions(max_skinny_tokens=3),
    "torch's projections": GpuOptions(max_skinny_tokens=0),
}


def load(folder, name, monkeypatch, dtype=Dtype.FLOAT32):
    """A model of two layers with random weights, which are not laid out for the CPU."""
    monkeypatch.setattr("pipelines.models.ops_cpu.can_prepack", lambda: False)
    config = CONFIGS[name]()
    config.num_hidden_layers = 2
    for kinds in ("layer_types", "no_rope_layers"):
        if getattr(config, kinds, None):
            setattr(config, kinds, getattr(config, kinds)[:2])
    config.save_pretrained(folder)
    model = NativeModel(folder, ModelConfig(str(folder), dtype=dtype), torch.device("cpu"), None, random_seed=5)
    for layer in model.decoder.layers:  # wide, so that an error shows
        for linear in linears(layer):
            linear.weight.mul_(8.0)
    return model


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
def test_all_paths_agree_with_torch(tmp_path, monkeypatch, options):
    """Chunks, chunks beside decodes, decodes alone."""
    scores, pages = compare(load(tmp_path, "llama, tied", monkeypatch), options)
    assert scores < 1e-5
    assert pages < 1e-5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama, all biases", GpuOptions()),
        ("llama, all biases", GpuOptions(max_skinny_tokens=0)),
        ("qwen2, yarn", GpuOptions()),
        ("qwen3", GpuOptions()),
        ("mistral, window", GpuOptions()),
        ("ministral, two windows", GpuOptions()),
        ("smollm3", GpuOptions()),
        ("qwen3_moe", GpuOptions(max_skinny_tokens=0)),
    ],
)
def test_all_features_agree_with_torch(tmp_path, monkeypatch, name, options):
    """Biases everywhere, scaled rotation, norms of heads, windows, layers without rotation, experts in all layers or some."""
    scores, pages = compare(load(tmp_path, name, monkeypatch), options)
    assert scores < 1e-5
    assert pages < 1e-5


def test_bfloat16_agrees_within_its_rounding(tmp_path, monkeypatch):
    scores, pages = compare(load(tmp_path, "qwen3", monkeypatch, Dtype.BFLOAT16), GpuOptions())
    assert scores < 0.03
    assert pages < 0.03


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama, tied", GpuOptions()),
        ("llama, tied", GpuOptions(max_skinny_tokens=0)),
        ("qwen3_moe, two layers of three", GpuOptions()),
    ],
)
def test_padding_changes_no_score_and_writes_no_page(tmp_path, monkeypatch, name, options):
    """Each step padded to 16 tokens, 4 rows; `compare` looks at the pages too."""
    scores, pages = compare(load(tmp_path, name, monkeypatch), options, num_tokens=LIMITS.max_tokens)
    assert scores < 1e-5
    assert pages < 1e-5


def test_a_step_that_samples_nothing_fills_the_pages_all_the_same(tmp_path, monkeypatch):
    """The part of a prompt that is not its last."""
    model = load(tmp_path, "llama, tied", monkeypatch)
    driver, other = KernelDriver(model, GpuOptions()), KernelDriver(model, GpuOptions())
    inputs = driver.inputs(STEPS[0])
    assert driver.decoder.run(replace(inputs, sample_tokens=inputs.sample_tokens[:0])).shape == (0, 199)
    other.scores(STEPS[0])
    for ours, theirs in zip(driver.pages.layers, other.pages.layers, strict=True):
        assert torch.equal(ours.keys.nan_to_num(), theirs.keys.nan_to_num())


def test_weights_laid_out_for_a_cpu_are_not_handed_to_kernels(tmp_path):
    CONFIGS["llama, tied"]().save_pretrained(tmp_path)
    model = NativeModel(tmp_path, ModelConfig(str(tmp_path)), torch.device("cpu"), None, random_seed=5)
    with pytest.raises(InvariantError, match="laid out for the CPU"):
        _ = model.plain_decoder
