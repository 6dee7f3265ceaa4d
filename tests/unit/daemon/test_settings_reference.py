"""The reference page says what the code does."""

from pathlib import Path

import pytest

from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import Change, Section, iterate_keys, note
from daemon.settings_pipeline import PipelineSettings
from daemon.settings_reference import render_reference
from daemon.settings_report import UNBUILT_KEYS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"


def test_the_committed_page_is_the_generated_one() -> None:
    """`python -m daemon.settings_reference > docs/reference/configuration.md` has been run after the last change."""
    assert PAGE.read_text() == render_reference()


@pytest.mark.parametrize("kind", [DaemonSettings, EngineSettings, PipelineSettings])
def test_every_key_is_described_in_a_line_and_says_when_a_change_takes_effect(kind: type[Section]) -> None:
    """No key is added without the words that a person needs."""
    for path, field in iterate_keys(kind):
        assert field.description, path
        assert "\n" not in field.description, path
        assert field.description.endswith("."), path
        assert note(field, "change") in list(Change), path


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("daemon.spool", "| a path | `./spool` |"),
        ("daemon.min_free_bytes", "| a size in bytes, such as 1GiB, 512MB or 1048576 | `1GiB` |"),
        ("engines.NAME.model.path", "| required |"),
        ("engines.NAME.schedule", "| one of async, sync | `async` |"),
        ("engines.NAME.kv_cache.memory_fraction", "| a number above 0 and at most 1 | `0.9` |"),
        ("pipelines.NAME.models", "| a list of texts | `[]` |"),
        ("pipelines.NAME.sampling.max_tokens", "| a whole number from 1 to 2147483647, or null | `null` |"),
    ],
)
def test_a_row_says_what_a_key_takes_and_its_default(key: str, row: str) -> None:
    """Types, ranges and defaults come from the declaration."""
    (line,) = [line for line in render_reference().splitlines() if line.startswith(f"| `{key}` |")]
    assert row in line
    assert line.count("|") == 6


def test_what_is_not_built_is_listed() -> None:
    """Nobody has to try."""
    assert all(f"- `{key.replace('*', 'NAME')}`\n" in render_reference() for key in UNBUILT_KEYS)
