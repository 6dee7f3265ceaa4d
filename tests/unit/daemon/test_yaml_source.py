"""YAML with places: what is read, where it stands, and the one line that each kind of broken file becomes."""

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.yaml_nodes import MAX_SHOWN_CHARS, Mark, describe, dotted
from daemon.yaml_schema import dump_yaml
from daemon.yaml_source import MAX_BYTES, parse_yaml, read_yaml

FILE = Path("c.yaml")


def plain(text: str) -> Any:
    source = parse_yaml(text, FILE)
    assert source.problems == ()
    assert source.root is not None
    return source.root.plain


def messages(text: str) -> list[str]:
    return [str(problem) for problem in parse_yaml(text, FILE).problems]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("~", None),
        ("", None),
        ("Null", None),
        ("12", 12),
        ("-0", 0),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-11-29", "2026-11-29"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("0.9", 0.9),
        ("1GiB", "1GiB"),
        ("=", "="),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ('!!int "12"', 12),
        ("'<<'", "<<"),
        (r'"\ud83d\ude00"', "\U0001f600"),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says(scalar: str, value: object) -> None:
    """The core schema of YAML 1.2 decides, not the wider rules of 1.1 that PyYAML brings."""
    read = plain(f"key: {scalar}\n")["key"]
    assert (read, type(read)) == (value, type(value))


def test_every_key_value_and_item_has_its_place() -> None:
    """Lines and columns count from 1, of keys and of values, in block and in flow style, after a byte order mark too."""
    source = parse_yaml("a: 1\nb:\n  - x\n  - {c: [2, 3]}\n", FILE)
    assert source.root is not None
    entries = source.root.entries
    assert (entries["a"].mark, entries["a"].node.mark) == (Mark(1, 1), Mark(1, 4))
    assert (entries["b"].mark, entries["b"].node.mark) == (Mark(2, 1), Mark(3, 3))
    inner = entries["b"].node.entries[1].node.entries["c"]
    assert (inner.mark, inner.node.entries[1].mark) == (Mark(4, 6), Mark(4, 13))


def test_a_path_is_followed_as_far_as_it_is_written() -> None:
    """What is missing is placed at the last key that is there."""
    root = parse_yaml("a: {b: 1}\n", FILE).root
    assert root is not None
    entry, is_whole = root.entries["a"].follow(("b", "c"))
    assert (entry.mark, is_whole) == (Mark(1, 5), False)


def test_keys_are_texts_whatever_they_look_like() -> None:
    """An engine may be called 1 or true."""
    assert plain("1: a\ntrue: b\n~: c\n") == {"1": "a", "true": "b", "~": "c"}


def test_an_alias_stands_for_its_anchor() -> None:
    """What YAML itself offers for saying a thing once works."""
    assert plain("a: &x {b: 1}\nc: *x\n") == {"a": {"b": 1}, "c": {"b": 1}}


def test_aliases_that_multiply_cost_no_more_than_they_are_long() -> None:
    """Ten lines that would spell a billion values are read at once: each node is converted once."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert plain("\n".join(lines))["a0"] == ["x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml: found an empty file, expected a mapping with the keys engines and pipelines"),
        ("# only this\n", "c.yaml: found an empty file, expected a mapping with the keys engines and pipelines"),
        ("a:\n\tb: 1\n", "c.yaml:2:1: found a tab, expected blanks"),
        ("a:\n  \tb: 1\n", "c.yaml:2:3: found a tab, expected blanks"),
        ("a:\tb\n", "c.yaml:1:3: found a tab, expected blanks"),
        (
            "a: b: c\n",
            (
                "c.yaml:1:5: found broken YAML (mapping values are not allowed here), expected well-formed YAML;"
                ' put a text that holds ": " or ends in ":" in quotes, or check the indentation'
            ),
        ),
        (
            "a: {b: fake:}\n",
            (
                "c.yaml:1:12: found broken YAML (while parsing a flow mapping: expected ',' or '}', but got ':'),"
                ' expected well-formed YAML; put a text that holds ": " or ends in ":" in quotes, or close a bracket before'
            ),
        ),
        (
            "a: {b: 1\n",
            (
                "c.yaml:2:1: found broken YAML (while parsing a flow mapping: expected ',' or '}', but got '<stream end>',"
                " since line 1), expected well-formed YAML; a bracket is not closed"
            ),
        ),
        (
            "a: 'x\n",
            (
                "c.yaml:2:1: found broken YAML (while scanning a quoted scalar: found unexpected end of stream,"
                " since line 1), expected well-formed YAML; a quote is not closed"
            ),
        ),
        (
            "a:\n  b: 1\n c: 2\n",
            (
                "c.yaml:3:2: found broken YAML (while parsing a block mapping: expected <block end>,"
                " but found '<block mapping start>', since line 1), expected well-formed YAML; check the indentation"
            ),
        ),
        (
            "a: @x\n",
            (
                "c.yaml:1:4: found broken YAML (while scanning for the next token: found character '@'"
                " that cannot start any token), expected well-formed YAML; put the text in quotes"
            ),
        ),
        (
            "a: *x\n",
            (
                "c.yaml:1:4: found broken YAML (found undefined alias 'x'), expected well-formed YAML;"
                " put a text that begins with * in quotes"
            ),
        ),
        ("a: 1\n---\nb: 1\n", "c.yaml:2:1: found a second document (---), expected one document a file"),
        ("a: " + "[" * 40 + "]" * 40, "c.yaml:1:35: found nested more than 32 levels deep, expected at most 32 levels"),
        ("a: \x01\n", "c.yaml:1:4: found the character U+0001, which YAML does not allow, expected a YAML file"),
        (
            'a: 1\nb: "\\UFFFFFFFF"\n',
            "c.yaml:2:7: found an escape that is no character, expected an escape of at most \\U0010FFFF",
        ),
        (
            'a: "\\ud83d"\n',
            ('c.yaml:1:4: a: found half a character in "\\ud83d", expected whole characters'),
        ),
        ('"\\udc00": 1\n', 'c.yaml:1:1: found half a character in the key "\\udc00", expected whole characters'),
        ("a: &x [*x]\n", "c.yaml:1:4: a.0: found an alias to what it stands in, expected a value"),
        (
            "a: !!python/name:os.system x\n",
            'c.yaml:1:4: a: found the tag "!!python/name:os.system", expected a value without a tag',
        ),
        ("a: !mine {}\n", 'c.yaml:1:4: a: found the tag "!mine", expected a value without a tag'),
        ("a: !!int x\n", 'c.yaml:1:4: a: found the tag !!int on "x", expected a value without a tag'),
        ("? [a]\n: b\n", "c.yaml:1:3: found a key that is no plain text, expected a text as the key"),
        (
            "a: &x {b: 1}\nc:\n  <<: *x\n",
            "c.yaml:3:3: c: found a merge key (<<), which YAML 1.2 does not have, expected the keys themselves",
        ),
        (f"a: {'1' * 101}\n", "c.yaml:1:4: a: found a number of 101 digits, expected at most 100"),
        (
            "a:\n  b: 1\n  c: 2\n  b: 3\n",
            "c.yaml:4:3: a.b: found the same key a second time, expected it once; the first is at line 2, column 3",
        ),
    ],
)
def test_what_is_wrong_in_the_yaml_is_one_line_with_its_place(text: str, message: str) -> None:
    """Each kind of broken YAML has a message of its own."""
    assert messages(text) == [message]


def test_what_follows_a_mistake_is_read_all_the_same() -> None:
    """Mistakes that leave the rest readable are all reported, and the rest is there."""
    source = parse_yaml("a: !x 1\na: 2\nb: 3\n? [q]\n: 4\n", FILE)
    assert [problem.line for problem in source.problems] == [1, 2, 4]
    assert source.root is not None
    assert source.root.plain == {"a": None, "b": 3}
    assert source.refused == {("a",)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbfa: \xff\n", ":1:4: found a byte that is no UTF-8 text (0xff), expected a YAML file in UTF-8"),
        (b"a: \xff\n", ":1:4: found a byte that is no UTF-8 text (0xff), expected a YAML file in UTF-8"),
        (
            b"\xef\xbb\xbfa: 1\r\nb: \xff",
            ":2:4: found a byte that is no UTF-8 text (0xff), expected a YAML file in UTF-8",
        ),
        (b"GGUF\x00\x00", ":1:5: found the character U+0000, which YAML does not allow, expected a YAML file"),
        (b" " * (MAX_BYTES + 1), ": found more than 1048576 bytes, expected a YAML file"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    """Weights, archives and texts in other encodings are recognised before YAML is tried."""
    file = tmp_path / "c.yaml"
    file.write_bytes(data)
    assert [str(problem) for problem in read_yaml(file).problems] == [f"{file}{message}"]


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    """A file saved by a Windows editor has the same values at the same places."""
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    root = read_yaml(file).root
    assert root is not None
    assert root.plain == {"a": 1, "b": "x"}
    assert (root.entries["a"].mark, root.entries["b"].node.mark) == (Mark(1, 1), Mark(2, 4))


def test_a_file_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    """Missing, a folder, or refused by the system: each says which."""
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    cases = {
        tmp_path / "none.yaml": "found no such file, expected a YAML file",
        tmp_path: "found a folder, expected a YAML file",
        tmp_path / "none.yaml" / "c.yaml": "found no such file, expected a YAML file",
        loop: "found a file that cannot be read (Too many levels of symbolic links), expected a readable YAML file",
    }
    for file, message in cases.items():
        assert [str(problem) for problem in read_yaml(file).problems] == [f"{file}: {message}"]


def test_messages_stay_short_and_on_one_line() -> None:
    """Long values are cut; line ends and terminal escapes in values and keys are shown escaped."""
    assert describe("x" * 1000) == 'text "' + "x" * (MAX_SHOWN_CHARS - 3) + '..."'
    assert describe("a\nb\x1b[2J\x9b") == r'text "a\nb\u001b[2J\u009b"'
    assert describe("gr\u00fc\u00df") == 'text "gr\u00fc\u00df"'
    assert dotted(("engines", "a\nb", "c.d", 0)) == r'engines."a\nb"."c.d".0'


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS
)
_LOOKALIKES = st.sampled_from(
    ["yes", "1e3", "0o7", "0x1", ".5", "~", "null", "1_0", "1:30", "=", "<<", "2026-01-01", "- a", "#", ""]
)
_DATA = st.dictionaries(
    _TEXTS,
    st.recursive(_SCALARS | _LOOKALIKES, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner), max_leaves=8),
    min_size=1,
)


@given(_DATA)
@hypothesis.settings(deadline=None)
def test_what_is_written_is_read_back_equal(data: dict[str, Any]) -> None:
    """The writer quotes whatever the reader would take for something else, and keeps every character of every text."""
    source = parse_yaml(dump_yaml(data), FILE)
    assert [str(problem) for problem in source.problems] == []
    assert source.root is not None
    assert source.root.plain == data


@given(st.text(st.sampled_from("ab1:-?[]{},&*!|>'\"%@#\t\n \\u\ud800~.<e"), max_size=40))
@hypothesis.settings(deadline=None)
def test_no_text_makes_the_reader_raise(text: str) -> None:
    """Whatever stands in the file, the outcome is a value or problems of one line each."""
    source = parse_yaml(text.replace("\ud800", "\\ud800"), FILE)
    assert source.root is not None or source.problems
    assert all("\n" not in str(problem) for problem in source.problems)
