"""Turns what pydantic finds wrong in a section into problems with a place, and says which keys are not built yet."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from daemon.errors import Problem
from daemon.settings_fields import (
    Section,
    expectation,
    find_field,
    iterate_keys,
    note,
    section_text,
    subsection,
    value_type,
)
from daemon.yaml_nodes import Mark, YamlEntry, YamlNode, describe, dotted, quote
from pipelines.config import GraphMode

# Keys of the format whose part is not built in this version. They are refused by name, so that none is believed to work.
UNBUILT_KEYS = frozenset(
    {
        "engines.*.batch_invariant",
    }
)
_BOOLEAN_WORDS = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
KeyPath = tuple[str | int, ...]
NOT_BUILT = "not built yet in this version"


@dataclass(frozen=True, slots=True)
class Written:
    """A section as it is written in a file: where the places of its keys are looked up."""

    file: Path
    prefix: tuple[str, ...]  # its own path, such as ("engines", "main")
    entry: YamlEntry | None = None  # None where it is written nowhere: its problems have no line
    refused: frozenset[tuple[str | int, ...]] = frozenset()  # whole paths of values that were reported on reading

    @property
    def plain(self) -> Any:
        """The section as plain Python."""
        return self.entry.node.plain if self.entry else None

    def find(self, path: Sequence[str | int]) -> YamlNode | None:
        """Return the value at `path` below this section, None where it is not written."""
        entry, is_whole = self.entry.follow(path) if self.entry else (None, False)
        return entry.node if entry and is_whole else None

    def is_refused(self, path: Sequence[str | int]) -> bool:
        """Whether the value at `path`, or one that holds it, was reported on reading."""
        whole = (*self.prefix, *path)
        return any(whole[:length] in self.refused for length in range(len(whole) + 1))

    def problem(self, path: Sequence[str | int], found: str, expected: str, hint: str = "") -> Problem:
        """Return a problem at the value that is `path` below this section; if it is unwritten, at the key it belongs under."""
        entry, is_whole = self.entry.follow(path) if self.entry else (None, False)
        mark = None if entry is None else entry.node.mark if is_whole else entry.mark
        return self._problem_at(mark, path, found, expected, hint)

    def key_problem(self, path: Sequence[str | int], found: str, expected: str, hint: str = "") -> Problem:
        """Return a problem at the key that is `path` below this section."""
        mark = self.entry.follow(path)[0].mark if self.entry else None
        return self._problem_at(mark, path, found, expected, hint)

    def _problem_at(
        self, mark: Mark | None, path: Sequence[str | int], found: str, expected: str, hint: str
    ) -> Problem:
        line, column = mark or (None, None)
        return Problem(self.file, line, column, dotted((*self.prefix, *path)), found, expected, hint)


def to_problems(error: ValidationError, kind: type[Section], written: Written) -> list[Problem]:
    """Return a problem for each mistake that pydantic found in a section, but for those reported on reading."""
    mistakes = error.errors(include_url=False, include_context=False)
    return [
        _to_problem(mistake["type"], mistake["loc"], mistake["input"], kind, written)
        for mistake in mistakes
        if not written.is_refused(mistake["loc"])
    ]


def _to_problem(type_: str, path: KeyPath, plain: Any, kind: type[Section], written: Written) -> Problem:
    field = find_field(kind, path)
    expected = expectation(field) if field else section_text(kind)
    match type_:
        case "extra_forbidden":
            return _unknown_key(path, kind, written)
        case "missing":
            return written.problem(path, "nothing", expected)
        case _:
            return _wrong_value(path, plain, field, expected, written)


def _unknown_key(path: KeyPath, kind: type[Section], written: Written) -> Problem:
    if _pattern(path, written) in UNBUILT_KEYS:
        return written.key_problem(path, f"a key that is {NOT_BUILT}", "it to be left out")
    holder = find_field(kind, path[:-1])
    siblings = list(((subsection(holder) if holder else None) or kind).model_fields)
    name = str(path[-1])
    elsewhere = [dotted((*written.prefix, *other)) for other, _ in iterate_keys(kind) if other[-1] == name]
    hint = f"did you mean {elsewhere[0]}?" if elsewhere else nearest(name, siblings)
    return written.key_problem(path, "an unknown key", f"one of {', '.join(siblings)}", hint)


def _wrong_value(path: KeyPath, plain: Any, field: FieldInfo | None, expected: str, written: Written) -> Problem:
    node = written.find(path)
    found = node.shown if node else describe(plain)
    if field is None:
        return written.problem(path, found, expected)
    kind, _ = value_type(field)
    if isinstance(path[-1], int):  # an item of a list
        kind, expected = str, "text"
    hint = "" if note(field, "expected") else _value_hint(kind, plain)  # its own words say what it takes
    return written.problem(path, found, expected, hint)


def _pattern(path: KeyPath, written: Written) -> str:
    """Return the path with `*` for the name of an engine or a pipeline."""
    names = "*" if len(written.prefix) > 1 else None
    return ".".join(str(part) for part in (*written.prefix[:1], names, *path) if part is not None)


def _value_hint(kind: Any, plain: Any) -> str:
    """Return what most likely mends a value that is not of `kind`, "" where nothing suggests itself."""
    if kind is str and isinstance(plain, (bool, int, float)):
        return "a text that looks like a number or boolean stands in quotes"
    if not isinstance(plain, str):
        return ""
    if kind is bool or kind is GraphMode:
        word = _BOOLEAN_WORDS.get(plain.lower())
        return f"did you mean {word}?" if word else ""
    if kind in (int, float) and re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", plain):
        return "a number stands without quotes"
    if get_origin(kind) is tuple:
        return "a list stands in brackets, also of one"
    return nearest(plain, list(kind)) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint that names the one of `known` which `word` is most like, "" where none is."""
    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f"did you mean {quote(close[0])}?" if close else ""
