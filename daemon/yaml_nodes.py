"""The values of a YAML file with the place where each stands, and how messages name them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_SHOWN_CHARS = 60


class Mark(NamedTuple):
    """A place in a file; both count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """One key of a mapping, or one item of a list, with its value."""

    mark: Mark  # of the key; of an item, where it begins
    node: "YamlNode"

    def follow(self, path: Sequence[str | int]) -> tuple["YamlEntry", bool]:
        """Go down `path` as far as it is written; return the last entry met and whether it is the whole path."""
        entry = self
        for step in path:
            if step not in entry.node.entries:
                return entry, False
            entry = entry.node.entries[step]
        return entry, True


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value with its place, and the same value as plain Python."""

    mark: Mark
    plain: Any
    written: str = ""  # of a number or null: as it stands in the file
    entries: dict[str | int, YamlEntry] = field(default_factory=dict)  # of a mapping or a list, by key or index

    @property
    def shown(self) -> str:
        """The value as a message names it."""
        return self.written or describe(self.plain)


def describe(plain: Any) -> str:
    """Return how a message names a value: texts quoted and cut, mappings and lists by their kind. Always one line."""
    match plain:
        case None:
            return "null"
        case bool() | int() | float():
            return cut(json.dumps(plain))
        case str():
            return f"text {quote(plain)}"
        case dict():
            return "a mapping"
        case _:
            return "a list"


def quote(text: str) -> str:
    """Return `text` in quotes, cut to a message's length; what a terminal might act on is escaped."""
    return json.dumps(cut(text), ensure_ascii=not cut(text).isprintable())


def dotted(path: Sequence[str | int]) -> str:
    """Return `path` as messages write it; a key that would be unclear there stands in quotes."""
    return ".".join(part if re.fullmatch(r"[\w-]{1,64}", part) else quote(part) for part in map(str, path))


def cut(text: str) -> str:
    """Return `text` at a length that fits into a message."""
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
