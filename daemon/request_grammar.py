"""What a request says its answer must look like, whichever of the names in use it says it under.

`response_format` is OpenAI's, `text.format` that of its Responses, `structured_outputs` and `guided_*` are vLLM's. Whether a
schema can be enforced only the text process finds out.
"""

import json
from collections.abc import Mapping
from typing import Any

from daemon.request_json import check_text, read_json
from daemon.request_problem import InvalidRequestError, mismatch, missing, unknown
from pipelines.core.request import Grammar, GrammarKind

_ANY_OBJECT = '{"type": "object"}'
_TYPES = '"text", "json_object" or "json_schema"'
_SCHEMA = "a JSON Schema, an object"
_LABEL_KINDS: Mapping[str, tuple[type, str]] = {  # what stands beside a schema and changes nothing
    "name": (str, "a string"),
    "description": (str, "a string"),
    "strict": (bool, "true or false"),
}
_WORDS = "a list of at least one text, none of them empty"
_STRUCTURED = ("json", "json_object", "regex", "choice")
_NOT_BUILT = (
    "grammar",
    "structural_tag",
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
)

# The fields that may say it, but for `text` of a Response.
GRAMMAR_FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")


def read_grammar(given: Mapping[str, Any]) -> Grammar | None:
    """Return what the fields of a body ask for, None if they ask for nothing.

    Raises:
        InvalidRequestError: one of them is wrong, or two of them ask.
    """
    found = [grammar for name, value in given.items() if value is not None and (grammar := _read(name, value))]
    if len(found) > 1:
        text = f"found beside {found[0].param}, expected one of the two"
        raise InvalidRequestError("invalid_value", found[1].param, text)
    return found[0] if found else None


def grammar_of_answer(answer: Mapping[str, Any] | None) -> Grammar | None:
    """Return what `answer` of a pipeline's settings asks for; its form is checked when they are read."""
    for name, value in (answer or {}).items():
        text = value if isinstance(value, str) else json.dumps(value)
        return Grammar(GrammarKind(name), text, f"answer.{name} of the pipeline")
    return None


def _read(name: str, value: Any) -> Grammar | None:
    match name:
        case "response_format":
            return _of_format(name, value, within="json_schema")
        case "text":
            return _of_text(value)
        case "structured_outputs":
            return _of_structured(value)
        case "guided_json":
            return _schema(name, value)
        case "guided_regex":
            return _regex(name, value)
        case _:
            return _choice(name, value)


def _of_text(value: Mapping[str, Any]) -> Grammar | None:
    for key, child in value.items():
        if key == "verbosity" and child in (None, "medium"):
            continue
        if key != "format":
            raise unknown("text.", key, ("format",))
    return None if value.get("format") is None else _of_format("text.format", value["format"], within="")


def _of_format(path: str, value: Any, *, within: str) -> Grammar | None:
    """Return what a format asks for; a schema and its name stand in its key `within`, or where that is empty in itself."""
    if not isinstance(value, dict):
        raise mismatch("invalid_type", path, value, 'an object, {"type", ...}')
    match value.get("type"):
        case "text":
            _check_keys(path, value, ("type",))
            return None
        case "json_object":
            _check_keys(path, value, ("type",))
            return Grammar(GrammarKind.JSON_SCHEMA, _ANY_OBJECT, path)
        case "json_schema":
            return _of_schema(path, value, within)
        case None:
            raise missing(f"{path}.type", _TYPES)
        case kind:
            code = "unsupported_value" if isinstance(kind, str) else "invalid_type"
            raise mismatch(code, f"{path}.type", kind, _TYPES)


def _of_schema(path: str, value: Mapping[str, Any], within: str) -> Grammar:
    parts = ("schema", *_LABEL_KINDS)
    if within:
        _check_keys(path, value, ("type", within))
        path, inner = f"{path}.{within}", value.get(within)
        if not isinstance(inner, dict):
            raise _not_given(path, inner, 'an object, {"name", "schema"}')
        _check_keys(path, inner, parts)
    else:
        _check_keys(path, value, ("type", *parts))
        inner = value
    for key, (kind, expected) in _LABEL_KINDS.items():
        if (label := inner.get(key)) is not None and not isinstance(label, kind):
            raise mismatch("invalid_type", f"{path}.{key}", label, expected)
    return _schema(f"{path}.schema", inner.get("schema"))


def _of_structured(value: Any) -> Grammar | None:
    name = "structured_outputs"
    if not isinstance(value, dict):
        raise mismatch("invalid_type", name, value, f"an object with one of {', '.join(_STRUCTURED)}")
    given = {key: child for key, child in value.items() if child is not None and child is not False}
    for key, child in given.items():
        if key in _NOT_BUILT:
            raise mismatch("unsupported_parameter", f"{name}.{key}", child, "no such key: it is not supported")
        if key not in _STRUCTURED:
            raise unknown(f"{name}.", key, _STRUCTURED)
    if len(given) > 1:
        raise mismatch("invalid_value", name, value, f"one of {', '.join(_STRUCTURED)}")
    return next((_of_structured_key(f"{name}.{key}", key, child) for key, child in given.items()), None)


def _of_structured_key(param: str, key: str, value: Any) -> Grammar:
    match key:
        case "json":
            return _schema(param, value)
        case "regex":
            return _regex(param, value)
        case "choice":
            return _choice(param, value)
        case _:
            if value is not True:
                raise mismatch("invalid_type", param, value, "true or false")
            return Grammar(GrammarKind.JSON_SCHEMA, _ANY_OBJECT, param)


def _schema(param: str, value: Any) -> Grammar:
    """Return the grammar of a schema, which may come as JSON text."""
    if isinstance(value, str):
        try:
            raw = value.encode()
            parsed = read_json(raw)
            check_text(parsed, raw)
        except InvalidRequestError as error:
            raise mismatch("invalid_value", param, value, f"{_SCHEMA}, or its JSON ({error.text})") from None
        value = parsed
    if not isinstance(value, dict):
        raise _not_given(param, value, _SCHEMA)
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value), param)


def _regex(param: str, value: Any) -> Grammar:
    if not isinstance(value, str) or not value:
        raise mismatch("invalid_value" if value == "" else "invalid_type", param, value, "a regular expression")
    return Grammar(GrammarKind.REGEX, value, param)


def _choice(param: str, value: Any) -> Grammar:
    if not (isinstance(value, list) and value and all(isinstance(word, str) and word for word in value)):
        raise mismatch("invalid_value" if isinstance(value, list) else "invalid_type", param, value, _WORDS)
    return Grammar(GrammarKind.CHOICE, json.dumps(value, ensure_ascii=False), param)


def _check_keys(path: str, value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key, child in value.items():
        if key not in known and child is not None:
            raise unknown(f"{path}.", key, known)


def _not_given(param: str, value: Any, expected: str) -> InvalidRequestError:
    return missing(param, expected) if value is None else mismatch("invalid_type", param, value, expected)
