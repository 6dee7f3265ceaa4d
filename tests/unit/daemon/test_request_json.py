"""Strict JSON: what other readers let pass is refused by name, and nothing escapes as another error."""

import json

import pytest

from daemon.request_json import MAX_DEPTH, check_text, read_json
from daemon.request_problem import InvalidRequestError


def fault(raw: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        check_text(read_json(raw), raw)
    return caught.value


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number"),
        (b'{"a": 1e999}', "the number 1e999 is too large"),
        (b'{"a": [-1E400]}', "the number -1E400 is too large"),
        (b'{"a": ' + b"9" * 400 + b".0}", "is too large"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" is there twice in one object'),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
        (b'{"a": "\xff"}', "found 0xff at byte 8"),
        (b'{"a": "\xed\xa0\x80"}', "found 0xed at byte 8"),
        (b'{"a": "\xc3"}', "found 0xc3 at byte 8"),
        (b"\xff\xfe{\x00", "found 0xff at byte 1"),
        (b'{"a": "\n"}', "at character 8"),
        (b'{"a": 1}\r{"b": 1}', "behind the end of the value"),
        (b'{"a": 1,}', "at character "),
        (b"\x00{}", "at character 1"),
        (b"", "found the end at character 1"),
    ],
)
def test_refusal_says_what_and_where(raw: bytes, text: str) -> None:
    error = fault(raw)
    assert error.code == "invalid_json_line"
    assert text in error.text


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_bounded_by_a_number_and_not_by_the_stack(depth: int, opening: bytes, closing: bytes) -> None:
    """The same line is refused from whatever depth of calls it is read."""
    assert "nested too deep" in fault(opening * depth + b"1" + closing * depth).text
    assert read_json(opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH)


def test_many_shallow_objects_are_not_taken_for_deep_ones() -> None:
    assert len(read_json(b"[" + b"{}," * 500 + b"{}]")) == 501


@pytest.mark.parametrize(
    ("raw", "param", "half"),
    [
        (b'{"a": {"b": ["x", "\\ud800"]}}', "a.b[1]", "\\ud800"),
        (b'{"a": "\\uDFFFx"}', "a", "\\udfff"),
        (b'{"a\\udc00": 1}', "a\\udc00", "\\udc00"),
        (b'{"a": "\\ude00\\ud83d"}', "a", "\\ude00"),
    ],
)
def test_half_a_surrogate_pair_is_refused_at_its_field(raw: bytes, param: str, half: str) -> None:
    error = fault(raw)
    assert (error.code, error.param) == ("invalid_value", param)
    assert half in error.text
    error.text.encode()


def test_whole_surrogate_pairs_and_escaped_backslashes_are_text() -> None:
    for text in ("\U0001f600", "\\ud800"):
        raw = json.dumps({"a": text}).encode()
        value = read_json(raw)
        check_text(value, raw)
        assert value == {"a": text}


def test_large_but_bounded_numbers_are_read() -> None:
    assert read_json(b"[1" + b"0" * 4000 + b"]") == [10**4000]
    raw = b"[1.7976931348623157e308, -1e308, 1e-999, 0.5, 1e3]"
    assert read_json(raw) == [1.7976931348623157e308, -1e308, 0.0, 0.5, 1000.0]
