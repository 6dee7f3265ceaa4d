"""Writes small GGUF files as llama.cpp's converter would, and knows what must come out of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pipelines.text.pieces import byte_alphabet

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 32, 2, 4, 2, 8, 64
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "\u010a \u010a")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PROJECTIONS = {
    "attn_q": ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
    "attn_k": ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
    "ffn_up": ("mlp.up_proj", INTERMEDIATE, HIDDEN),
    "ffn_down": ("mlp.down_proj", HIDDEN, INTERMEDIATE),
}


@dataclass
class TinyGguf:
    """A file to be written."""

    architecture: str = "llama"
    biased: bool = False
    tied: bool = True
    pre: str = "smollm"
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    extra: dict[str, Any] = field(default_factory=dict)  # more metadata, by key
    tensors: dict[str, np.ndarray] = field(default_factory=dict)  # more or other tensors, by their names in the file
    left_out: tuple[str, ...] = ()  # metadata keys and tensors

    def write(self, file: Path) -> dict[str, np.ndarray]:
        """Write it; return the tensors by transformers' names, in its order of rows."""
        writer = gguf.GGUFWriter(file, self.architecture)
        for key, value in (self._metadata() | self.extra).items():
            if key not in self.left_out:
                _add(writer, key, value)
        expected, stored = self._weights()
        for name, values in (stored | self.tensors).items():
            if name not in self.left_out:
                self._add_tensor(writer, name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return expected

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
        if values.ndim == 1 or self.quantization is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, self.quantization), raw_dtype=self.quantization)

    def _metadata(self) -> dict[str, Any]:
        alphabet = list(byte_alphabet())
        tokens = [*CONTROL, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
        prefix = self.architecture
        return {
            f"{prefix}.block_count": LAYERS,
            f"{prefix}.context_length": 128,
            f"{prefix}.embedding_length": HIDDEN,
            f"{prefix}.feed_forward_length": INTERMEDIATE,
            f"{prefix}.attention.head_count": HEADS,
            f"{prefix}.attention.head_count_kv": KV_HEADS,
            f"{prefix}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{prefix}.rope.freq_base": 10000.0,
            f"{prefix}.rope.dimension_count": HEAD_DIM,
            f"{prefix}.vocab_size": len(tokens),
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": self.pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
            "tokenizer.ggml.merges": list(MERGES),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template": TEMPLATE,
        }

    def _weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        random = np.random.default_rng(0)
        num_tokens = len(self._metadata()["tokenizer.ggml.tokens"])
        expected: dict[str, np.ndarray] = {}
        stored: dict[str, np.ndarray] = {}

        def add(theirs: str, ours: str, *shape: int, heads: int = 0) -> None:
            values = random.standard_normal(shape).astype(np.float32)
            expected[ours] = values
            stored[theirs] = interleaved(values, heads) if heads and self.architecture == "llama" else values

        add("token_embd.weight", "model.embed_tokens.weight", num_tokens, HIDDEN)
        add("output_norm.weight", "model.norm.weight", HIDDEN)
        if not self.tied:
            add("output.weight", "lm_head.weight", num_tokens, HIDDEN)
        for layer in range(LAYERS):
            add(f"blk.{layer}.attn_norm.weight", f"model.layers.{layer}.input_layernorm.weight", HIDDEN)
            add(f"blk.{layer}.ffn_norm.weight", f"model.layers.{layer}.post_attention_layernorm.weight", HIDDEN)
            for theirs, (ours, rows, columns) in _PROJECTIONS.items():
                heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(theirs, 0)
                add(f"blk.{layer}.{theirs}.weight", f"model.layers.{layer}.{ours}.weight", rows, columns, heads=heads)
                if self.biased and (
                    theirs.startswith("attn") if self.architecture == "llama" else heads or theirs == "attn_v"
                ):
                    add(f"blk.{layer}.{theirs}.bias", f"model.layers.{layer}.{ours}.bias", rows, heads=heads)
        return expected, stored


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as llama.cpp keeps them: the i-th of a head's first half, then the i-th of its second half."""
    result = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for index in range(size // 2):
            result[head * size + 2 * index] = rows[head * size + index]
            result[head * size + 2 * index + 1] = rows[head * size + size // 2 + index]
    return result


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
