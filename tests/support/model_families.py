"""Decoder-only families of transformers, each as a tiny model of random weights, and how the engine runs them.

It prints docs/reference/models.md, with the tests' folders on its path:

    PYTHONPATH=.:tests/support:tests/unit/pipelines python -m model_families
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from step_driver import StepDriver
from tiny_models import TINY, generate, prompts, save_model
from transformers import CONFIG_MAPPING

from pipelines.config import BatchConfig, Dtype, EngineConfig, KvCacheConfig, ModelConfig
from pipelines.errors import ModelError
from pipelines.models.native import NativeModel
from pipelines.runtime.model_runner import ModelRunner

CONTEXT = 64
PROMPTS = prompts([3, 17, 30])
NUM_TOKENS = 8

_COMMON = TINY | {"num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
_TWO_KINDS = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
_NARROW_HEADS = {"head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED = _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
_ROUTED |= {"topk_group": 1, "n_group": 1}
_LATENT = _ROUTED | {
    "num_key_value_heads": 6,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": CONTEXT // 2}


@dataclass(frozen=True)
class Family:
    """A model type."""

    known_as: str  # models of it that people know
    changes: dict[str, Any] = field(default_factory=dict)  # what makes its config as small, with its features in use

    def save(self, model_type: str, folder: Path) -> Path:
        """Make its tiny model."""
        return save_model(CONFIG_MAPPING[model_type](**_COMMON | self.changes), folder)


FAMILIES: dict[str, Family] = {
    "apertus": Family("Apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "arcee": Family("Arcee AFM"),
    "biogpt": Family("BioGPT"),
    "bitnet": Family("BitNet b1.58"),
    "bloom": Family("BLOOM", {"n_layer": 2, "n_head": 6}),
    "codegen": Family("CodeGen", {"rotary_dim": 4}),
    "cohere": Family("Command R"),
    "cohere2": Family("Command R7B", _TWO_KINDS),
    "deepseek_v2": Family("DeepSeek-V2", _LATENT),
    "deepseek_v3": Family("DeepSeek-V3, R1", _LATENT),
    "diffllama": Family("DiffLlama"),
    "ernie4_5": Family("ERNIE 4.5"),
    "ernie4_5_moe": Family("ERNIE 4.5 MoE", _EXPERTS | {"moe_num_experts": 4, "moe_k": 2}),
    "exaone4": Family("EXAONE 4", _TWO_KINDS),
    "falcon": Family("Falcon"),
    "gemma": Family("Gemma", _NARROW_HEADS),
    "gemma2": Family("Gemma 2", _NARROW_HEADS | _TWO_KINDS),
    "gemma3_text": Family("Gemma 3 270M and 1B", _NARROW_HEADS | _TWO_KINDS | {"tie_word_embeddings": False}),
    "glm": Family("GLM-4-9B", _NARROW_HEADS),
    "glm4": Family("GLM-4-0414", _NARROW_HEADS),
    "glm4_moe": Family("GLM-4.5", _NARROW_HEADS | _ROUTED),
    "gpt2": Family("GPT-2"),
    "gpt_bigcode": Family("StarCoder"),
    "gpt_neox": Family("Pythia, GPT-NeoX"),
    "gpt_oss": Family("gpt-oss", _NARROW_HEADS | _EXPERTS | {"rope_parameters": _YARN}),
    "granite": Family("Granite 3"),
    "granitemoe": Family("Granite 3 MoE", _EXPERTS),
    "helium": Family("Helium", _NARROW_HEADS),
    "hunyuan_v1_dense": Family("Hunyuan dense", _NARROW_HEADS),
    "jamba": Family("Jamba", {"attn_layer_offset": 1, "attn_layer_period": 2, "num_experts": 2}),
    "lfm2": Family("LFM2", {"layer_types": ["conv", "full_attention"]}),
    "llama": Family("Llama 2, Llama 3, SmolLM2, TinyLlama"),
    "llama4_text": Family(
        "text part of Llama 4", _NARROW_HEADS | _EXPERTS | {"attention_chunk_size": 8, "intermediate_size_mlp": 96}
    ),
    "mamba": Family("Mamba"),
    "minimax_m2": Family("MiniMax-M2", _NARROW_HEADS | _EXPERTS | {"rotary_dim": 4}),
    "ministral": Family("Ministral 8B", _NARROW_HEADS | _TWO_KINDS),
    "ministral3": Family("Ministral 3", _NARROW_HEADS | {"rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1}}),
    "mistral": Family("Mistral 7B, Mistral Small, Mistral Nemo", {"sliding_window": 7}),
    "mixtral": Family("Mixtral 8x7B", _EXPERTS),
    "mpt": Family("MPT", {"d_model": 48, "n_heads": 6, "n_layers": 2}),
    "nanochat": Family("nanochat"),
    "nemotron": Family("Nemotron-4, Minitron"),
    "olmo": Family("OLMo"),
    "olmo2": Family("OLMo 2"),
    "olmo3": Family("OLMo 3", _TWO_KINDS),
    "olmoe": Family("OLMoE", _EXPERTS),
    "opt": Family("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 48}),
    "persimmon": Family("Persimmon"),
    "phi": Family("Phi-1, Phi-2"),
    "phi3": Family("Phi-3, Phi-3.5, Phi-4"),
    "phimoe": Family("Phi-3.5-MoE", _EXPERTS),
    "qwen2": Family("Qwen2, Qwen2.5, QwQ"),
    "qwen2_moe": Family("Qwen1.5-MoE, Qwen2-57B-A14B", _EXPERTS | {"shared_expert_intermediate_size": 32}),
    "qwen3": Family("Qwen3", _NARROW_HEADS),
    "qwen3_moe": Family("Qwen3-30B-A3B, Qwen3-235B-A22B", _NARROW_HEADS | _EXPERTS | {"norm_topk_prob": True}),
    "qwen3_next": Family("Qwen3-Next", _NARROW_HEADS | _EXPERTS),
    "recurrent_gemma": Family("RecurrentGemma", {"num_hidden_layers": 3}),
    "rwkv": Family("RWKV-4"),
    "seed_oss": Family("Seed-OSS", _NARROW_HEADS),
    "smollm3": Family("SmolLM3", {"no_rope_layer_interval": 2}),
    "stablelm": Family("StableLM 2"),
    "starcoder2": Family("StarCoder2"),
    "xglm": Family("XGLM", {"d_model": 48, "num_layers": 2, "attention_heads": 6, "ffn_dim": 96}),
}


@dataclass(frozen=True)
class Verdict:
    """How a model is run on a CPU."""

    runs_as: str  # native, adapter or refused
    remark: str = ""  # why it is refused, or not native on a GPU

    def row(self, model_type: str) -> str:
        """Its line of the table."""
        return f"| `{model_type}` | {FAMILIES[model_type].known_as} | {self.runs_as} | {self.remark} |"


@contextmanager
def open_runner(folder: Path) -> Iterator[ModelRunner]:
    """Load a model as the engine does, in float32 on the CPU.

    Raises:
        ModelError: the engine does not run it.
    """
    config = EngineConfig(
        name="families",
        model=ModelConfig(str(folder), device="cpu", dtype=Dtype.FLOAT32),
        batch=BatchConfig(max_num_seqs=len(PROMPTS), max_num_batched_tokens=96),
        kv_cache=KvCacheConfig(block_size=4, max_tokens=256),
        max_context=CONTEXT,
        num_threads=1,
    )
    runner = ModelRunner(config, folder)
    try:
        yield runner
    finally:
        runner.close()


def classify(folder: Path) -> Verdict:
    """Load the model and say how."""
    try:
        with open_runner(folder) as runner:
            is_ours = isinstance(runner._model, NativeModel)
    except ModelError as error:
        return Verdict("refused", str(error).removeprefix(f"model {folder.name}: "))
    return Verdict("native" if is_ours else "adapter")


def both_tokens(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Return the greedy tokens of `PROMPTS`: the engine's, side by side and in chunks, and transformers'."""
    with open_runner(folder) as runner:
        ours = StepDriver(runner, chunk=20).run(PROMPTS, NUM_TOKENS)
    return ours, [generate(folder, prompt, NUM_TOKENS) for prompt in PROMPTS]


HEAD = f"""# Models

Decoder-only families of transformers and how the engine runs them. `native` is a decoder of our own, with fused weights and
on a GPU with kernels and CUDA graphs; `adapter` runs transformers' own code with our attention in it; what neither can run is
refused at the start, by the name of what it lacks. `model.implementation` chooses between the two; `auto` is native
where it can be.

This page is printed by `tests/support/model_families.py` and held by a test. Each family is built as a tiny model with random
weights and its features in use (windows, experts, scaled positions), and loaded as the engine loads any model, in float32 on
a CPU. All that are native or adapter give, for three prompts side by side, the same {NUM_TOKENS} greedy tokens as
transformers' `generate`. That says nothing of speed.

A family that is not listed has not been tried; at its start the adapter finds out whether it can run it. A native family whose
configuration asks for what the native decoder does not do (code of its own, ...) goes to the adapter.

## Quantized checkpoints

Of both, the weights may be stored quantized, in safetensors. They are decoded when they are loaded, to the model's dtype: so
they take as much memory and time a step as if they never had been quantized, and activations are not quantized, even where the
checkpoint was made for that.

| `quant_method` | what is decoded |
|---|---|
| `compressed-tensors` | `float-quantized` and `naive-quantized` (FP8), `int-quantized` (INT8, as W8A8), \
`pack-quantized` of 4 or 8 bits (W4A16, W8A16); scales by tensor, channel, \
group or block, zero points, `actorder`; one kind of weights a model |
| `fp8` | e4m3 with scales by block (DeepSeek-V3, Qwen3-FP8) or by tensor |
| `awq` | 4 bits, `gemm` |
| `gptq` | 2, 4 or 8 bits, `gptq` and `gptq_v2`, with `desc_act` or without |
| `bitsandbytes` | 4 bits (NF4, FP4, double quantization too) and 8 bits |

Anything else (mxfp4, nvfp4, quark, hqq, sparse or rotated weights, ...) is refused at the start by its name, and so is an 8-bit
weight of which `config.json` says nothing.

## Families

| `model_type` | such as | runs as | remark |
|---|---|---|---|
"""


def page(verdicts: dict[str, Verdict]) -> str:
    """Return the whole page."""
    return HEAD + "".join(f"{verdict.row(model_type)}\n" for model_type, verdict in verdicts.items())


def try_all() -> dict[str, Verdict]:
    """Try each family.

    Raises:
        AssertionError: one that runs gives other tokens than transformers.
    """
    verdicts = {}
    for model_type, family in FAMILIES.items():
        with TemporaryDirectory() as place:
            folder = family.save(model_type, Path(place) / model_type)
            verdicts[model_type] = verdict = classify(folder)
            if verdict.runs_as != "refused":
                ours, theirs = both_tokens(folder)
                if ours != theirs:
                    raise AssertionError(f"{model_type}: found the tokens {ours}, expected {theirs}")
        print(f"{model_type}: {verdict.runs_as} {verdict.remark}", file=sys.stderr, flush=True)  # noqa: T201  a sign of life
    return verdicts


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(page(try_all()))
