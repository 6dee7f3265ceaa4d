"""A first configuration names a schema that is there and takes it."""

import json
from argparse import Namespace

import jsonschema
import pytest
import yaml

from daemon.command_init import init
from daemon.errors import CommandError
from daemon.settings_schema import render_schema


def options(path, **changes):
    return Namespace(**{"output": path, "force": False, "yes": True, "model": None, "folder": None} | changes)


@pytest.mark.parametrize("name", ["gapless.yaml", "other.yml"])
def test_the_schema_that_its_first_line_names_lies_beside_it_and_takes_it(tmp_path, name):
    """It is that of this version, also where an earlier one had written its own."""
    path, schema = tmp_path / name, tmp_path / "gapless.schema.json"
    schema.write_text('{"title": "The configuration of Gapless", "type": "string"}')
    assert init(options(path)) == 0
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=gapless.schema.json"
    assert schema.read_text() == render_schema()
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads(schema.read_text()))


@pytest.mark.parametrize("content", ["{}", "[]", "mine", "\xff"])
def test_nobody_elses_file_is_replaced(tmp_path, content):
    (tmp_path / "gapless.schema.json").write_text(content, encoding="latin-1")
    with pytest.raises(CommandError, match="found something else than the schema of Gapless"):
        init(options(tmp_path / "gapless.yaml", force=True))
    assert (tmp_path / "gapless.schema.json").read_text(encoding="latin-1") == content
    assert not (tmp_path / "gapless.yaml").exists()


def test_a_folder_that_is_not_there_is_named_before_anything_is_asked(tmp_path):
    """And not the draft that would have been written into it."""
    path = tmp_path / "none" / "gapless.yaml"
    with pytest.raises(CommandError, match=f"--output {path}: found no folder {path.parent}, expected one that exists"):
        init(options(path, yes=False))
