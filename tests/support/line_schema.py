"""Our own schema of a line of an output or errors file."""

import json
from pathlib import Path

from jsonschema import Draft202012Validator

_SCHEMA = Path(__file__).parent.parent / "data" / "line_schema.json"


def line_validator():
    """Return a validator of the lines of output and errors files."""
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
