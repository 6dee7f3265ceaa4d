"""What is wrong with a request, in words: where, what was found, what was expected."""

import difflib
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_MEANT = 0.8  # likeness of a key that was misspelt, and not thought of as another
_MAX_SHOWN = 60  # characters of a value that a message repeats


class InvalidRequestError(Exception):
    """A request is refused; caught where its line is known and made a bad line there.

    `param` is the path of the field at fault, such as `messages[0].role`, or None where that is the line as a whole;
    `text` says what was found and what was expected; `within` is what leads from the line to `param`: nothing, or `body.`.
    """

    def __init__(self, code: str, param: str | None, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.param = param
        self.text = text
        self.within = ""


def missing(param: str, expected: str) -> InvalidRequestError:
    """Return the error of a field that has to be there; `null` counts as not there."""
    return InvalidRequestError("missing_required_parameter", param, f"found nothing, expected {expected}")


def mismatch(code: str, param: str | None, value: Any, expected: str) -> InvalidRequestError:
    """Return the error of a field whose value is not what it has to be."""
    return InvalidRequestError(code, param, f"found {shown(value)}, expected {expected}")


def unknown(path: str, key: str, honoured: Iterable[str], known: Iterable[str] = ()) -> InvalidRequestError:
    """Return the error of a key that is not known at `path` (empty, or ending in a dot), with the nearest that is.

    One that would be refused is no advice: it is named only where it must have been meant.
    """
    short, taken = key[:_MAX_SHOWN], tuple(honoured)
    meant = _nearest(short, (*taken, *known), _MEANT)
    hint = ""
    if meant is not None and meant not in taken:
        hint = f"; {shown(meant)}, which is much like it, is not supported either"
    elif nearest := _nearest(short, taken):
        hint = f", the nearest known key is {shown(nearest)}"
    return InvalidRequestError("unknown_parameter", path + escaped(short), f"unknown key{hint}")


def path_text(location: Iterable[int | str]) -> str:
    """Return a path in the notation of OpenAI's errors: `messages[0].content`."""
    path = ""
    for step in location:
        match step:
            case int():
                path += f"[{step}]"
            case _:
                path += ("." if path else "") + escaped(step[:_MAX_SHOWN])
    return path


def shown(value: Any) -> str:
    """Return a value as JSON, on one line and never longer than a message can bear."""
    match value:
        case str():
            text = json.dumps(value[: _MAX_SHOWN + 1], ensure_ascii=not value[:_MAX_SHOWN].isprintable())
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case dict():
            return "an object" if value else "an empty object"
        case _:
            text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN + 2 else text[:_MAX_SHOWN] + "..."


def escaped(text: str) -> str:
    """Return a key or another text as it can stand in a message: escaped as in JSON if it has characters that cannot be shown."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


@lru_cache(maxsize=256)  # one misspelling tends to stand in every line of a file, and the search takes long
def _nearest(key: str, known: tuple[str, ...], likeness: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=likeness)), None)
