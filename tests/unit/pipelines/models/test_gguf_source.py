"""GGUF files become folders that transformers loads, or one line that says why not."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tiny_gguf import HIDDEN, TinyGguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.config import ModelConfig
from pipelines.errors import EngineError, ModelError
from pipelines.models import gguf_source
from pipelines.models.gguf_llama import LlamaShape, llama_config
from pipelines.models.gguf_source import convert_gguf
from pipelines.models.native import read_needs


def convert(tmp_path: Path, tiny: TinyGguf) -> tuple[Path, dict[str, np.ndarray]]:
    """Write and convert a file; return the folder and the tensors expected in it."""
    expected = tiny.write(tmp_path / "tiny.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder, lambda _: None)
    return folder, expected


def refusal(tmp_path: Path, tiny: TinyGguf) -> str:
    with pytest.raises(ModelError) as caught:
        convert(tmp_path, tiny)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("biased", "tied"), [(False, True), (True, False)])
def test_tensors_come_out_as_transformers_orders_them(tmp_path: Path, biased: bool, tied: bool) -> None:
    """Every tensor of a float32 file is bit-equal to the model it was written from, queries and keys put back in order."""
    folder, expected = convert(tmp_path, TinyGguf(biased=biased, tied=tied))
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_transformers_computes_the_same_logits_from_the_folder(tmp_path: Path) -> None:
    """The configuration fits the tensors: transformers' own model, given the original weights, agrees with the loaded one."""
    folder, expected = convert(tmp_path, TinyGguf(biased=True, tied=False))
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype is torch.float32
    original = type(loaded)(loaded.config)
    original.load_state_dict({name: torch.from_numpy(values) for name, values in expected.items()})
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, original.eval()(ids).logits, rtol=0, atol=0)


def test_quantised_rows_are_put_in_order_before_they_are_dequantised(tmp_path: Path) -> None:
    folder, expected = convert(tmp_path, TinyGguf(quantization=gguf.GGMLQuantizationType.Q8_0))
    found = load_file(folder / "model.safetensors")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=0.02, err_msg=name)


def test_a_gpu_computes_a_quantised_model_in_bfloat16_though_its_weights_are_kept_exact(tmp_path: Path) -> None:
    """Float32 takes a GPU several times as long, and such a file never had so many bits; a CPU computes in float32 anyway."""
    folder, _ = convert(tmp_path, TinyGguf(quantization=gguf.GGMLQuantizationType.Q8_0))
    assert b'"dtype":"F32"' in (folder / "model.safetensors").read_bytes()
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert read_needs(folder, ModelConfig(str(folder)), torch.device("cuda"), None).dtype is torch.bfloat16
    assert read_needs(folder, ModelConfig(str(folder)), torch.device("cpu"), None).dtype is torch.float32


def test_a_float32_file_is_computed_in_float32(tmp_path: Path) -> None:
    folder, _ = convert(tmp_path, TinyGguf())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


def test_a_large_model_is_kept_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_source, "_FLOAT32_ELEMENTS", 100)
    folder, _ = convert(tmp_path, TinyGguf())
    header = (folder / "model.safetensors").read_bytes()
    assert b'"dtype":"BF16"' in header
    assert b'"dtype":"F32"' not in header
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_tokenizer_ends_where_the_file_says_and_splits_digits(tmp_path: Path) -> None:
    """End-of-sequence, padding and begin ids are the file's; SmolLM's digits are cut off before the byte-level split."""
    folder, _ = convert(tmp_path, TinyGguf())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.tokenize("\n\n12") == ["\u010a\u010a", "1", "2"]
    assert tokenizer.tokenize("hello") == ["hello"]
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def test_a_base_models_end_of_text_does_not_keep_a_chat_from_ending(tmp_path: Path) -> None:
    """The token that ends a turn in the chat template counts as end of sequence beside the one that the file names."""
    folder, _ = convert(tmp_path, TinyGguf(extra={"tokenizer.ggml.eos_token_id": 0}))
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


def test_llama_3_scaling_is_told_from_its_divisors(tmp_path: Path) -> None:
    """Rotary divisors as the Llama 3 formula makes them yield its parameters; others are refused."""
    theta, factor, dim = 500000.0, 32.0, 64
    wavelengths = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((8192 / wavelengths - 1.0) / 3.0, 0, 1)
    divisors = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    shape = {"llama.rope.freq_base": theta, "llama.attention.key_length": dim}
    reader_file = tmp_path / "rope.gguf"
    TinyGguf(extra=shape, tensors={"rope_freqs.weight": divisors}).write(reader_file)
    reader = gguf.GGUFReader(reader_file)
    config = llama_config(reader, LlamaShape.read(reader))
    assert config["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    strange = TinyGguf(tensors={"rope_freqs.weight": np.linspace(1, 3, 4, dtype=np.float32)})
    assert "rope_freqs.weight" in refusal(tmp_path, strange)


@pytest.mark.parametrize(
    ("tiny", "words"),
    [
        (TinyGguf(extra={"llama.expert_count": 8}), "experts"),
        (TinyGguf(left_out=("llama.block_count",)), "llama.block_count"),
        (TinyGguf(left_out=("blk.1.ffn_up.weight",)), "model.layers.1.mlp.up_proj.weight"),
        (TinyGguf(tensors={"blk.0.attn_q.weight": np.zeros((8, HIDDEN), np.float32)}), "found shape [8, 32]"),
        (TinyGguf(tensors={"blk.0.extra.weight": np.zeros(8, np.float32)}), "blk.0.extra.weight"),
        (TinyGguf(tensors={"blk.7.attn_norm.weight": np.zeros(HIDDEN, np.float32)}), "blk.7.attn_norm.weight"),
        (TinyGguf(extra={"llama.rope.scaling.type": "yarn"}), "yarn"),
        (TinyGguf(extra={"split.count": 3}), "split in 3"),
        (TinyGguf(extra={"tokenizer.ggml.model": "none"}), "tokenizer"),
    ],
    ids=["experts", "metadata", "missing", "shape", "unknown", "layer", "yarn", "split", "tokenizer"],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, tiny: TinyGguf, words: str) -> None:
    """One line that names the file and what is wrong with it."""
    message = refusal(tmp_path, tiny)
    assert words in message
    assert "tiny.gguf" in message


def test_other_architectures_ask_for_accelerate_by_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    message = refusal(tmp_path, TinyGguf(architecture="qwen2"))
    assert "'qwen2'" in message
    assert "pip install accelerate" in message


def test_other_architectures_go_through_transformers(tmp_path: Path) -> None:
    """Where accelerate is installed, a Qwen2 file comes out bit-equal too."""
    pytest.importorskip("accelerate")
    folder, expected = convert(tmp_path, TinyGguf(architecture="qwen2", biased=True, tied=False, pre="qwen2"))
    found = load_file(folder / "model.safetensors")
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"no GGUF at all",
        lambda data: data[:10],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:],
        lambda data: data[:16] + b"\xff" * 8 + data[24:],
    ],
    ids=["empty", "text", "head", "half", "last byte", "version", "count"],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Whatever is cut off or overwritten, the message names the file and nothing else escapes."""
    file = tmp_path / "tiny.gguf"
    TinyGguf().write(file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match=r"tiny\.gguf") as caught:
        convert_gguf(file, tmp_path, lambda _: None)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Any = type("Usage", (), {"free": 10})
    monkeypatch.setattr(gguf_source.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EngineError, match="GAPLESS_CACHE"):
        convert(tmp_path, TinyGguf())
    assert not any((tmp_path / "folder").iterdir())


def test_progress_grows_to_one(tmp_path: Path) -> None:
    TinyGguf().write(tmp_path / "tiny.gguf")
    shares: list[float] = []
    convert_gguf(tmp_path / "tiny.gguf", tmp_path, shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
