"""What is served natively, read off config.json, and why the rest is not."""

import json
import re
import sys

import pytest
import torch
import transformers
from native_models import CONFIGS

from pipelines.config import Implementation, ModelConfig
from pipelines.errors import ModelError
from pipelines.models.native_config import NATIVE_TYPES, NativeConfig, NotNative, is_native, native_config


def write(folder, **changes):
    """A small Llama's config.json with changes; None takes a key out."""
    content = CONFIGS["llama, tied"]().to_dict() | {"architectures": ["LlamaForCausalLM"]} | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def test_a_config_is_read(tmp_path):
    config = native_config(write(tmp_path, dtype="bfloat16"))
    assert isinstance(config, NativeConfig)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 6, 2, 8)
    assert (config.is_tied, config.has_qkv_bias, config.has_mlp_bias) == (True, False, False)
    assert (config.dtype, config.context, config.windows) == (torch.bfloat16, 128, (None,) * 3)
    assert config.rotates == (True,) * 3
    assert len(config.rotation.frequencies) == 4
    assert config.num_qkv_heads == 10


@pytest.mark.parametrize("family", CONFIGS)
def test_a_config_from_the_cache_is_the_one_that_was_read(tmp_path, monkeypatch, family):
    """To the last bit of its frequencies, without transformers."""
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "cache"))
    CONFIGS[family]().save_pretrained(tmp_path)
    first = native_config(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert native_config(tmp_path) == first
    assert isinstance(first, NativeConfig)


REFUSED = {
    "another type": ({"model_type": "gemma"}, r"found model_type 'gemma', the native decoder has llama, ministral"),
    "another class": ({"architectures": ["LlamaForSequenceClassification"]}, r"found architectures \['LlamaForSeq"),
    "another gate": ({"hidden_act": "gelu"}, r"found hidden_act 'gelu', expected 'silu'"),
    "own code": ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, r"code of its own \(auto_map\)"),
    "dynamic rope": (
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        r"found the position embedding 'dynamic', expected default, linear, llama3, yarn",
    ),
    "partial rope": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        r"rotated in part",
    ),
    "odd groups": ({"num_key_value_heads": 4}, r"its 6 query heads do not divide among 4 KV heads"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_the_decoder_does_not_do_is_told(tmp_path, changes, reason):
    """One line with what was found, so that `auto` can fall back and `native` refuse."""
    refusal = native_config(write(tmp_path, **changes))
    assert isinstance(refusal, NotNative)
    assert "\n" not in refusal.reason
    assert re.search(reason, refusal.reason), refusal.reason


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, {0, 1, 2}),
        ({"decoder_sparse_step": 2}, {1}),
        ({"mlp_only_layers": [0]}, {1, 2}),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, set()),
        ({"num_experts": 0}, set()),
    ],
)
def test_layers_with_experts_are_those_that_transformers_makes(tmp_path, changes, layers):
    """Every so many layers, but for those named."""
    config = CONFIGS["qwen3_moe"]()
    for name, value in changes.items():
        setattr(config, name, value)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        decoder = transformers.AutoModel.from_config(config)
    made = {number for number, layer in enumerate(decoder.layers) if hasattr(layer.mlp, "experts")}
    assert native_config(tmp_path).experts.layers == made == layers


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_experts_per_tok": 7}, "found num_experts_per_tok 7, expected 1 to its 6 experts"),
        ({"num_experts_per_tok": 0}, "found num_experts_per_tok 0, expected 1 to its 6 experts"),
        ({"decoder_sparse_step": 0}, "found decoder_sparse_step 0, expected 1 or more"),
    ],
)
def test_experts_that_make_no_sense_are_told(tmp_path, changes, reason):
    write(tmp_path, **(CONFIGS["qwen3_moe"]().to_dict() | {"architectures": ["Qwen3MoeForCausalLM"]} | changes))
    assert native_config(tmp_path) == NotNative(reason)


def test_who_asks_for_an_implementation_gets_it(tmp_path):
    """And `auto` is native, with experts too."""
    for config in ("llama, tied", "qwen3_moe"):
        folder = tmp_path / config
        CONFIGS[config]().save_pretrained(folder)
        assert is_native(ModelConfig(str(folder)), folder)
        assert is_native(ModelConfig(str(folder), implementation=Implementation.NATIVE), folder)
        assert not is_native(ModelConfig(str(folder), implementation=Implementation.TRANSFORMERS), folder)


def test_layers_of_another_kind_are_refused(tmp_path):
    """A window of no size too."""
    config = transformers.Qwen2Config(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])
    config.save_pretrained(tmp_path)
    assert native_config(tmp_path) == NotNative("it has layers with a sliding window of no size")
    config.layer_types = ["full_attention", "chunked_attention"]
    config.save_pretrained(tmp_path)
    assert native_config(tmp_path) == NotNative("found the layer types ['chunked_attention']")


def test_keys_that_a_class_does_not_read_change_nothing(tmp_path):
    """Transformers' Llama has no window and no layers without rotation, whatever stands in its file."""
    plain = native_config(write(tmp_path))
    changes = {"sliding_window": 4, "layer_types": ["sliding_attention"] * 3, "no_rope_layers": [0, 0, 0]}
    assert native_config(write(tmp_path, **changes)) == plain


@pytest.mark.parametrize("name", CONFIGS)
def test_frequencies_are_those_of_transformers(tmp_path, name):
    """Scaled or not, bit for bit, and the scaling of cosines and sines beside them."""
    config = CONFIGS[name]()
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        decoder = transformers.AutoModel.from_config(config)
    rotary = type(decoder.rotary_emb)(config)
    read = native_config(tmp_path).rotation
    assert read.frequencies == tuple(rotary.inv_freq.tolist())
    assert read.scaling == rotary.attention_scaling


def test_each_type_in_the_table_is_tried():
    assert {config().model_type for config in CONFIGS.values()} == set(NATIVE_TYPES)


@pytest.mark.parametrize("content", ["{", '{"model_type": "llama", "num_hidden_layers": "many"}'])
def test_a_config_that_cannot_be_read_is_an_error(tmp_path, content):
    with pytest.raises(ModelError, match=r"found no config\.json"):
        native_config(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match="its configuration cannot be read"):
        native_config(tmp_path)
