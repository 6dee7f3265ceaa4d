"""What is served natively, read off config.json, and why the rest is not."""

import json
import re

import pytest
import torch
import transformers
from native_models import CONFIGS

from pipelines.errors import ModelError
from pipelines.models.native_config import NATIVE_TYPES, NativeConfig, NotNative, native_config


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


REFUSED = {
    "another type": ({"model_type": "gemma"}, r"found model_type 'gemma', the native decoder has llama, ministral"),
    "another class": ({"architectures": ["LlamaForSequenceClassification"]}, r"found architectures \['LlamaForSeq"),
    "another gate": ({"hidden_act": "gelu"}, r"found hidden_act 'gelu', expected 'silu'"),
    "quantized": ({"quantization_config": {"quant_method": "awq", "bits": 4}}, r"its weights are quantized"),
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
