"""What a plain scalar of a YAML file means: the core schema of YAML 1.2, on top of PyYAML's parser and writer.

`true` and `false` are the only booleans, so that `on`, `off`, `yes`, `no` and `1:30` stay the texts that they look like.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml
from yaml.composer import ComposerError

TAG_PREFIX = "tag:yaml.org,2002:"
MAX_DEPTH = 32  # the deepest key of the settings is at 4


class ScalarKind(NamedTuple):
    """A kind of scalar in YAML 1.2's core schema."""

    name: str
    pattern: re.Pattern[str]
    first: str  # the characters that it can begin with; "" stands for the empty scalar
    value: Callable[[str], Any]


def _integer(text: str) -> int:
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_KINDS = (
    ScalarKind("null", re.compile(r"(?:null|Null|NULL|~|)\Z"), "nN~", lambda _: None),
    ScalarKind("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), "tTfF", lambda text: text[0] in "tT"),
    ScalarKind("int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), "-+0123456789", _integer),
    ScalarKind(
        "float",
        re.compile(rf"(?:{_FLOAT})\Z"),
        "-+.0123456789",
        lambda text: float(re.sub(r"\.(?=[a-zA-Z])", "", text)),
    ),
    ScalarKind("str", re.compile(r".*\Z", re.DOTALL), "", str),
)
_OLD_LINE_BREAK = re.compile("[\x85\u2028\u2029]")  # ends a line in YAML 1.1, and so for PyYAML; escapes keep it
KIND_BY_TAG = {TAG_PREFIX + kind.name: kind for kind in _KINDS}


def add_core_schema(resolver: type[yaml.resolver.BaseResolver]) -> None:
    """Have `resolver` (a loader or a dumper class) take plain scalars for what YAML 1.2's core schema says they are."""
    for kind in _KINDS[:-1]:
        first = [*kind.first, ""] if kind.name == "null" else list(kind.first)
        resolver.add_implicit_resolver(TAG_PREFIX + kind.name, kind.pattern, first)


class Loader(yaml.SafeLoader):
    """PyYAML's parser under YAML 1.2's core schema, with a bound on nesting."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  none of YAML 1.1's; read by the class machinery of PyYAML

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next value and what is in it; called by PyYAML for each level."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it open
            raise ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class Dumper(yaml.SafeDumper):
    """PyYAML's writer that puts into quotes whatever YAML 1.2 or YAML 1.1 would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out each time."""
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if _OLD_LINE_BREAK.search(text):
        style = '"'
    return dumper.represent_scalar(TAG_PREFIX + "str", text, style=style)


def dump_yaml(data: Any) -> str:
    """Return `data` (mappings, lists, texts, numbers, booleans, None) as YAML in block style, keys in their order."""
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000))


def dump_inline(data: Any) -> str:
    """Return a list or a mapping as YAML in flow style, in one line."""
    text = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf)
    return " ".join(str(text).split())


add_core_schema(Loader)
add_core_schema(Dumper)
Dumper.add_representer(str, _represent_text)
