"""The sandbox in which a row's template runs: few things can be reached, and time and space are bounded.

The template comes from the YAML file, the texts in it from anybody. Jinja's sandbox keeps a template from Python's insides, but
not from looping or growing without end; so what can loop is counted and what makes text is charged for it, by `Budget`. Macros
and recursive loops, whose work could not be counted before it is done, are refused when the template is read, with whatever
would need other templates.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import wraps
from typing import Any

from jinja2 import StrictUndefined, TemplateRuntimeError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing
from jinja2.visitor import NodeTransformer

from daemon.request_problem import shown

MAX_STEPS = 10_000  # turns of loops and calls for one row
MAX_CHARS = 64 << 20  # of all texts that are looked through or made for one row
_ITEM_CHARS = 64  # charged for an item of a list
_MAX_POWER_BITS = 4096
_MAX_INDENT = 8
_BUILT, _COUNTED, _JOINED = "<built>", "<counted>", "<joined>"  # filters of ours, by names that no template can say

_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length"),
    *("list", "lower", "map", "max", "min", "reject", "reverse", "round", "select", "sort", "string", "title"),
    *("trim", "truncate", "unique", "upper", "wordcount"),
)
_TEXT_METHODS = (
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"),
    *("isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"),
    *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
    *("splitlines", "startswith", "strip", "swapcase", "title", "upper"),
)
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    date: frozenset({"isoformat", "strftime", "weekday", "date", "time"}),
    time: frozenset({"isoformat", "strftime"}),
    timedelta: frozenset({"total_seconds"}),
}
_NUMBERS = (date, time, timedelta, Decimal, int, float)  # whose attributes are values too: year, days
_REFUSED: Mapping[type[nodes.Node], str] = {
    nodes.Macro: "a macro",
    nodes.CallBlock: "a call block",
    nodes.Block: "a block",
    nodes.Extends: "extends",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class Budget:
    """What the template may still do for the present row."""

    def __init__(self) -> None:
        self._num_steps = self._num_chars = 0

    def renew(self) -> None:
        """Begin a row."""
        self._num_steps = self._num_chars = 0

    def step(self) -> None:
        """Count a turn of a loop or a call.

        Raises:
            TemplateRuntimeError: it is one too many.
        """
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            raise TemplateRuntimeError(
                f"found more than {MAX_STEPS} turns of loops and calls, expected at most so many"
            )

    def charge(self, num_chars: int) -> None:
        """Count text before it is looked through or made.

        Raises:
            TemplateRuntimeError: it is too much.
        """
        self._num_chars += num_chars
        if self._num_chars > MAX_CHARS:
            raise TemplateRuntimeError(f"found more than {MAX_CHARS} characters of work, expected at most so many")

    def weigh(self, value: Any) -> int:
        """Charge for a value with everything in it, as often as it is in it; return what that was.

        A list that holds another one twice, and so on, is small in memory and without end for whoever prints it.

        Raises:
            TemplateRuntimeError: it is too much.
        """
        before = self._num_chars
        parts = [value]
        while parts:
            match part := parts.pop():
                case str():
                    self.charge(len(part))
                case list() | tuple():
                    self.charge(_ITEM_CHARS * len(part))
                    parts += part
                case dict():
                    self.charge(_ITEM_CHARS * len(part))
                    parts += part.values()
                case _:
                    pass
        return self._num_chars - before


class Row(dict[str, Any]):
    """All cells of a row, by the names of their columns."""


class MissingName(StrictUndefined):
    """What is not there, in our words."""

    __slots__ = ()

    @property
    def is_column(self) -> bool:
        """Whether a column of this name was asked for."""
        return self._undefined_obj is missing or isinstance(self._undefined_obj, Row)

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        name = shown(str(self._undefined_name))
        return f"found {name}, which is no column" if self.is_column else f"found {name}, which is not there"


class RowEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates under one budget; for one thread at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=MissingName, finalize=_printable, autoescape=False, optimized=False)
        self.budget = Budget()
        self.filters = {name: self._charged(FILTERS[name]) for name in _FILTERS} | {
            "join": self._join,
            "replace": self._replace,
            "tojson": self._to_json,
            _BUILT: self._build,
            _COUNTED: self._count,
            _JOINED: self._join,
        }
        self.globals = {"range": self._range, "namespace": Namespace}

    def concat(self, pieces: Iterable[str]) -> str:
        """Join what a template, or a block of it, has printed."""
        return self._join(pieces)

    def bounded(self, source: str) -> nodes.Template:
        """Read a template and put the counting in.

        Raises:
            TemplateSyntaxError: it is none, or uses what is refused.
        """
        tree = self.parse(source)
        for kind, what in _REFUSED.items():
            if (found := tree.find(kind)) is not None:
                raise TemplateSyntaxError(f"found {what}, which templates of rows may not use", found.lineno)
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise TemplateSyntaxError("found a recursive loop, which templates of rows may not use", loop.lineno)
            loop.iter = _filtered(loop.iter, _COUNTED)
        _Watches().visit(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read it: an allowance for each kind of value that a cell can have."""
        if attr.startswith("_"):
            return False
        if isinstance(obj, LoopContext | Namespace):
            return super().is_safe_attribute(obj, attr, value)
        is_value = isinstance(obj, _NUMBERS) and not callable(value)
        return is_value or any(isinstance(obj, kind) and attr in names for kind, names in _METHODS.items())

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Return what reading a thing that is not allowed gives."""
        hint = f"found .{attribute} of {type(obj).__name__}, which templates of rows may not use"
        return self.undefined(hint, obj=obj, name=attribute, exc=SecurityError)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Leave format and format_map to `is_safe_attribute`, which refuses them: their widths know no bound."""
        del value
        return None

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls, counted."""
        self.budget.step()
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            match obj.__name__:
                case "replace":
                    return super().call(context, self._replace, text, *args, **kwargs)
                case "join":
                    return super().call(context, self._join, args[0], text)
                case _:
                    self.budget.charge(len(text))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what can grow."""
        match operator:
            case "%" if isinstance(left, str):
                raise TemplateRuntimeError("found % behind a text, which templates of rows may not use: use ~")
            case "+":
                self.budget.weigh((left, right))
            case "*":
                self.budget.charge(self.budget.weigh(left) * _times(right) + self.budget.weigh(right) * _times(left))
                _check_bits(_bits(left) + _bits(right))
            case "**" if isinstance(right, int):
                _check_bits(_bits(left) * abs(right))
        return super().call_binop(context, operator, left, right)

    def _charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)  # takes along whether it wants the context
        def charged(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            for value in args:
                self.budget.weigh(value)
            return function(*args, **kwargs)

        return charged

    def _build(self, items: Any) -> Any:
        self.budget.weigh(items)
        return items

    def _count(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.step()
            yield item

    def _join(self, items: Iterable[Any], separator: str = "") -> str:
        pieces = []
        for item in items:
            piece = str(_printable(item))
            self.budget.charge(len(piece) + len(separator))
            pieces.append(piece)
        return separator.join(pieces)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        num_places = len(text) + 1 if not old else text.count(old)
        if count >= 0:
            num_places = min(num_places, count)
        self.budget.charge(len(text) + num_places * len(new))
        return text.replace(old, new, count)

    def _range(self, *bounds: int) -> range:
        found = range(*bounds)
        if len(found) > MAX_STEPS:
            raise TemplateRuntimeError(f"found a range of {len(found)}, expected at most {MAX_STEPS}")
        return found

    def _to_json(self, value: Any, indent: int | None = None) -> str:
        if indent is not None and not 0 <= indent <= _MAX_INDENT:
            raise TemplateRuntimeError(f"found indent={indent}, expected 0 to {_MAX_INDENT}")
        self.budget.weigh(value)
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
        self.budget.charge(len(text))
        return text


class _Watches(NodeTransformer):
    """Puts filters where values are made that the environment does not hear of: the operator ~, lists and the like."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  Jinja's names, here and below
        """Replace one, and those within it."""
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """Put a filter behind one, and behind those within it."""
        self.generic_visit(node)
        return _filtered(node, _BUILT)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """As a list."""
        self.generic_visit(node)
        return _filtered(node, _BUILT)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """As a list, unless it is what a loop or an assignment unpacks into."""
        self.generic_visit(node)
        return _filtered(node, _BUILT) if node.ctx == "load" else node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _printable(value: Any) -> Any:
    """Return a value as it is printed: a cell without one as nothing."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        raise TemplateRuntimeError("found a column of bytes, expected text or numbers")
    if callable(value) and not isinstance(value, Undefined):
        name = getattr(value, "__name__", "a function")
        raise TemplateRuntimeError(f"found the method {name} itself, expected a value: call it, or write [{name!r}]")
    return value


def _times(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_bits(num_bits: int) -> None:
    if num_bits > _MAX_POWER_BITS:
        raise TemplateRuntimeError("found a number of more than a thousand digits, expected a smaller one")
