"""What a model folder's configuration files say is read as its authors meant it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import ModelError
from pipelines.models.facts import ModelFacts, SamplingDefaults, read_facts


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return folder


def test_a_silent_model_samples_at_temperature_one(tmp_path: Path) -> None:
    assert SamplingDefaults.read(tmp_path) == SamplingDefaults(temperature=1.0, top_k=0, top_p=1.0)


def test_the_models_own_settings_are_the_defaults(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [151645, 151643]}
    found = SamplingDefaults.read(write(tmp_path, generation_config=generation))
    assert found == SamplingDefaults(0.6, 20, 0.95, (151645, 151643))


def test_a_model_that_asks_for_greedy_gets_it(tmp_path: Path) -> None:
    """`do_sample: false` wins over a temperature beside it, as in transformers."""
    assert (
        SamplingDefaults.read(write(tmp_path, generation_config={"do_sample": False, "temperature": 0.7})).temperature
        == 0
    )


def test_end_of_sequence_comes_from_the_configuration_where_the_generation_config_is_silent(tmp_path: Path) -> None:
    found = SamplingDefaults.read(write(tmp_path, config={"eos_token_id": 7}, generation_config={"bos_token_id": 1}))
    assert found.eos_ids == (7,)


def test_settings_that_are_not_applied_are_named(tmp_path: Path) -> None:
    generation = {"repetition_penalty": 1.05, "min_p": 0.0, "suppress_tokens": [], "typical_p": 1.0}
    assert SamplingDefaults.read(write(tmp_path, generation_config=generation)).not_applied == (
        "repetition_penalty=1.05",
    )


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        SamplingDefaults.read(write(tmp_path, generation_config=content))


def test_sizes_come_from_the_text_part_of_the_configuration(tmp_path: Path) -> None:
    write(tmp_path, config={"model_type": "llama", "vocab_size": 300, "max_position_embeddings": 64})
    assert read_facts(tmp_path) == ModelFacts(vocab_size=300, context=64)


def test_a_model_without_a_fixed_context_is_told_apart(tmp_path: Path) -> None:
    """Position schemes without an end name none; then the configuration of the engine has to."""
    write(tmp_path, config={"model_type": "bloom", "vocab_size": 300})
    assert read_facts(tmp_path) == ModelFacts(vocab_size=300, context=None)


def test_a_configuration_that_transformers_does_not_know_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, config={"model_type": "no_such_model"})
    with pytest.raises(ModelError, match="no_such_model") as caught:
        read_facts(tmp_path)
    assert "\n" not in str(caught.value)
