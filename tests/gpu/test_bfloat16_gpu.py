"""Short arithmetic costs no more than it costs transformers: scores behind given tokens, held against float32."""

import pytest
import torch
from next_scores import next_scores

from pipelines.config import BatchConfig, CudaGraphsConfig, Dtype, EngineConfig, GraphMode, KvCacheConfig, ModelConfig
from pipelines.runtime.model_runner import ModelRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

NUM_PREFIXES = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of some size in a folder, prefixes of random tokens, and transformers' scores in float32 and bfloat16."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=1024, initializer_range=0.06, eos_token_id=None,
    )  # fmt: skip
    with torch.device("cuda"):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made.save_pretrained(folder)
    tokens = torch.randint(0, 4096, (NUM_PREFIXES,)).tolist()
    prefixes = [tokens[: length + 1] for length in range(NUM_PREFIXES)]
    with torch.inference_mode():
        ids = torch.tensor([tokens], device="cuda")
        short = made.eval()(ids).logits[0].float().cpu()
        exact = made.float()(ids).logits[0].cpu()
    return folder, prefixes, exact, short


def _error(scores, exact):
    return float((scores - exact).square().mean().sqrt())


@pytest.mark.parametrize("chunk", [1000, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_scores_are_no_further_from_float32_than_those_of_transformers(model, chunk, graphs):
    folder, prefixes, exact, short = model
    config = EngineConfig(
        "test",
        ModelConfig(str(folder), device="cuda", dtype=Dtype.BFLOAT16),
        batch=BatchConfig(NUM_PREFIXES, 4096),
        kv_cache=KvCacheConfig(block_size=64, max_tokens=64 * 512),
        cuda_graphs=CudaGraphsConfig(enabled=GraphMode.ON if graphs else GraphMode.OFF, max_tokens=128),
    )
    runner = ModelRunner(config, folder)
    try:
        ours = _error(next_scores(runner, prefixes, chunk=chunk), exact)
    finally:
        runner.close()
    theirs = _error(short, exact)
    print(f"root mean square error of the scores: ours {ours:.5f}, transformers {theirs:.5f}, scores {exact.std():.3f}")
    assert ours <= 1.05 * theirs
