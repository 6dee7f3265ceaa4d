"""The page of model families says what the engine does with them."""

import re
from pathlib import Path

import pytest
from model_families import FAMILIES, Verdict, both_tokens, classify, page

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
ROWS = [re.fullmatch(r"\| `(\w+)` \| [^|]+ \| (\w+) \| (.*) \|", line) for line in PAGE.splitlines()]
VERDICTS = {row[1]: Verdict(row[2], row[3]) for row in ROWS if row is not None}
SERVED = [model_type for model_type, verdict in VERDICTS.items() if verdict.runs_as != "refused"]
SAMPLE = ("gemma3_text", "granite", "ministral", "qwen3_moe")  # by both, with windows, factors and experts


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_runs_as_the_page_says(model_type: str, tmp_path: Path) -> None:
    """Loaded as the engine loads it; a refusal is quoted word by word."""
    folder = FAMILIES[model_type].save(model_type, tmp_path / model_type)
    assert classify(folder).row(model_type) in PAGE.splitlines()


def test_the_page_is_what_its_script_prints() -> None:
    """With the rows that the tests here hold: nothing else stands on it, and no family is missing."""
    assert list(VERDICTS) == list(FAMILIES)
    assert page(VERDICTS) == PAGE


def _assert_tokens_are_equal(model_type: str, folder: Path) -> None:
    ours, theirs = both_tokens(FAMILIES[model_type].save(model_type, folder / model_type))
    assert len({tuple(tokens) for tokens in theirs}) == len(theirs)
    assert ours == theirs


@pytest.mark.parametrize("model_type", SAMPLE)
def test_tokens_are_those_of_generate(model_type: str, tmp_path: Path) -> None:
    """Of three prompts side by side, in float32; a sample of what the soak test does."""
    _assert_tokens_are_equal(model_type, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("model_type", [served for served in SERVED if served not in SAMPLE])
def test_tokens_of_all_families_are_those_of_generate(model_type: str, tmp_path: Path) -> None:
    """All others that are not refused."""
    _assert_tokens_are_equal(model_type, tmp_path)
