"""Cutting a JSON array into elements, whatever its chunks and whatever is broken in it."""

import io
import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.array_reader import ArraySplitter, Element, read_document
from daemon.errors import FileFormatError
from daemon.request_record import Unreadable

DOCUMENT = rb"""
 [ {"a": "x,]}\"\\", "b": [1, {"c": []}]} ,
{"\\": "\\\\"}
,"[,{", 3, null,

 [[], [1,2]]
 ] """


def elements(chunks: Iterable[bytes], max_bytes: int = 1 << 20) -> list[Element]:
    """Split what stands behind the opening bracket."""
    splitter = ArraySplitter(1, max_bytes)
    found = [element for chunk in chunks for element in splitter.feed(chunk)]
    return found + list(splitter.finish())


def document(raw: bytes, max_bytes: int = 1 << 20) -> list[Element]:
    return list(read_document(io.BufferedReader(io.BytesIO(raw)), "in.json", max_bytes))


def values(found: list[Element]) -> list[object]:
    return [json.loads(content) for _, content in found if isinstance(content, bytes)]


def fault(found: list[Element]) -> tuple[int, str]:
    """Return line and text of the last element, which is the one that cannot be read."""
    line, content = found[-1]
    assert isinstance(content, Unreadable)
    return line, content.text


def test_elements_and_their_lines() -> None:
    found = document(DOCUMENT)
    assert values(found) == json.loads(DOCUMENT)
    assert [line for line, _ in found] == [2, 3, 4, 4, 4, 6]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_small_chunks_change_nothing(size: int) -> None:
    inside = DOCUMENT[DOCUMENT.index(b"[") + 1 :]
    chunks = [inside[i : i + size] for i in range(0, len(inside), size)]
    assert elements(chunks) == elements([inside])


def test_a_border_at_every_byte_changes_nothing() -> None:
    inside = DOCUMENT[DOCUMENT.index(b"[") + 1 :]
    whole = elements([inside])
    for border in range(len(inside) + 1):
        assert elements([inside[:border], inside[border:]]) == whole


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab\\"[]{},\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a\\"]'), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON_VALUES, max_size=5), st.sampled_from([None, 1]), st.lists(st.integers(0, 400), max_size=4))
def test_splitting_equals_reading_whole(items: list[object], indent: int | None, borders: list[int]) -> None:
    """For any JSON values, layout and chunks the elements are those of json.loads."""
    inside = json.dumps(items, indent=indent).encode()[1:]
    cuts = [0, *sorted(borders), len(inside)]
    found = elements(inside[a:b] for a, b in pairwise(cuts))
    assert values(found) == items
    assert len(found) == len(items)


@given(st.binary(max_size=60) | st.text(alphabet='[]{},"\\a \n', max_size=60).map(str.encode), st.integers(1, 60))
def test_no_bytes_make_it_fail_and_chunks_never_matter(raw: bytes, border: int) -> None:
    assert elements([raw[:border], raw[border:]]) == elements([raw])


def test_empty_array_has_no_elements() -> None:
    assert document(b"[]") == document(b" [ \n ] \n") == []


def test_fault_within_an_element_stays_there() -> None:
    found = document(b'[{"a": tru}, {"b": 1], {"c": 1} {"d": 1}, 5]')
    assert [content for _, content in found] == [b'{"a": tru}', b'{"b": 1]', b'{"c": 1} {"d": 1}', b"5"]


@pytest.mark.parametrize(
    ("raw", "good", "line", "text"),
    [
        (b"[", 0, 1, "found the end of the file"),
        (b'[{"a": 1}', 1, 1, "found the end of the file"),
        (b'[{"a": 1},\n', 1, 2, "found the end of the file"),
        (b'[{"a": 1},\n{"a', 1, 2, "found the end of the file"),
        (b'[{"a": 1},\n{"a": 2\n\n', 1, 2, "found the end of the file"),
        (b'[1, "x', 1, 1, "found the end of the file"),
        (b"[1\n}, 2]", 1, 2, "found }"),
        (b"[1]\n x, 2]", 1, 2, "found more text behind"),
        (b"[1][2]", 1, 1, "found more text behind"),
        (b"[1,\n]", 1, 2, "found nothing"),
        (b"[1,]", 1, 1, "found nothing"),
    ],
)
def test_break_of_the_array_is_one_unreadable_element(raw: bytes, good: int, line: int, text: str) -> None:
    """What came before are elements; nothing behind it is looked at."""
    found = document(raw)
    assert len(found) == good + 1
    assert len(values(found)) == good
    assert fault(found)[0] == line
    assert fault(found)[1].startswith(text)


def test_missing_element_between_commas_does_not_hide_the_next() -> None:
    found = document(b"[1,,2]")
    assert values(found) == [1, 2]
    assert isinstance(found[1][1], Unreadable)


def test_oversized_element_is_one_unreadable_element_and_the_next_is_read() -> None:
    found = document(b'[1,\n"' + b"x\n" * 500 + b'",\n2]', max_bytes=100)
    assert values(found) == [1, 2]
    assert found[1] == (2, Unreadable("found 1002 bytes, expected at most 100"))
    assert found[2][0] == 503


@pytest.mark.parametrize("raw", [b'{"a": 1}', b'\xef\xbb\xbf {"a": 1}\n', b"\n" * 3 + b'{"a": 1}'])
def test_single_object(raw: bytes) -> None:
    ((line, content),) = document(raw)
    assert json.loads(content) == {"a": 1}
    assert line == raw.count(b"\n", 0, raw.index(b"{")) + 1


def test_space_before_the_document_may_be_long() -> None:
    assert document(b"\xef\xbb\xbf" + b"\n" * 600_000 + b"[7]") == [(600_001, b"7")]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "found nothing"),
        (b" \n", "found nothing"),
        (b'"text"', 'found "\\"text\\""'),
        (b"\xff\xfe[\x00", "expected a JSON object or an array"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1}\n{"a": 2}\n', "one object a line is .jsonl"),
        (b'{"a": "' + b"x" * 200 + b'"}', "found an object of more than 100 bytes"),
    ],
)
def test_what_is_neither_fails_the_file(raw: bytes, text: str) -> None:
    with pytest.raises(FileFormatError, match=r"^in\.json: ") as caught:
        document(raw, max_bytes=100)
    assert text in str(caught.value)
