"""Tensors come fused and whole from one file or many, or loading ends in a line that names the tensor."""

import dataclasses
import json
import re

import pytest
import torch
from native_models import CONFIGS
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import save_model

from pipelines.errors import ModelError
from pipelines.models.native_config import native_config
from pipelines.models.native_files import Placer
from pipelines.models.weights import (
    Role,
    Target,
    checkpoint_dtype,
    layout,
    load_weights,
    num_linear_elements,
    random_weights,
)

CPU = Target(torch.device("cpu"), torch.float32)
Q, K, V = (f"model.layers.1.self_attn.{name}_proj" for name in "qkv")


@pytest.fixture(params=["one file", "shards"])
def folder(request, tmp_path):
    """A Llama with all biases, in one file or several."""
    save_model(CONFIGS["llama, all biases"](), tmp_path)
    if request.param == "shards":
        shard(tmp_path, load_file(tmp_path / "model.safetensors"))
    return tmp_path


def shard(folder, tensors):
    """Save tensors over five files with an index."""
    (folder / "model.safetensors").unlink()
    places = {name: f"part-{number % 5}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def read_all(folder):
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def edit(folder, **changes):
    """Change the tensors of a model of one file; None takes one out."""
    tensors = load_file(folder / "model.safetensors") | {name.replace("__", "."): to for name, to in changes.items()}
    save_file({name: to for name, to in tensors.items() if to is not None}, folder / "model.safetensors")


def load(folder, target=CPU, report=lambda _: None):
    return list(load_weights(native_config(folder), folder, target, report))


def test_projections_of_the_same_rows_are_one_tensor(folder):
    """Query above key above value, gate above up, and so their biases; all others as they are."""
    stored = read_all(folder)
    groups = load(folder)
    layer = groups[2]
    assert torch.equal(layer[Role.QKV], torch.cat([stored[f"{name}.weight"] for name in (Q, K, V)]))
    assert torch.equal(layer[Role.QKV_BIAS], torch.cat([stored[f"{name}.bias"] for name in (Q, K, V)]))
    gate, up = (stored[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    assert torch.equal(layer[Role.GATE_UP], torch.cat([gate, up]))
    assert torch.equal(layer[Role.DOWN_BIAS], stored["model.layers.1.mlp.down_proj.bias"])
    assert torch.equal(groups[0][Role.EMBEDDING], stored["model.embed_tokens.weight"])
    assert torch.equal(groups[-1][Role.HEAD], stored["lm_head.weight"])
    assert len(groups) == 5
    assert sum(tensor.numel() for group in groups for tensor in group.values()) == sum(
        tensor.numel() for tensor in stored.values()
    )


@pytest.fixture
def with_experts(tmp_path):
    """The first layer has six experts, the second none, over five files."""
    config = CONFIGS["qwen3_moe"]()
    config.num_hidden_layers, config.mlp_only_layers = 2, [1]
    save_model(config, tmp_path)
    shard(tmp_path, load_file(tmp_path / "model.safetensors"))
    return tmp_path


def test_experts_are_one_tensor(with_experts):
    """Of each expert its gate above its up, one expert below the other; layers without experts are as in any model."""
    stored = read_all(with_experts)
    _, sparse, dense, _ = load(with_experts)
    experts = [f"model.layers.0.mlp.experts.{expert}" for expert in range(6)]
    parts = [stored[f"{expert}.{name}_proj.weight"] for expert in experts for name in ("gate", "up")]
    assert torch.equal(sparse[Role.EXPERTS_GATE_UP], torch.cat(parts))
    downs = [stored[f"{expert}.down_proj.weight"] for expert in experts]
    assert torch.equal(sparse[Role.EXPERTS_DOWN], torch.cat(downs))
    assert torch.equal(sparse[Role.ROUTER], stored["model.layers.0.mlp.gate.weight"])
    assert Role.GATE_UP not in sparse
    assert Role.ROUTER not in dense
    assert torch.equal(dense[Role.DOWN], stored["model.layers.1.mlp.down_proj.weight"])


def test_a_file_is_opened_once_for_all_its_tensors(with_experts, monkeypatch):
    """Reading the head of a file that names thousands of experts takes milliseconds."""
    opened = []

    def noted(file, framework):
        opened.append(file.name)
        return safe_open(file, framework=framework)

    monkeypatch.setattr("pipelines.models.native_files.safe_open", noted)
    load(with_experts)
    assert sorted(opened) == [f"part-{number}.safetensors" for number in range(5)]


def test_a_missing_expert_is_named(with_experts):
    file = with_experts / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    name = "model.layers.0.mlp.experts.4.up_proj.weight"
    part = with_experts / index["weight_map"][name]
    save_file({other: tensor for other, tensor in load_file(part).items() if other != name}, part)
    with pytest.raises(ModelError, match=r"^its files lack the tensor model\.layers\.0\.mlp\.experts\.4\.up_proj"):
        load(with_experts)


def test_tensors_larger_than_a_slab_come_in_several(folder, monkeypatch):
    """Cut anywhere, also within one part of a fused tensor."""
    whole = load(folder)
    monkeypatch.setattr("pipelines.models.weights.SLAB_BYTES", 4 * 48 * 7)
    for group, cut in zip(whole, load(folder), strict=True):
        assert all(torch.equal(group[role], cut[role]) for role in group)


def test_values_are_converted_as_they_are_copied(folder):
    loaded = load(folder, Target(torch.device("cpu"), torch.bfloat16))
    stored = read_all(folder)["model.norm.weight"]
    assert torch.equal(loaded[-1][Role.FINAL_NORM], stored.bfloat16())


def test_progress_rises_to_one(folder):
    shares = []
    load(folder, report=shares.append)
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == pytest.approx(1.0)


def test_no_more_than_a_layer_is_read_ahead(folder, monkeypatch):
    """So that on a CPU plain weights never stand beside those laid out anew for more than two layers."""
    begun = []
    copy = Placer.copy

    def noted(self, target, source, first, end):
        begun.append(source.name)
        return copy(self, target, source, first, end)

    monkeypatch.setattr(Placer, "copy", noted)
    groups = load_weights(native_config(folder), folder, CPU, lambda _: None)
    next(groups)
    assert not [name for name in begun if name.startswith("model.layers.1.")]
    next(groups)
    assert not [name for name in begun if name.startswith("model.layers.2.")]
    groups.close()


@pytest.fixture
def single(tmp_path):
    return save_model(CONFIGS["llama, all biases"](), tmp_path)


@pytest.fixture
def tied(tmp_path):
    return save_model(CONFIGS["llama, tied"](), tmp_path)


def test_a_missing_tensor_is_named(single):
    edit(single, model__layers__2__mlp__up_proj__weight=None)
    with pytest.raises(ModelError, match=r"^its files lack the tensor model\.layers\.2\.mlp\.up_proj\.weight$"):
        load(single)


def test_a_tensor_of_another_shape_is_named(single):
    edit(single, model__layers__0__self_attn__k_proj__weight=torch.zeros(17, 48))
    with pytest.raises(ModelError, match=r"k_proj\.weight has the shape \[17, 48\], expected \[16, 48\]"):
        load(single)


def test_a_tensor_too_many_is_named(single):
    """It may mean that the model computes more than its configuration says; the way out is told."""
    edit(single, model__layers__0__self_attn__q_norm__weight=torch.zeros(8))
    with pytest.raises(ModelError, match=r"hold the tensor model\.layers\.0\.self_attn\.q_norm\.weight, which a llama"):
        load(single)


def test_frequencies_in_old_checkpoints_are_passed_over(single):
    edit(single, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4))
    assert len(load(single)) == 5


def test_a_quantized_tensor_is_named(single):
    edit(single, model__norm__weight=torch.ones(48, dtype=torch.int8))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as int8, expected float32"):
        load(single)


def test_a_torn_file_is_named(single):
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: the weights cannot be read"):
        load(single)


def test_a_shard_that_is_not_there_is_named(single):
    shard(single, load_file(single / "model.safetensors"))
    (single / "part-3.safetensors").unlink()
    with pytest.raises(ModelError, match=r"index\.json: it names part-3\.safetensors, and there is no such file"):
        load(single)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": []}'])
def test_an_index_that_is_none_is_refused(single, content):
    (single / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="weight_map"):
        load(single)


def test_no_weights_at_all_are_told(single):
    (single / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"found neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(single)


def test_a_tied_model_has_no_head(tied):
    assert [set(group) for group in load(tied)][-1] == {Role.FINAL_NORM}


def test_either_name_serves_both_ends_of_a_tied_model(tied):
    """Some checkpoints keep the head alone."""
    embedding = load(tied)[0][Role.EMBEDDING]
    edit(tied, model__embed_tokens__weight=None, lm_head__weight=embedding)
    groups = load(tied)
    assert torch.equal(groups[0][Role.EMBEDDING], embedding)
    assert set(groups[-1]) == {Role.FINAL_NORM}


@pytest.mark.parametrize("differs", [False, True])
def test_a_tied_model_with_a_head_of_its_own(tied, differs):
    """As transformers has it: tied where both are equal, else not."""
    head = load(tied)[0][Role.EMBEDDING] + differs
    edit(tied, lm_head__weight=head)
    last = load(tied)[-1]
    assert (Role.HEAD in last) == differs
    if differs:
        assert torch.equal(last[Role.HEAD], head)


def test_the_arithmetic_of_a_checkpoint(single):
    """What its configuration says; where that is silent, what its embedding is stored as."""
    config = native_config(single)
    assert checkpoint_dtype(config, single) == torch.float32
    edit(single, model__embed_tokens__weight=torch.zeros(199, 48).half())
    assert checkpoint_dtype(config, single) == torch.float32
    assert checkpoint_dtype(dataclasses.replace(config, dtype=None), single) == torch.float16


def test_random_weights_have_the_layout_of_real_ones(single):
    config = native_config(single)
    groups = list(random_weights(config, CPU, seed=0))
    for made, fused in zip(groups, layout(config), strict=True):
        assert {role: tuple(tensor.shape) for role, tensor in made.items()} == {each.role: each.shape for each in fused}
    assert torch.equal(groups[1][Role.INPUT_NORM], torch.ones(48))
    assert groups[0][Role.EMBEDDING].std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("name", ["llama, tied", "llama, all biases", "qwen3_moe, two layers of three"])
def test_elements_of_projections_are_counted(tmp_path, name):
    """Of all matrices but the embedding and experts; a tied head counts, as it is laid out anew too."""
    save_model(CONFIGS[name](), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    left_out = re.compile(r"embed|experts|mlp\.gate\.")
    matrices = sum(tensor.numel() for key, tensor in stored.items() if tensor.dim() == 2 and not left_out.search(key))
    assert num_linear_elements(native_config(tmp_path)) == matrices + ("lm_head.weight" not in stored) * 199 * 48
