"""Small models with random weights, saved as transformers keeps them, and transformers' own answers for them."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

VOCAB_SIZE = 199

torch.set_num_threads(1)  # for tensors this small a second thread is only waited for

TINY: dict[str, Any] = {  # what the config of any family is given
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.6,  # wide, so that the highest score stands clear of the second
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def config_of(family: str) -> Any:
    """Return a small config: llama, qwen2 (biases), mistral (sliding window), gemma3 (two windows, norms, soft scale)."""
    match family:
        case "llama":
            return transformers.LlamaConfig(**TINY, tie_word_embeddings=True)
        case "qwen2":
            return transformers.Qwen2Config(**TINY)
        case "mistral":
            return transformers.MistralConfig(**TINY, sliding_window=7)
        case "gemma3":
            return transformers.Gemma3TextConfig(
                **TINY,
                head_dim=16,
                sliding_window=7,
                tie_word_embeddings=False,  # scaled and tied it would repeat its last token for ever
                query_pre_attn_scalar=11,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            )
        case _:
            raise ValueError(family)


def save_model(config: Any, folder: Path, seed: int = 0) -> Path:
    """Make the config's model with random weights and save it; returns `folder`."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms, which start as constants
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return folder


def prompts(lengths: list[int], seed: int = 1) -> list[list[int]]:
    """Return a random prompt of each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


@cache
def _loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generate(folder: Path, prompt: list[int], num_tokens: int) -> list[int]:
    """Return transformers' own greedy tokens."""
    model = _loaded(folder)
    ids: Tensor = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def scores_of(folder: Path, token_ids: list[int]) -> Tensor:
    """Return transformers' own scores behind each token, [T, V] float32."""
    with torch.inference_mode():
        scores: Tensor = _loaded(folder)(torch.tensor([token_ids])).logits[0]
    return scores
