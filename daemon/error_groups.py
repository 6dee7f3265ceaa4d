"""The lines of a file's errors, put together by code: what a person wants to see of ten thousand of them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.journal import Journal

UNKNOWN_CODE = "unknown"
MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """What an error line says, whichever format it is in."""

    code: str
    custom_id: str | None
    message: str


@dataclass(slots=True)
class ErrorGroup:
    """All errors of one code."""

    code: str
    first: ErrorLine  # in the order of the input
    count: int = 0


def read_error_line(line: bytes | str) -> ErrorLine:
    """Return what a line of an errors file says; one that is no such line has the code `unknown`."""
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        return ErrorLine(UNKNOWN_CODE, None, "the line cannot be read")
    error = _follow(value, "error") or _follow(value, "response", "body", "error")
    custom_id = value.get("custom_id", value.get("id"))
    code = error.get("code") or UNKNOWN_CODE
    return ErrorLine(str(code), None if custom_id is None else str(custom_id), str(error.get("message") or ""))


def group_errors(lines: Iterable[bytes]) -> list[ErrorGroup]:
    """Return the groups, the largest first, among equals the one that came first."""
    groups: dict[str, ErrorGroup] = {}
    for line in lines:
        error = read_error_line(line)
        groups.setdefault(error.code, ErrorGroup(error.code, error)).count += 1
    return sorted(groups.values(), key=lambda group: -group.count)


def failed_lines(journal: Journal) -> Iterator[bytes]:
    """Yield the durable error lines of a journal, in the order of the input.

    Raises:
        JournalError, StorageError: as `Journal.read_line`.
    """
    for index in journal.state.lines.failed():
        if journal.is_durable(index):
            yield journal.read_line(index).line


def group_dict(group: ErrorGroup) -> dict[str, Any]:
    """Return it as the report holds it."""
    first = {"custom_id": group.first.custom_id, "message": group.first.message[:MAX_MESSAGE_CHARS]}
    return {"code": group.code, "count": group.count, "first": first}


def _follow(value: Any, *path: str) -> Mapping[str, Any]:
    """Return the object at a path of keys, empty where there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
