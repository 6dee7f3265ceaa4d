"""Changes an engine's configuration by `section.key=value`, as its YAML would say it: for rows of the ablation and `--set`."""

from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pipelines.errors import EngineError

RecordT = TypeVar("RecordT")

_BOOLEANS = {"true": True, "false": False}
_NULL = "null"


class OptionError(EngineError):
    """An option of the command line is wrong; the text says what was found and what was expected."""


def apply_setting(record: RecordT, text: str) -> RecordT:
    """Return a copy of a configuration record with one key changed.

    Raises:
        OptionError: there is no such key, or it takes no such value.
    """
    path, separator, value = text.partition("=")
    if not separator:
        raise OptionError(f"--set {text}: expected KEY=VALUE, as in streams.h2d=compute")
    changed: RecordT = _changed(record, path.split("."), value, text)
    return changed


def _changed(record: Any, path: list[str], value: str, text: str) -> Any:
    name, *rest = path
    known = [field.name for field in fields(record)]
    if name not in known:
        raise OptionError(f"--set {text}: found key {name!r}, expected one of {', '.join(known)}")
    current = getattr(record, name)
    if is_dataclass(current) != bool(rest):
        inner = f", one of {', '.join(field.name for field in fields(current))}" if is_dataclass(current) else ""
        raise OptionError(f"--set {text}: expected {'a key within' if inner else 'no key within'} {name}{inner}")
    if rest:
        return replace(record, **{name: _changed(current, rest, value, text)})
    return replace(record, **{name: _read(get_type_hints(type(record))[name], value, text)})


def _read(kind: Any, value: str, text: str) -> Any:
    """Read a value of a field's type."""
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if value == _NULL and NoneType in kinds:
        return None
    main = next(one for one in kinds if one is not NoneType)
    try:
        return _BOOLEANS[value] if main is bool else main(value)
    except (KeyError, ValueError):
        expected = _names_of(main) + (f" or {_NULL}" if NoneType in kinds else "")
        raise OptionError(f"--set {text}: found {value!r}, expected {expected}") from None


def _names_of(kind: Any) -> str:
    if kind is bool:
        return "true or false"
    if issubclass(kind, StrEnum):
        return "one of " + ", ".join(kind)
    return {int: "a whole number", float: "a number"}.get(kind, "text")
