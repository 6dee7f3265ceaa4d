"""A small model on a GPU, for tests of what surrounds the model."""

from dataclasses import replace

import torch
import transformers
from rig import token_request
from tiny_models import save_model

from pipelines.config import BatchConfig, EngineConfig, GraphMode, Implementation, KvCacheConfig, ModelConfig

NUM_TOKENS = 10
LENGTHS = [3, 17, 9, 30, 1, 12, 44, 5, 2, 28, 7, 61, 11, 4, 19, 8, 33, 6, 15, 23]


def small_model(folder, **changes):
    """Save a llama of random weights whose highest scores stand clear of the second ones."""
    fields = {
        "vocab_size": 199, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 256, "initializer_range": 0.25,
        "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
    } | changes  # fmt: skip
    return save_model(transformers.LlamaConfig(**fields), folder)


def gpu_config(folder, graphs=GraphMode.AUTO, implementation=Implementation.AUTO, tokens=400, **changes):
    """An engine of 20 seats and 256 blocks of 16 tokens; `changes` are sections, of graphs beside `enabled`."""
    config = EngineConfig(
        name="test",
        model=ModelConfig(str(folder), device="cuda", implementation=implementation),
        batch=BatchConfig(max_num_seqs=20, max_num_batched_tokens=tokens),
        kv_cache=KvCacheConfig(block_size=16, max_tokens=16 * 256),
    )
    config = replace(config, **changes)
    return replace(config, cuda_graphs=replace(config.cuda_graphs, enabled=graphs, max_tokens=64))


def random_prompts(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 199, (length,), generator=generator).tolist() for length in lengths]


def requests_for(prompts, num_tokens=NUM_TOKENS, **changes):
    return [token_request(key, prompt, num_tokens, **changes) for key, prompt in enumerate(prompts)]
