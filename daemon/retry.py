"""A new request file of those requests of an earlier one that have no answer, in their order and under their ids."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from daemon.array_reader import read_document
from daemon.durable import printable, storage_errors
from daemon.error_groups import read_error_line
from daemon.errors import CommandError
from daemon.file_kinds import FileKind
from daemon.json_text import json_line
from daemon.line_reader import LineReader, open_metered
from daemon.made_with import MadeWith
from daemon.recorder import DUPLICATE_CODE
from daemon.request_json import read_json
from daemon.request_line import LineParser, is_plain
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Place, Unreadable
from daemon.result_line import LineBuilder, LineFormat

UNANSWERED = "unanswered"  # the code of a request that the file's end left without a line
RETRY_MARK = "~retry"


@dataclass(frozen=True, slots=True)
class InputRequest:
    """One request as it stands in the input."""

    index: int
    custom_id: str
    is_repeated: bool  # an earlier one has this id
    raw: bytes | Unreadable


class Verdicts(Protocol):
    """What became of an input's requests."""

    def code_of(self, request: InputRequest) -> str | None:
        """Return why a request has no answer, None if it has one."""
        ...


@dataclass(slots=True)
class FailedLines:
    """The verdicts of an errors file: of a file that ran to its end, where every request has its line."""

    ids: LineBuilder  # for the ids of lines in OpenAI's form
    codes: dict[str, str] = field(default_factory=dict)  # by line id, or by id and place among equal ones

    @classmethod
    def read(cls, lines: Iterable[bytes], fingerprint: str) -> "FailedLines":
        """Return what an errors file says of the input with this content."""
        verdicts = cls(LineBuilder(fingerprint, 0, MadeWith("", ""), LineFormat.BATCH))
        for line in lines:
            error = read_error_line(line)
            value = _object(line)
            own_id = str(value.get("id")) if "custom_id" in value else None
            key = own_id or _plain_key(error.custom_id or "", is_repeated=error.code == DUPLICATE_CODE)
            verdicts.codes[key] = error.code
        return verdicts

    def code_of(self, request: InputRequest) -> str | None:
        """As `Verdicts`."""
        exact = self.codes.get(self.ids.line_id(request.index))
        return exact or self.codes.get(_plain_key(request.custom_id, is_repeated=request.is_repeated))


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The verdicts of an output file: of a file that was stopped, where requests without an answer may have no line at all."""

    answered: frozenset[str]  # ids

    @classmethod
    def read(cls, lines: Iterable[bytes]) -> "Unanswered":
        """Return what an output file says."""
        values = (_object(line) for line in lines)
        return cls(frozenset(str(value.get("custom_id", value.get("id"))) for value in values))

    def code_of(self, request: InputRequest) -> str | None:
        """As `Verdicts`."""
        return None if request.custom_id in self.answered and not request.is_repeated else UNANSWERED


@dataclass(slots=True)
class RetryFile:
    """What goes into the new file, counted while it is written."""

    requests: Iterator[InputRequest]
    verdicts: Verdicts
    codes: frozenset[str] | None = None  # those that are wanted; None is all
    counts: Counter[str] = field(default_factory=Counter)  # requests taken, by code
    num_left_out: int = 0  # too large to be kept in memory, so that they would fail again

    def write(self, path: Path, kind: FileKind) -> None:
        """Write it.

        Raises:
            StorageError: it cannot be written.
            FileError: the input cannot be read.
        """
        begin, between, end = (b"[\n", b",\n", b"\n]\n") if kind is FileKind.JSON else (b"", b"", b"")
        with storage_errors("write", path), path.open("wb") as file:
            file.write(begin)
            for number, line in enumerate(self._lines()):
                file.write(between if number else b"")
                file.write(line.rstrip(b"\n") if kind is FileKind.JSON else line)
            file.write(end)

    def _lines(self) -> Iterator[bytes]:
        for request in self.requests:
            code = self.verdicts.code_of(request)
            if code is None or (self.codes is not None and code not in self.codes):
                continue
            if isinstance(request.raw, Unreadable):
                self.num_left_out += 1
                continue
            self.counts[code] += 1
            yield with_id(request)


def input_requests(path: Path, kind: FileKind) -> Iterator[InputRequest]:
    """Yield the requests of an input, bad ones included.

    Raises:
        FileError: it cannot be read.
    """
    parser = LineParser(printable(path.name), kind)
    seen: set[str] = set()
    with open_metered(path).buffered() as file:
        for index, (line, raw) in enumerate(_pieces(file, parser)):
            item = parser.parse(raw, Place(index, line))
            yield InputRequest(index, item.custom_id, item.custom_id in seen, raw)
            seen.add(item.custom_id)


def with_id(request: InputRequest) -> bytes:
    """Return a request's line; one that was given its id by its place says it itself now, for its place is another."""
    raw = request.raw
    if isinstance(raw, Unreadable):
        raise CommandError(f"request {request.index} cannot be read: {raw.text}")
    value = _object(raw)
    key = "id" if is_plain(value) else "custom_id"
    if not value or value.get(key) is not None:
        return raw + b"\n"
    return json_line({key: request.custom_id} | {name: given for name, given in value.items() if name != key})


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a result file.

    Raises:
        CommandError: it is not there, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise CommandError(f"{printable(path)}: {error.strerror}; expected the lines that tell what failed") from error


def _pieces(file: io.BufferedReader, parser: LineParser) -> Iterable[tuple[int, bytes | Unreadable]]:
    return LineReader(file) if parser.kind is FileKind.LINES else read_document(file, parser.name)


def _object(raw: bytes) -> Mapping[str, Any]:
    """Return the object on a line, empty where it cannot be read."""
    try:
        value = read_json(raw)
    except InvalidRequestError:
        return {}
    return value if isinstance(value, dict) else {}


def _plain_key(custom_id: str, *, is_repeated: bool) -> str:
    """Return the key of a line in the plain form, which names no more than the id; no line id looks like it."""
    return f"{'repeated' if is_repeated else 'first'}:{custom_id}"
