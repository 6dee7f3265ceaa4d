"""Strict reading of one JSON value: what other readers let pass or trip over is refused here, by name.

Python's reader accepts NaN, makes infinity of a number that is too large, lets the last of two equal keys win, returns
halves of surrogate pairs (which no UTF-8 can hold) and reaches as deep as the interpreter's stack happens to allow. None of
that may depend on luck: a line means the same at each reading, and what was read can be written again.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from daemon.request_problem import InvalidRequestError, path_text, shown

MAX_DEPTH = 100  # objects and arrays within each other; far below where the interpreter gives up
_CODE = "invalid_json_line"
_EXCERPT = 20  # characters shown at a fault


def read_json(raw: bytes) -> Any:
    """Return the one JSON value that `raw` (UTF-8) holds.

    Raises:
        InvalidRequestError: it holds something else.
    """
    try:
        text = raw.decode()
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None
    except json.JSONDecodeError as error:
        raise _not_json(error) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # the interpreter bounds the digits of a whole number
        raise _refused("a whole number has more than 4300 digits") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def check_text(value: Any, raw: bytes) -> None:
    """Look for strings and keys in the value of `raw` that have no UTF-8 form.

    Raises:
        InvalidRequestError: there is one; it is named.
    """
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return
    stack: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            check_string(path, item)
        for key, child in _children(item):
            if isinstance(key, str):
                check_string((*path, key), key)
            stack.append(((*path, key), child))


def check_string(path: tuple[int | str, ...], text: str) -> None:
    """Check one string.

    Raises:
        InvalidRequestError: it holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        found = f"found half of a surrogate pair ({half}), which is no character, expected text"
        raise InvalidRequestError("invalid_value", path_text(path), found) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _refused(f"the key {shown(twice)} is there twice in one object")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise _refused(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        found = digits if len(digits) <= _EXCERPT else f"{digits[:_EXCERPT]}..."
        raise _refused(f"the number {found} is too large, expected at most 1.7976931348623157e308 either way")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)


def _refused(text: str) -> InvalidRequestError:
    return InvalidRequestError(_CODE, None, f"not valid JSON: {text}")


def _too_deep() -> InvalidRequestError:
    return _refused(f"nested too deep, expected at most {MAX_DEPTH} levels")


def _not_utf8(error: UnicodeDecodeError) -> InvalidRequestError:
    found = f"0x{error.object[error.start]:02x}"
    return InvalidRequestError(_CODE, None, f"not UTF-8: found {found} at byte {error.start + 1} ({error.reason})")


def _not_json(error: json.JSONDecodeError) -> InvalidRequestError:
    excerpt = error.doc[error.pos : error.pos + _EXCERPT].rstrip("\r\n")
    found = shown(excerpt) if excerpt else "the end"
    if error.msg == "Extra data":
        return _refused(f"found {found} at character {error.pos + 1}, behind the end of the value: expected one value")
    return _refused(f"found {found} at character {error.pos + 1} ({_lowered(error.msg)})")


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]


def _children(value: Any) -> Iterator[tuple[int | str, Any]]:
    match value:
        case dict():
            yield from value.items()
        case list():
            yield from enumerate(value)
        case _:
            return


def _check_depth(value: Any) -> None:
    layer = [value]
    for _ in range(MAX_DEPTH):
        layer = [child for parent in layer for _, child in _children(parent) if isinstance(child, dict | list)]
        if not layer:
            return
    raise _too_deep()
