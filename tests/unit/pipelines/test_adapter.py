"""Which models the adapter runs, and what it says of those that it does not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import TINY, VOCAB_SIZE, config_of, save_model
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaMLP

from pipelines.config import Dtype, ModelConfig
from pipelines.errors import ModelError
from pipelines.models.adapter import TransformersModel
from pipelines.models.probe import read_window

CPU = torch.device("cpu")
SMALL = TINY | {"num_hidden_layers": 2}
MLA: dict[str, Any] = {
    "num_key_value_heads": 6,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "topk_group": 1,
    "n_group": 1,
}


def load(folder: Path, max_context: int | None = None, **config: Any) -> TransformersModel:
    return TransformersModel(folder, ModelConfig(str(folder), **config), CPU, max_context)


def refusal(folder: Path, max_context: int | None = None, **config: Any) -> str:
    """Load a model that must be refused; return what is said, which is one line and names the model."""
    with pytest.raises(ModelError) as error:
        load(folder, max_context, **config)
    text = str(error.value)
    assert text.startswith(f"model {folder.name}: ")
    assert "\n" not in text
    return text


def make(cls: str, folder: Path, **changes: Any) -> Path:
    return save_model(getattr(transformers, cls)(**{**SMALL, **changes}), folder)


@pytest.mark.parametrize(
    ("cls", "changes", "kv_heads", "key_dim", "value_dim"),
    [
        ("LlamaConfig", {}, 2, 8, 8),
        ("Qwen3Config", {"head_dim": 16}, 2, 16, 16),
        ("MixtralConfig", {"num_local_experts": 4}, 2, 8, 8),
        ("DeepseekV3Config", MLA, 6, 16, 12),
        ("GPTNeoXConfig", {}, 6, 8, 8),
        ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 48}, 6, 8, 8),
    ],
)
def test_families_whose_probe_passes(
    tmp_path: Path, cls: str, changes: dict[str, Any], kv_heads: int, key_dim: int, value_dim: int
) -> None:
    """Loading includes the comparison with the model's own attention; the layers' shapes are learnt from it."""
    model = load(make(cls, tmp_path / "m", **changes))
    assert len(model.layers) == 2
    spec = model.layers[0]
    assert (spec.num_heads, spec.num_kv_heads, spec.key_dim, spec.value_dim) == (6, kv_heads, key_dim, value_dim)
    assert (model.context, model.vocab_size, model.dtype) == (128, VOCAB_SIZE, torch.float32)


def test_windows_are_read_from_the_masks_of_each_layer(tmp_path: Path) -> None:
    """Sliding and full layers side by side; a window as long as the context is none."""
    mixed = save_model(config_of("gemma3"), tmp_path / "gemma3")
    assert [spec.window for spec in load(mixed).layers] == [7, None, 7]
    wide = make("MistralConfig", tmp_path / "mistral", sliding_window=60)
    assert [spec.window for spec in load(wide).layers] == [60, 60]
    assert [spec.window for spec in load(wide, max_context=60).layers] == [None, None]


def test_bfloat16_loads_and_keeps_its_plain_layers(tmp_path: Path) -> None:
    """16-bit arithmetic passes the probe within its tolerance."""
    model = load(make("LlamaConfig", tmp_path / "m"), dtype=Dtype.BFLOAT16)
    assert model.dtype is torch.bfloat16
    assert model.num_prepacked == 0


@pytest.mark.parametrize(
    ("cls", "changes", "reason"),
    [
        ("Gemma2Config", {"head_dim": 8}, "its attention passes 'softcap'"),
        ("GptOssConfig", {"head_dim": 8, "num_local_experts": 4}, "its attention passes 's_aux'"),
        ("MambaConfig", {}, "found 0 calls of transformers' attention interface"),
        ("MiniMaxConfig", {"num_hidden_layers": 3}, "expected one from each of its 3 layers"),
        ("BloomConfig", {"n_layer": 2, "n_head": 6}, "does not use transformers' attention interface"),
        (
            "Llama4TextConfig",
            {"head_dim": 8, "num_local_experts": 2, "attention_chunk_size": 8, "intermediate_size_mlp": 96},
            "attention in chunks is not supported",
        ),
    ],
)
def test_what_the_attention_cannot_do_is_refused_by_name(
    tmp_path: Path, cls: str, changes: dict[str, Any], reason: str
) -> None:
    """Soft caps, sinks, recurrent layers, attention of a model's own, attention in chunks."""
    context = 128 if cls in {"MambaConfig", "BloomConfig"} else None
    assert reason in refusal(make(cls, tmp_path / "m", **changes), context)


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    """Before anything is loaded."""
    config = transformers.T5Config(vocab_size=VOCAB_SIZE, d_model=16, num_layers=1, num_heads=2, d_kv=8)
    config.save_pretrained(tmp_path / "m")
    assert "encoder-decoder" in refusal(tmp_path / "m", 128)


def test_a_model_that_mixes_tokens_by_other_means_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers all call attention, but each token also sees the one before it in the step."""
    plain = LlamaMLP.forward

    def mixing(self: LlamaMLP, hidden: Tensor) -> Tensor:
        mixed: Tensor = plain(self, hidden) + hidden.roll(1, dims=1)
        return mixed

    monkeypatch.setattr(LlamaMLP, "forward", mixing)
    assert "computes more than attention over its tokens" in refusal(make("LlamaConfig", tmp_path / "m"))


def test_missing_weights_are_refused_not_made_up(tmp_path: Path) -> None:
    """Transformers would fill them with random numbers."""
    folder = make("LlamaConfig", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    assert "its files lack 9 of its weights, such as model.layers.2." in refusal(folder)


@pytest.mark.parametrize("text", ["{", '{"model_type": "no_such_thing"}', "[]"])
def test_a_config_that_cannot_be_read_is_one_line(tmp_path: Path, text: str) -> None:
    """Not JSON, an unknown type, not an object."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    refusal(folder)


def test_a_context_longer_than_the_models_own_is_refused(tmp_path: Path) -> None:
    """Shorter is taken as it is."""
    folder = make("LlamaConfig", tmp_path / "m")
    assert "max_context is 129, expected at most the 128" in refusal(folder, 129)
    assert load(folder, 50).context == 50


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotations_that_depend_on_the_batchs_longest_sequence_are_refused(tmp_path: Path, rope_type: str) -> None:
    """Within the length up to which they do not change, such a model runs."""
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0}
    rope |= {"original_max_position_embeddings": 32}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    folder = make("LlamaConfig", tmp_path / "m", rope_parameters=rope)
    assert "set max_context to at most 32" in refusal(folder)
    assert load(folder, 32).context == 32


@pytest.mark.parametrize("window", [1, 2, 31, 99, None])
def test_a_sliding_window_is_read_exactly(window: int | None) -> None:
    """From what the mask function says at a few positions."""

    def mask(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen: Tensor = key <= query
        return seen if window is None else seen & (key > query - window)

    assert read_window(mask, 100) == window
