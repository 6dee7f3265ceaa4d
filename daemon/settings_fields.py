"""What the sections of the settings are made of: how a key is declared, and the kinds of value that YAML has no words for.

Numbers and booleans are taken strictly (`"8"` is no number, `1` no boolean), choices and paths from their texts.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from daemon.yaml_schema import dump_inline, dump_yaml
from pipelines.config import GraphMode

_MAX_SHOWN_CHARS = 80
SIZE_TEXT = "a size in bytes, such as 1GiB, 512MB or 1048576"
PATH_TEXT = "a path"
TELL_TEXT = "a command, as a text or a list of texts, or one http(s) URL"
MODEL_TEXT = "a hub name (org/name), a local folder or .gguf file (./models/x) or package:NAME"
TOLD_TEXT = "a mapping of names to texts, numbers or booleans"
ANSWER_TEXT = "one of {choice: [texts]}, {regex: TEXT} and {json_schema: MAPPING}"
MAX_SECONDS = 86400
MAX_TOKENS = 2**31 - 1
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
BLOCK_SIZE_TEXT = f"one of {', '.join(map(str, BLOCK_SIZES))}"

_UNITS = {"B": 1} | {
    f"{prefix}{infix}B": base**power
    for infix, base in (("i", 1024), ("", 1000))
    for power, prefix in enumerate("KMGT", start=1)
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?((?:[KMGT]i?)?B)", re.ASCII | re.IGNORECASE)
_SIZE_ANYCASE = r"^[0-9]+(\.[0-9]+)? ?([KMGTkmgt][Ii]?)?[Bb]$"  # the same for JSON Schema, whose patterns know no flags
_HUB_NAME = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)
_PACKAGE = re.compile(r"package:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


_URL = re.compile(r"https?://[^\s/?#]+([/?#]\S*)?", re.ASCII)


class Change(StrEnum):
    """When a changed value can take effect, as far as the key itself is concerned."""

    LIVE = "at once"
    CLAIM = "with the next file claimed"
    ALLOCATED = "at once up to what is allocated, beyond it after a drain"
    DRAIN = "after a drain"
    RESTART = "after a restart"


class Section(BaseModel):
    """A mapping of the YAML file; an empty one (`buffers:` with nothing under it) has all its defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data

    @classmethod
    def read(cls, plain: Any, folder: Path) -> Self:
        """Return the section that `plain` says; relative paths begin at `folder`.

        Raises:
            ValidationError: of pydantic, with all mistakes.
        """
        return cls.model_validate(plain, context={"folder": folder})


def key(default: Any, description: str, change: Change, expected: str = "", **constraints: Any) -> Any:
    """Declare a key; `default=...` makes it required, `expected` says what its type and constraints do not."""
    notes: dict[str, Any] = {"change": change.value, "expected": expected}
    return Field(default, description=description, json_schema_extra=notes, **constraints)


def choice(default: StrEnum, description: str, change: Change) -> Any:
    """Declare a key that takes one of an enum's words."""
    return key(default, description, change, strict=False)


def section(kind: type[Section]) -> Any:
    """Declare a mapping whose keys all have defaults."""
    return Field(default_factory=kind)


def value_type(field: FieldInfo) -> tuple[Any, bool]:
    """Return the type of a key's values, without what is wrapped around it, and whether null is one of them."""
    options = [option for option in get_args(field.annotation) if option is not type(None)]
    nullable = type(None) in get_args(field.annotation)
    kind = options[0] if nullable else field.annotation
    return (get_args(kind)[0] if get_origin(kind) is Annotated else kind), nullable


def subsection(field: FieldInfo) -> type[Section] | None:
    """Return the section that a key holds, None where it holds a value."""
    kind, _ = value_type(field)
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def iterate_keys(kind: type[Section], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield every key below a section that holds a value, with its path, in the order of declaration."""
    for name, field in kind.model_fields.items():
        below = subsection(field)
        if below is None:
            yield (*prefix, name), field
        else:
            yield from iterate_keys(below, (*prefix, name))


def find_field(kind: type[Section], path: Sequence[str | int]) -> FieldInfo | None:
    """Return the innermost declared key along `path`, None where not even the first step is one."""
    found: FieldInfo | None = None
    for step in path:
        field = kind.model_fields.get(str(step))
        if field is None:
            break
        found, below = field, subsection(field)
        if below is None:
            break
        kind = below
    return found


def section_text(kind: type[Section]) -> str:
    """Return what a section must be, as messages say it."""
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    return "a mapping" + (f" with {' and '.join(required)}" if required else "")


def note(field: FieldInfo, name: str) -> str:
    """Return a note that `key` left on a field, "" where there is none."""
    notes = field.json_schema_extra
    return str(notes.get(name, "")) if isinstance(notes, dict) else ""


def change_of(field: FieldInfo) -> Change:
    """Return when a changed value of a key can take effect."""
    return Change(note(field, "change"))


def shown_value(section: Section, path: Sequence[str]) -> str:
    """Return the value at `path` as YAML writes it, cut where it is long."""
    value: Any = section.model_dump(mode="json")
    for step in path:
        value = value[step]
    text = dump_inline(value) if isinstance(value, list | dict) else dump_yaml([value]).removeprefix("- ")
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."


def expectation(field: FieldInfo) -> str:
    """Return what a key takes, as messages and the reference say it: "a whole number of at least 1, or null"."""
    kind, nullable = value_type(field)
    text = note(field, "expected") or _type_text(kind, field)
    return f"{text}, or null" if nullable else text


def _type_text(kind: Any, field: FieldInfo) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        words = [member.value for member in kind]
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    if isinstance(kind, type) and issubclass(kind, Section):
        return section_text(kind)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(kind, "a list of texts") + _bounds_text(field.metadata)


def _bounds_text(metadata: Sequence[Any]) -> str:
    bounds = {name: getattr(bound, name) for bound in metadata for name in ("gt", "ge", "le") if hasattr(bound, name)}
    match bounds:
        case {"ge": low, "le": high}:
            return f" from {low} to {high}"
        case {"gt": low, "le": high}:
            return f" above {low} and at most {high}"
        case {"ge": low}:
            return f" of at least {low}"
        case _:
            return ""


def parse_size(value: Any) -> Any:
    """Return the bytes that a text such as `1GiB` means, rounded down; what is no text is returned as it is.

    Raises:
        ValueError: a text that is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError(SIZE_TEXT)
    unit = match[2].upper().replace("I", "i")
    return int(Fraction(match[1]) * _UNITS[unit])


def format_size(size: int) -> str | int:
    """Return `size` with the largest unit that divides it, as `parse_size` takes it."""
    for prefix in "TGMK":
        count, rest = divmod(size, _UNITS[f"{prefix}iB"])
        if count and not rest:
            return f"{count}{prefix}iB"
    return size


def _boolean_word(value: Any) -> Any:
    """Return YAML's true and false as the words of an enum."""
    return str(value).lower() if isinstance(value, bool) else value


def _word_boolean(mode: GraphMode) -> bool | str:
    """Return a mode as YAML says it."""
    return mode is GraphMode.ON if mode is not GraphMode.AUTO else mode.value


def _local_path(value: Any, info: ValidationInfo) -> Any:
    """Return the absolute path that a text means, from the folder of the YAML file; `~` is the home folder."""
    if not isinstance(value, str):
        return value
    if not value or "\0" in value:
        raise ValueError(PATH_TEXT)
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:  # ~somebody, whom nobody knows
        raise ValueError(PATH_TEXT) from error
    path = (info.context or {}).get("folder", Path()) / path
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    # The last part stays as it is written: a link's own name may say more than its target's (model.gguf).
    return Path(os.path.realpath(path.parent)) / path.name


def _model_path(value: Any, info: ValidationInfo) -> Any:
    """Return a local model as an absolute path, any other name as it is."""
    if not isinstance(value, str) or value.startswith("fake:") or _PACKAGE.fullmatch(value):
        return value
    is_local = value.startswith(("./", "../", "/", "~")) or value in (".", "..") or value.endswith(".gguf")
    if is_local:
        return str(_local_path(value, info))
    if not _HUB_NAME.fullmatch(value):
        raise ValueError(MODEL_TEXT)
    return value


def _tell_target(value: Any, info: ValidationInfo) -> Any:
    """Return a command as its words, a URL as the only one; a relative path to a program begins at the YAML file's folder."""
    if isinstance(value, str):
        is_url = re.match(r"https?:", value)
        try:
            words = [value] if is_url else shlex.split(value)
        except ValueError as error:  # a quotation mark that is never closed
            raise ValueError(TELL_TEXT) from error
    elif isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        words = list(value)
    else:
        return value
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError(TELL_TEXT)
    if re.match(r"https?:", words[0]):
        if len(words) > 1 or not _URL.fullmatch(words[0]):
            raise ValueError(TELL_TEXT)
    elif "/" in words[0]:
        words[0] = str(_local_path(words[0], info))
    return tuple(words)


def _told(value: dict[str, Any]) -> dict[str, Any]:
    if not all(isinstance(child, bool | int | float | str) for child in value.values()):
        raise ValueError(TOLD_TEXT)
    return value


def _answer(value: dict[str, Any]) -> dict[str, Any]:
    match value:
        case {"choice": [*words], **others} if words and not others and all(isinstance(w, str) and w for w in words):
            return value
        case {"regex": str(pattern), **others} if pattern and not others:
            return value
        case {"json_schema": dict(), **others} if not others:
            return value
        case _:
            raise ValueError(ANSWER_TEXT)


def _block_size(value: int) -> int:
    if value not in BLOCK_SIZES:
        raise ValueError(BLOCK_SIZE_TEXT)
    return value


BlockSize = Annotated[int, AfterValidator(_block_size), WithJsonSchema({"type": "integer", "enum": list(BLOCK_SIZES)})]
Size = Annotated[
    int,
    Field(ge=0, le=2**63 - 1),
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _SIZE_ANYCASE}]}),
]
GraphSwitch = Annotated[
    GraphMode,
    BeforeValidator(_boolean_word),
    PlainSerializer(_word_boolean, when_used="json"),
    WithJsonSchema({"enum": ["auto", True, False]}),
]
TellTarget = Annotated[
    tuple[str, ...],
    BeforeValidator(_tell_target),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
]
Told = Annotated[
    dict[str, Any],
    AfterValidator(_told),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["boolean", "number", "string"]}}),
]
Answer = Annotated[
    dict[str, Any],
    AfterValidator(_answer),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "choice": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
                "regex": {"type": "string", "minLength": 1},
                "json_schema": {"type": "object"},
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        }
    ),
]
LocalPath = Annotated[Path, BeforeValidator(_local_path)]
ModelPath = Annotated[str, BeforeValidator(_model_path)]
