"""The native decoder says what transformers says, for each family and each of their features."""

import pytest
import torch
import transformers
from native_models import CONFIGS, Pages, generate_greedily, make_step, torch_scores
from tiny_models import VOCAB_SIZE, generate, prompts, save_model

from pipelines.config import Dtype, ModelConfig
from pipelines.errors import ModelError
from pipelines.models.adapter import TransformersModel
from pipelines.models.attention import LayerSpec
from pipelines.models.native import NativeModel

CPU = torch.device("cpu")
PROMPTS = prompts([3, 17, 9, 30, 1, 12])
NUM_TOKENS = 12


def load(folder, dtype=Dtype.FLOAT32, **options):
    return NativeModel(folder, ModelConfig(str(folder), dtype=dtype), CPU, None, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved model a config."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = save_model(CONFIGS[name](), tmp_path_factory.mktemp("model") / "tiny", seed=len(made))
        return made[name]

    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_equal_generate(folders, name):
    """Whole prompts, then in chunks beside decodes, each time on fresh pages: all tokens are transformers' own."""
    model = load(folders(name))
    expected = [generate(folders(name), prompt, NUM_TOKENS) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    for chunk in (1000, 5):
        pages = Pages(model.layers, model.dtype, CPU, len(PROMPTS))
        assert (
            generate_greedily(lambda step, pages=pages: torch_scores(model, pages, step), PROMPTS, NUM_TOKENS, chunk)
            == expected
        )
    model.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_layers_are_those_that_the_adapter_finds(folders, name):
    """Shapes and windows from the configuration alone are the ones that the adapter's probe sees at work."""
    probed = TransformersModel(folders(name), ModelConfig(str(folders(name))), CPU, None)
    assert load(folders(name)).layers == probed.layers
    probed.close()


@pytest.mark.parametrize("name", ["llama, tied", "qwen2, yarn", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(Dtype.FLOAT32, 1e-5), (Dtype.BFLOAT16, 4e-2)])
def test_scores_are_those_of_the_adapter(folders, name, dtype, tolerance):
    """Of two prompts in one step, relative to their spread."""
    adapter = TransformersModel(folders(name), ModelConfig(str(folders(name)), dtype=dtype), CPU, None)
    step = make_step([(0, PROMPTS[3], 0), (1, PROMPTS[4], 0)])
    scores = [
        torch_scores(model, Pages(model.layers, model.dtype, CPU, 2), step).float()
        for model in (adapter, load(folders(name), dtype))
    ]
    assert scores[0].shape == (2, VOCAB_SIZE)
    assert (scores[0] - scores[1]).abs().max() < tolerance * (scores[0].max() - scores[0].min())
    adapter.close()


@pytest.mark.parametrize("keeps_plain", [False, True])
def test_many_rows_and_few_give_the_same_scores(folders, keeps_plain):
    """Beyond 48 rows the plain weight serves, where it was kept; what is written into the cache is the same."""
    model = load(folders("llama, all biases"), spare_bytes=1 << 30 if keeps_plain else 0)
    prompt = prompts([60])[0]
    whole = torch_scores(model, Pages(model.layers, model.dtype, CPU, 1), make_step([(0, prompt, 0)]))
    pages = Pages(model.layers, model.dtype, CPU, 1)
    for start in range(0, 60, 20):
        parts = torch_scores(model, pages, make_step([(0, prompt[start : start + 20], start)]))
    assert torch.allclose(whole, parts, rtol=1e-4, atol=1e-4)
    assert model.decoder.head.packed._plain is not None if keeps_plain else model.decoder.head.packed._plain is None


def test_weights_that_were_not_laid_out_anew_serve_too(folders, monkeypatch):
    """Where torch lacks the private operators, plain layers give the same tokens."""
    monkeypatch.setattr("pipelines.models.ops_cpu.can_prepack", lambda: False)
    model = load(folders("qwen2"))
    assert model.num_prepacked == 0
    pages = Pages(model.layers, model.dtype, CPU, len(PROMPTS))
    tokens = generate_greedily(lambda step: torch_scores(model, pages, step), PROMPTS, 5, 1000)
    assert tokens == [generate(folders("qwen2"), prompt, 5) for prompt in PROMPTS]


def test_what_a_model_says_of_itself(folders):
    model = load(folders("mistral, window"))
    assert (model.name, model.context, model.vocab_size, model.dtype) == (
        "native mistral",
        128,
        VOCAB_SIZE,
        torch.float32,
    )
    assert model.layers == (LayerSpec(6, 2, 8, 8, 7),) * 3
    assert model.num_prepacked == 4 * 3 + 1


def test_experts_stay_as_they_are(folders):
    """Laid out for the CPU are the projections of attention, the MLPs of layers without experts, and the head."""
    assert load(folders("qwen3_moe")).num_prepacked == 2 * 3 + 1
    assert load(folders("qwen3_moe, two layers of three")).num_prepacked == 2 * 2 + 4 + 1


def test_a_context_may_be_shorter_but_not_longer(folders):
    """A window as long as the context is none."""
    folder = folders("mistral, window")
    model = NativeModel(folder, ModelConfig(str(folder)), CPU, 7)
    assert (model.context, model.layers[0].window) == (7, None)
    with pytest.raises(ModelError, match=r"model tiny: max_context is 129, expected at most the 128"):
        NativeModel(folder, ModelConfig(str(folder)), CPU, 129)


def test_a_model_that_is_not_native_is_refused_by_name(tmp_path):
    folder = tmp_path / "gemma"
    transformers.Gemma3TextConfig(num_hidden_layers=2).save_pretrained(folder)
    with pytest.raises(
        ModelError, match=r"^model gemma: the native decoder does not run it: found model_type 'gemma3_text'"
    ):
        load(folder)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_weights_may_be_made_by_chance(tmp_path, dtype):
    """From a configuration alone; the same seed makes the same model, another one another."""
    CONFIGS["qwen3"]().save_pretrained(tmp_path)
    step = make_step([(0, PROMPTS[3], 0)])
    scores = []
    for seed in (1, 1, 2):
        model = load(tmp_path, dtype, random_seed=seed)
        scores.append(torch_scores(model, Pages(model.layers, model.dtype, CPU, 1), step))
    assert bool(scores[0].isfinite().all())
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
