"""JSON as it is written into files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.json_text import json_document, json_line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_line_is_one_line_for_every_reader(value: dict[str, Any]) -> None:
    """No character in it ends a line for `splitlines`; it is UTF-8 and says the same after parsing."""
    line = json_line(value)
    assert line.decode().splitlines() == [line.decode().removesuffix("\n")]
    assert json.loads(line) == value
    assert json.loads(json_document(value)) == value


def test_text_stays_readable() -> None:
    """Other scripts are written as they are, and without blanks between."""
    assert (
        json_line({"a": "\u00fc\u65e5\U0001f600", "b": [1, 2]}) == '{"a":"\u00fc\u65e5\U0001f600","b":[1,2]}\n'.encode()
    )


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\n", "\r", "\x0b", "\x1c"])
def test_what_ends_a_line_is_escaped(character: str) -> None:
    """In keys and in values."""
    line = json_line({character: f"a{character}b"})
    assert line.decode().count(character) == (1 if character == "\n" else 0)
    assert json.loads(line) == {character: f"a{character}b"}


def test_a_lone_surrogate_becomes_its_escape() -> None:
    """The file stays UTF-8, and a JSON reader gets back what was there."""
    assert json_line({"a": "x\ud800\udcff"}) == b'{"a":"x\\ud800\\udcff"}\n'
    assert json_document({"a": "\udcff"}).decode() == '{\n  "a": "\\udcff"\n}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_has_no_word_for_is_refused(value: float) -> None:
    """Never the bare NaN that other parsers choke on."""
    with pytest.raises(ValueError, match="JSON"):
        json_line({"a": value})
    with pytest.raises(ValueError, match="JSON"):
        json_document({"a": value})
