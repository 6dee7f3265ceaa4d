"""A KV cache of float8: what is kept, what is read, what its scales are, and that it changes nothing but precision."""

from dataclasses import replace

import pytest
import torch
from native_models import CONFIGS, Pages, make_step, torch_scores
from rig import Rig, token_request
from tiny_models import config_of, prompts, save_model

from pipelines.config import BatchConfig, CacheDtype, EngineConfig, Implementation, KvCacheConfig, ModelConfig, Schedule
from pipelines.errors import ModelError
from pipelines.models.adapter import TransformersModel
from pipelines.models.attention import FLOAT8, KvScales, LayerKv, LayerSpec
from pipelines.models.kv_scales import measure_scales
from pipelines.models.model import check_float8
from pipelines.models.native import NativeModel
from pipelines.runtime.model_runner import ModelRunner

CPU = torch.device("cpu")
SCALES = KvScales(torch.tensor([2.0, 0.25]), torch.tensor([1.0, 8.0]), torch.float32)


def pages(*, blocks=3, size=4, kv_heads=2, dim=8):
    """Two pages' worth of positions more than are written, NaN where nothing is."""
    shape = (blocks, size, kv_heads, dim)
    keys, values = (torch.full(shape, float("nan"), dtype=FLOAT8) for _ in range(2))
    return LayerKv(keys, values, SCALES)


def test_what_is_read_is_what_was_written_within_a_sixteenth():
    """e4m3 has three bits behind the first; a scale a head moves its range and costs no precision."""
    torch.manual_seed(0)
    keys, values = torch.randn(5, 2, 8) * 30, torch.randn(5, 2, 8)
    kv, slots = pages(), torch.tensor([3, 0, 11, 7, 6])
    kv.write(slots, keys, values)
    read_keys, read_values = kv.gather(slots)
    assert ((read_keys - keys).abs() <= keys.abs() / 16).all()
    assert ((read_values - values).abs() <= values.abs() / 16 + 8 * 2**-10).all()
    assert read_keys.dtype == torch.float32
    assert all(
        torch.equal(own, other) for own, other in zip(kv.kept(keys, values), (read_keys, read_values), strict=True)
    )
    assert int(kv.keys.view(-1, 16).float().isnan().all(dim=1).sum()) == 12 - 5


def test_a_value_is_kept_as_e4m3_has_it():
    """3.3 at a scale of 2 is 1.65, between 1.625 and 1.75; ties go to even; beyond 448 * 2 it is the largest; NaN stays."""
    kv = pages(kv_heads=1, dim=5)
    kv = replace(kv, scales=KvScales(torch.tensor([2.0]), torch.tensor([2.0]), torch.float32))
    row = torch.tensor([[[3.3, -1e6, float("nan"), 2 * 1.0625, 2.0**-8]]])
    kv.write(torch.tensor([4]), row, -row)
    keys, values = kv.gather(torch.tensor([4]))
    expected = torch.tensor([[[3.25, -896.0, float("nan"), 2.0, 2.0**-8]]])
    torch.testing.assert_close(keys, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values, -expected, rtol=0, atol=0, equal_nan=True)


def test_blocks_are_copied_bit_by_bit():
    """All sources are read before a target is written; what is not named stays, NaN and all."""
    kv = pages()
    bits = torch.randint(0, 256, kv.keys.shape, dtype=torch.uint8)
    kv.keys.view(torch.uint8).copy_(bits)
    kv.values.view(torch.uint8).copy_(bits + 1)
    kv.copy_blocks(torch.tensor([0, 2]), torch.tensor([2, 1]))
    assert torch.equal(kv.keys.view(torch.uint8), bits[[0, 2, 0]])
    assert torch.equal(kv.values.view(torch.uint8), bits[[0, 2, 0]] + 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models saved once."""
    made = {}

    def folder(name, config):
        if name not in made:
            made[name] = save_model(config, tmp_path_factory.mktemp("model") / "tiny")
        return made[name]

    return folder


@pytest.mark.parametrize("kind", [NativeModel, TransformersModel])
def test_scales_are_powers_of_two_that_leave_room(folders, kind):
    """Of each head apart: what other texts show is kept without being clipped, and not far below the largest either."""
    folder = folders("qwen2", CONFIGS["qwen2"]())
    model = kind(folder, ModelConfig(str(folder)), CPU, None)
    scales = measure_scales(model)
    plain = Pages(model.layers, model.dtype, CPU, 1)
    torch_scores(model, plain, make_step([(0, prompts([50], seed=5)[0], 0)]))
    assert len(scales) == len(model.layers)
    for own, layer in zip(scales, plain.layers, strict=True):
        for scale, computed in ((own.keys, layer.keys), (own.values, layer.values)):
            highest = computed.nan_to_num().abs().amax(dim=(0, 1, 3))
            assert scale.shape == (2,)
            assert torch.equal(scale.log2(), scale.log2().round())
            assert (highest / scale <= 448 / 2).all()
            assert (highest / scale >= 448 / 64).all()
    model.close()


def test_scales_are_the_same_for_both_ways_to_run_a_model(folders):
    """Native and adapter see the same keys."""
    folder = folders("llama", config_of("llama"))
    native, adapter = (
        measure_scales(kind(folder, ModelConfig(str(folder)), CPU, None)) for kind in (NativeModel, TransformersModel)
    )
    for one, other in zip(native, adapter, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_large_biases_are_not_clipped(folders):
    """As some models have on their keys: at a scale of 1 all of them would be 448."""
    folder = folders("qwen2 of large keys", CONFIGS["qwen2"]())
    model = NativeModel(folder, ModelConfig(str(folder)), CPU, None)
    linear = model.decoder.layers[0].qkv.packed
    linear._bias[48:56] = 5000.0
    scales = measure_scales(model)
    assert float(scales[0].keys[0]) >= 5000 / 448
    assert float(scales[0].keys[1]) < 5000 / 448


def test_a_head_of_zeros_has_a_scale():
    """Nothing to measure, nothing to divide by."""
    (scales,) = measure_scales(_ZeroModel())
    assert scales.keys.tolist() == [1.0, 1.0]


def test_keys_that_are_not_finite_are_refused():
    """A model that is broken gets no scale."""
    with pytest.raises(ModelError, match="not finite"):
        measure_scales(_ZeroModel(filler=float("inf")))


class _ZeroModel:
    """A model of one layer whose keys and values are all the same."""

    device, dtype, context, vocab_size = CPU, torch.float32, 16, 5

    def __init__(self, filler=0.0):
        self.layers = (LayerSpec(2, 2, 4, 4, None),)
        self._filler = filler

    def forward(self, token_ids, positions, sample_tokens, attention, cache):
        del positions, sample_tokens, attention
        assert int(token_ids.max()) < self.vocab_size
        cache[0].keys.fill_(self._filler)
        cache[0].values.fill_(self._filler)
        return token_ids


def test_a_chunk_sees_its_own_keys_as_later_ones_do(folders):
    """Whole or cut, the same scores to float32's rounding: what is attended to is what the pages hold."""
    folder = folders("llama", config_of("llama"))
    model = NativeModel(folder, ModelConfig(str(folder)), CPU, None)
    scales = measure_scales(model)
    prompt = prompts([30])[0]
    plain = torch_scores(model, Pages(model.layers, model.dtype, CPU, 1), make_step([(0, prompt, 0)]))
    whole = torch_scores(model, Pages(model.layers, model.dtype, CPU, 1, scales=scales), make_step([(0, prompt, 0)]))
    spread = plain.max() - plain.min()
    assert 1e-4 * spread < (whole - plain).abs().max() < 0.2 * spread
    for cut in (1, 7):
        cache = Pages(model.layers, model.dtype, CPU, 1, scales=scales)
        for start in range(0, 30, cut):
            parts = torch_scores(model, cache, make_step([(0, prompt[start : start + cut], start)]))
        assert (parts - whole).abs().max() < 2e-3 * spread


def runner_for(folder, dtype, implementation=Implementation.AUTO):
    config = EngineConfig(
        name="test",
        model=ModelConfig(str(folder), device="cpu", implementation=implementation),
        batch=BatchConfig(max_num_seqs=4, max_num_batched_tokens=64),
        kv_cache=KvCacheConfig(block_size=4, dtype=dtype),
        num_threads=1,
    )
    return ModelRunner(config, folder)


@pytest.mark.parametrize("implementation", [Implementation.NATIVE, Implementation.TRANSFORMERS])
def test_an_engine_gives_the_same_tokens_however_it_batches(folders, implementation):
    """Prefixes shared or computed anew, blocks copied, chunks of 3 or whole, steps ahead or not: float8 all the same."""
    folder = folders("llama", config_of("llama"))
    beginning = prompts([18])[0]
    requests = [token_request(key, [*beginning[: 18 - key], key + 2], 8, n=2 if key == 1 else 1) for key in range(4)]
    runner = runner_for(folder, CacheDtype.FP8, implementation)
    found = []
    for caching, chunk, schedule in ((False, 64, Schedule.SYNC), (True, 3, Schedule.ASYNC), (True, 64, Schedule.ASYNC)):
        rig = Rig(runner, [requests[:1], requests[1:]], schedule, tokens=chunk, prefix_caching=caching)
        found.append({key: output.token_ids for key, output in rig.run().items()})
    assert len(found[0]) == 5
    assert found[1] == found[0]
    assert found[2] == found[0]
    runner.close()


def test_a_cache_of_float8_is_named_and_takes_a_quarter_of_float32(folders):
    """The line that says what runs gives its type and bytes."""
    folder = folders("llama", config_of("llama"))
    wide, narrow = (runner_for(folder, dtype) for dtype in CacheDtype)
    assert narrow.num_blocks == wide.num_blocks
    assert narrow._cache.layers[0].keys.nbytes * 4 == wide._cache.layers[0].keys.nbytes
    assert "tokens in float8_e4m3fn (" in narrow.detail
    assert "float8" not in wide.detail
    wide.close()
    narrow.close()


def test_a_gpu_without_float8_is_refused(monkeypatch):
    """By key, with what was found and what is needed; a CPU converts."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 0))
    with pytest.raises(ModelError, match=r"kv_cache\.dtype is fp8, which needs .* 8\.9 .* found 8\.0 on cuda:0"):
        check_float8(torch.device("cuda", 0), "kv_cache.dtype")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 9))
    check_float8(torch.device("cuda", 0), "kv_cache.dtype")
    check_float8(CPU, "kv_cache.dtype")
