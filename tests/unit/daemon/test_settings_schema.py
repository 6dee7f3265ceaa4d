"""The JSON Schema of the YAML file: an editor that goes by it agrees with the daemon."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from jsonschema import Draft7Validator
from test_settings_mistakes import ENGINES, PIPELINES, table
from test_settings_round_trip import CONFIGS, load

from daemon.settings import render_effective
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import Section, format_size, iterate_keys
from daemon.settings_pipeline import PipelineSettings
from daemon.settings_report import UNBUILT_KEYS
from daemon.settings_schema import render_schema
from daemon.yaml_source import read_yaml

FILE = Path(__file__).parents[3] / "configs" / "gapless.schema.json"
SCHEMA = json.loads(render_schema())
VALIDATOR = Draft7Validator(SCHEMA)
SECTIONS: dict[str, tuple[type[Section], dict[str, Any]]] = {
    "daemon": (DaemonSettings, SCHEMA["properties"]["daemon"]),
    "engines.*": (EngineSettings, SCHEMA["properties"]["engines"]["additionalProperties"]),
    "pipelines.*": (PipelineSettings, SCHEMA["properties"]["pipelines"]["additionalProperties"]),
}


def find(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    """Return what the schema says of a key, None where it does not know it."""
    for name in path:
        below = schema.get("properties", {}).get(name)
        if below is None:
            return None
        schema = below
    return schema


def test_the_committed_schema_is_the_generated_one() -> None:
    """`python -m daemon.settings_schema > configs/gapless.schema.json` has been run after the last change."""
    assert FILE.read_text(encoding="utf-8") == render_schema()


def test_it_is_a_schema() -> None:
    """Its own dialect has nothing against it."""
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("top", SECTIONS)
def test_every_key_has_its_words_and_its_default(top: str) -> None:
    """An editor shows for each key what the reference page says."""
    kind, schema = SECTIONS[top]
    for path, field in iterate_keys(kind):
        said = find(schema, path)
        assert said is not None, path
        assert said["description"].startswith(str(field.description)), path
        assert ("default" in said) is not field.is_required(), path
        if not field.is_required():
            assert Draft7Validator(said).is_valid(said["default"]), path


def test_sizes_stand_with_their_unit() -> None:
    """A default of 1073741824 would say nothing to a person."""
    said = find(SECTIONS["daemon"][1], ("min_free_bytes",))
    assert said is not None
    assert said["default"] == format_size(2**30) == "1GiB"


def test_what_is_not_built_is_not_offered() -> None:
    """No editor completes a key that the daemon refuses."""
    for name in UNBUILT_KEYS:
        top = next(top for top in SECTIONS if name.startswith(f"{top}."))
        assert find(SECTIONS[top][1], tuple(name.removeprefix(f"{top}.").split("."))) is None, name


@given(CONFIGS)
@hypothesis.settings(deadline=None, max_examples=20)
def test_what_the_daemon_takes_has_no_mistake_in_an_editor(config: dict[str, Any]) -> None:
    """As it is written, and with every key filled in."""
    with tempfile.TemporaryDirectory() as name:
        effective = Path(name) / "effective.yaml"
        effective.write_text(render_effective(load(Path(name), json.dumps(config))), encoding="utf-8")
        root = read_yaml(effective).root
    assert root is not None
    for plain in (config, root.plain):
        assert [error.message for error in VALIDATOR.iter_errors(plain)] == []


@pytest.mark.parametrize(
    "text",
    ["daemon:\nengines:\npipelines:\n", "daemon: {http: , log: }\n", "daemon: {min_free_bytes: 1.5 gib}\n"],
)
def test_empty_sections_and_sizes_in_any_case_have_no_mistake_either(tmp_path: Path, text: str) -> None:
    """YAML writes them so."""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    source = read_yaml(file)
    assert source.root is not None
    assert [error.message for error in VALIDATOR.iter_errors(source.root.plain)] == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        case
        for case in table()
        if re.search(r"unknown key|not built|expected true or false|expected one of (?!the engines)", case[1])
    ],
)
def test_an_editor_shows_wrong_keys_and_words(tmp_path: Path, text: str, line: str) -> None:
    """What a person mistypes is marked before the daemon ever sees it."""
    sections = [text.replace("^", "")]
    sections += [default for key, default in (("engines", ENGINES), ("pipelines", PIPELINES)) if f"{key}:" not in text]
    file = tmp_path / "c.yaml"
    file.write_text("\n".join(sections))
    source = read_yaml(file)
    assert source.root is not None
    assert not VALIDATOR.is_valid(source.root.plain), line
