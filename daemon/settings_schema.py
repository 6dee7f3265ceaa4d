"""Writes the JSON Schema of the YAML file from the sections themselves, for editors that complete and check as one types.

`python -m daemon.settings_schema > configs/gapless.schema.json`

It takes what the daemon takes, as it is ordinarily written. What only the daemon can know (rules between keys, names of
engines, what exists on the disk) it leaves to `gapless check`.
"""

import json
import sys
from typing import Any

from daemon.settings_checks import NAME_PATTERN, NAME_TEXT
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import SIZE_TEXT, Section, format_size
from daemon.settings_pipeline import PipelineSettings

SCHEMA_TITLE = "The configuration of Gapless"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # the one that editors agree on
_DROPPED = frozenset({"title", "$defs", "change", "expected"})


def render_schema() -> str:
    """Return the schema as JSON text."""
    schema = {
        "$schema": _DIALECT,
        "title": SCHEMA_TITLE,
        "description": "One YAML file, or one of several that together are the configuration.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "daemon": _section(DaemonSettings),
            "engines": _named(EngineSettings, "The engines by name: each is a model on a device."),
            "pipelines": _named(PipelineSettings, "The pipelines by name: each is a set of folders with an engine."),
        },
    }
    return json.dumps(schema, indent=2) + "\n"


def _section(kind: type[Section]) -> dict[str, Any]:
    raw = kind.model_json_schema()
    return _simplify(raw, raw.get("$defs", {}))


def _named(kind: type[Section], description: str) -> dict[str, Any]:
    names = {"pattern": f"^{NAME_PATTERN}$", "description": f"A name has {NAME_TEXT}."}
    return {
        "description": description,
        "type": ["object", "null"],
        "propertyNames": names,
        "additionalProperties": _section(kind),
    }


def _simplify(node: dict[str, Any], definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what pydantic says, with references filled in, without its titles and our notes, and null as one more type.

    Editors pass over what stands beside a reference, so none is left. The tree has no cycles.
    """
    merged = _fill_in(node, definitions)
    plain = {name: child for name, child in merged.items() if name not in _DROPPED}
    if "properties" in plain:
        plain["properties"] = {key: _simplify(below, definitions) for key, below in plain["properties"].items()}
        if not plain.get("required"):
            plain["type"] = ["object", "null"]  # an empty section has its defaults
    if isinstance(plain.get("items"), dict):
        plain["items"] = _simplify(plain["items"], definitions)
    if "anyOf" in plain:
        plain["anyOf"] = [_simplify(option, definitions) for option in plain["anyOf"]]
    return _with_null(_with_words(plain, str(merged.get("expected", ""))))


def _with_words(plain: dict[str, Any], expected: str) -> dict[str, Any]:
    """Return the schema of a key with what it takes in words, where its type does not say it."""
    if expected and not plain.keys().isdisjoint(("pattern", "anyOf")):
        plain["description"] = f"{plain['description']} Takes {expected}."
    default = plain.get("default")
    if expected == SIZE_TEXT and isinstance(default, int):
        plain["default"] = format_size(default)
    return plain


def _fill_in(node: dict[str, Any], definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the node with what its reference points at; what stands beside the reference wins."""
    if "$ref" not in node:
        return node
    target = definitions[str(node["$ref"]).rpartition("/")[2]]
    return target | {name: child for name, child in node.items() if name != "$ref"}


def _with_null(plain: dict[str, Any]) -> dict[str, Any]:
    """Return `anyOf` a single-typed schema and null as that schema with two types, which editors show better."""
    options: list[dict[str, Any]] = plain.get("anyOf", [])
    others = [option for option in options if option != {"type": "null"}]
    if len(options) != len(others) + 1 or len(others) != 1 or not isinstance(others[0].get("type"), str):
        return plain
    schema = others[0] | {name: child for name, child in plain.items() if name != "anyOf"}
    schema["type"] = [others[0]["type"], "null"]
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    return schema


if __name__ == "__main__":
    sys.stdout.write(render_schema())
