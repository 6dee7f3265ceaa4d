"""JSON as it is written into files: UTF-8, on one line for every reader or indented for people."""

import json
from collections.abc import Mapping
from typing import Any

_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_BREAKS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def json_line(value: Mapping[str, Any]) -> bytes:
    """Return compact JSON with a newline.

    U+0085, U+2028 and U+2029 end a line for some readers (`str.splitlines`), so they are escaped.
    """
    text = _ENCODE(value)
    for character, escape in _BREAKS:
        if character in text:
            text = text.replace(character, escape)
    return utf8(text) + b"\n"


def json_document(value: Mapping[str, Any]) -> bytes:
    """Return indented JSON with a newline at its end."""
    return utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)) + b"\n"


def utf8(text: str) -> bytes:
    r"""Return text as UTF-8; a lone surrogate, which that cannot hold, becomes `\udXXX`, which within JSON is its escape."""
    return text.encode("utf-8", "backslashreplace")
