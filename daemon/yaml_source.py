"""Reads a YAML file so that the place of every key and value is kept.

What is wrong in the YAML itself becomes a `Problem`; as much as can be read beside it is read all the same.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from daemon.errors import Problem
from daemon.yaml_nodes import Mark, YamlEntry, YamlNode, cut, dotted, quote
from daemon.yaml_schema import KIND_BY_TAG, MAX_DEPTH, TAG_PREFIX, Loader

MAX_BYTES = 1 << 20  # more is some other file given by mistake
MAX_NUMBER_CHARS = 100
_SYNTAX_HINTS = (  # words of PyYAML's -> what mends the usual slip behind them
    (
        "mapping values are not allowed here",
        'put a text that holds ": " or ends in ":" in quotes, or check the indentation',
    ),
    ("but got ':'", 'put a text that holds ": " or ends in ":" in quotes, or close a bracket before'),
    ("could not find expected ':'", "a key ends in a colon and a blank"),
    ("expected <block end>", "check the indentation"),
    ("<stream end>", "a bracket is not closed"),
    ("unexpected end of stream", "a quote is not closed"),
    ("unknown escape character", "in double quotes write a backslash twice, or use single quotes"),
    ("that cannot start any token", "put the text in quotes"),
    ("undefined alias", "put a text that begins with * in quotes"),
)
_CONFIGURATION = "a mapping with the keys engines and pipelines"
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class YamlSource:
    """What one file holds."""

    file: Path  # as it was given
    root: YamlNode | None  # None where nothing could be read
    problems: tuple[Problem, ...]
    refused: frozenset[tuple[str | int, ...]] = frozenset()  # paths of values that have a problem; they read as null


def read_yaml(file: Path, holds: str = _CONFIGURATION) -> YamlSource:
    """Read `file`, which should hold what `holds` says. Nothing is raised: what is wrong stands in the source's problems."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return _unreadable(file, None, "no such file", "a YAML file")
    except IsADirectoryError:
        return _unreadable(file, None, "a folder", "a YAML file")
    except OSError as error:
        return _unreadable(file, None, f"a file that cannot be read ({error.strerror})", "a readable YAML file")
    if len(data) > MAX_BYTES:
        return _unreadable(file, None, f"more than {MAX_BYTES} bytes", "a YAML file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()
        found = f"a byte that is no UTF-8 text (0x{error.object[error.start]:02x})"
        return _unreadable(file, _mark_after(before), found, "a YAML file in UTF-8")
    return parse_yaml(text, file, holds)


def parse_yaml(text: str, file: Path, holds: str = _CONFIGURATION) -> YamlSource:
    """Read the YAML in `text`; `file` and `holds` are named in the problems."""
    try:
        loader = Loader(text)
    except ReaderError as error:
        found = f"the character U+{error.character:04X}, which YAML does not allow"
        return _unreadable(file, _mark_after(text[: error.position]), found, "a YAML file")
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        return _syntax_problem(file, text, error)
    except (ValueError, OverflowError):  # an escape such as \UFFFFFFFF, beyond the last character
        mark = _mark_of(loader.get_mark())
        return _unreadable(file, mark, "an escape that is no character", "an escape of at most \\U0010FFFF")
    finally:
        loader.dispose()
    if node is None:
        return _unreadable(file, None, "an empty file", holds)
    converter = _Converter(file)
    root = converter.convert(node, ())
    return YamlSource(file, root, tuple(converter.problems), frozenset(converter.refused))


def _unreadable(file: Path, mark: Mark | None, found: str, expected: str, hint: str = "") -> YamlSource:
    line, column = mark or (None, None)
    return YamlSource(file, None, (Problem(file, line, column, "", found, expected, hint),))


def _mark_of(mark: Any) -> Mark:
    """Return the place of PyYAML's `mark`, which counts from 0."""
    return Mark(mark.line + 1, mark.column + 1)


def _mark_after(text: str) -> Mark:
    lines = re.split(r"\r\n|\r|\n", text)
    return Mark(len(lines), len(lines[-1]) + 1)


def _syntax_problem(file: Path, text: str, error: yaml.MarkedYAMLError) -> YamlSource:
    """Name what PyYAML stumbled over in our words where the usual slips are recognised, else in its own."""
    mark = _mark_of(error.problem_mark) if error.problem_mark else Mark(1, 1)
    lines = text.splitlines()
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent or line[mark.column - 1 : mark.column] == "\t":
        column = indent.index("\t") + 1 if "\t" in indent else mark.column
        return _unreadable(file, Mark(mark.line, column), "a tab", "blanks")
    problem = error.problem or ""
    if "another document" in problem:
        return _unreadable(file, mark, "a second document (---)", "one document a file")
    if problem.startswith("nested"):
        return _unreadable(file, mark, problem, f"at most {MAX_DEPTH} levels")
    since = ""
    if error.context_mark and error.context_mark.line + 1 != mark.line:
        since = f", since line {error.context_mark.line + 1}"
    found = f"broken YAML ({error.context + ': ' if error.context else ''}{problem}{since})"
    hint = next((hint for words, hint in _SYNTAX_HINTS if words in problem), "")
    return _unreadable(file, mark, found, "well-formed YAML", hint)


def _join_halves(text: str) -> str | None:
    r"""Return `text` with the two escapes joined that JSON has for a character above \uFFFF; None if one stands alone."""
    if not _HALF_CHARACTER.search(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


class _Converter:
    """Turns PyYAML's nodes into ours; notes what cannot be a setting of any kind."""

    def __init__(self, file: Path) -> None:
        self.problems: list[Problem] = []
        self.refused: set[tuple[str | int, ...]] = set()
        self._file = file
        self._converted: dict[int, YamlNode] = {}  # aliases lead to one node from several places
        self._open: set[int] = set()  # nodes that hold the one being converted

    def convert(self, node: yaml.Node, path: tuple[str | int, ...]) -> YamlNode:
        """Return `node` as ours; a part with a problem reads as null."""
        if id(node) in self._open:
            return self._refuse(node, path, "an alias to what it stands in", "a value")
        if id(node) not in self._converted:
            self._open.add(id(node))
            self._converted[id(node)] = self._convert_new(node, path)
            self._open.remove(id(node))
        return self._converted[id(node)]

    def _convert_new(self, node: yaml.Node, path: tuple[str | int, ...]) -> YamlNode:
        match node:
            case yaml.ScalarNode(tag=tag) if tag in KIND_BY_TAG:
                return self._scalar(node, path)
            case yaml.SequenceNode(tag=tag) if tag == TAG_PREFIX + "seq":
                return self._list(node, path)
            case yaml.MappingNode(tag=tag) if tag == TAG_PREFIX + "map":
                return self._mapping(node, path)
            case _:
                tag = node.tag.replace(TAG_PREFIX, "!!")
                return self._refuse(node, path, f"the tag {quote(tag)}", "a value without a tag")

    def _scalar(self, node: yaml.ScalarNode, path: tuple[str | int, ...]) -> YamlNode:
        kind, text = KIND_BY_TAG[node.tag], node.value
        if not kind.pattern.match(text):  # only an explicit tag leads here
            return self._refuse(node, path, f"the tag !!{kind.name} on {quote(text)}", "a value without a tag")
        if kind.name == "str":
            return self._text(node, path)
        if len(text) > MAX_NUMBER_CHARS:
            return self._refuse(node, path, f"a number of {len(text)} digits", f"at most {MAX_NUMBER_CHARS}")
        return YamlNode(_mark_of(node.start_mark), kind.value(text), "null" if kind.name == "null" else text)

    def _text(self, node: yaml.ScalarNode, path: tuple[str | int, ...]) -> YamlNode:
        text = _join_halves(node.value)
        if text is None:
            return self._refuse(node, path, f"half a character in {json.dumps(cut(node.value))}", "whole characters")
        return YamlNode(_mark_of(node.start_mark), text)

    def _list(self, node: yaml.SequenceNode, path: tuple[str | int, ...]) -> YamlNode:
        items = [self.convert(item, (*path, index)) for index, item in enumerate(node.value)]
        entries: dict[str | int, YamlEntry] = {index: YamlEntry(item.mark, item) for index, item in enumerate(items)}
        return YamlNode(_mark_of(node.start_mark), [item.plain for item in items], entries=entries)

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> YamlNode:
        entries: dict[str | int, YamlEntry] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            entry = YamlEntry(_mark_of(key_node.start_mark), self.convert(value_node, (*path, key)))
            if first := entries.get(key):
                expected = f"it once; the first is at line {first.mark.line}, column {first.mark.column}"
                self._add(entry.mark, (*path, key), "the same key a second time", expected)
            else:
                entries[key] = entry
        plain = {key: entry.node.plain for key, entry in entries.items()}
        return YamlNode(_mark_of(node.start_mark), plain, entries=entries)

    def _key(self, node: yaml.Node, path: tuple[str | int, ...]) -> str | None:
        """Return a key as it is written, so that `1` and `true` can be names; None where there is a problem with it."""
        mark = _mark_of(node.start_mark)
        if not isinstance(node, yaml.ScalarNode) or node.tag not in KIND_BY_TAG:
            self._add(mark, path, "a key that is no plain text", "a text as the key")
            return None
        if node.value == "<<" and node.style is None:
            self._add(mark, path, "a merge key (<<), which YAML 1.2 does not have", "the keys themselves")
            return None
        text = _join_halves(node.value)
        if text is None:
            self._add(mark, path, f"half a character in the key {json.dumps(cut(node.value))}", "whole characters")
        return text

    def _refuse(self, node: yaml.Node, path: tuple[str | int, ...], found: str, expected: str) -> YamlNode:
        mark = _mark_of(node.start_mark)
        self._add(mark, path, found, expected)
        self.refused.add(path)
        return YamlNode(mark, None)

    def _add(self, mark: Mark, path: tuple[str | int, ...], found: str, expected: str) -> None:
        self.problems.append(Problem(self._file, mark.line, mark.column, dotted(path), found, expected))
