"""Which requests of an earlier file have no answer: what its results say, held against the input one by one."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from daemon.durable import printable
from daemon.error_groups import read_error_line
from daemon.errors import CommandError
from daemon.line_reader import CHUNK_BYTES, open_metered
from daemon.made_with import MadeWith
from daemon.recorder import DUPLICATE_CODE
from daemon.request_json import read_json
from daemon.request_problem import InvalidRequestError
from daemon.result_line import LINE_ID_PREFIX, LineBuilder, LineFormat

UNANSWERED = "unanswered"  # the code of a request that the file's end left without a line
RETRY_MARK = "~retry"


@dataclass(frozen=True, slots=True)
class InputRequest:
    """One request as it stands in the input."""

    index: int
    custom_id: str
    is_repeated: bool = False  # an earlier one has this id
    is_named_by_place: bool = True  # it gave itself no id
    is_readable: bool = True  # else it was too large to be kept in memory, and would be again


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
            value = object_on(line)
            own_id = str(value.get("id")) if "custom_id" in value else None
            key = own_id or _plain_key(error.custom_id or "", is_repeated=error.code == DUPLICATE_CODE)
            verdicts.codes[key] = error.code
        return verdicts

    def code_of(self, request: InputRequest) -> str | None:
        """As `Verdicts`."""
        exact = self.codes.get(self.ids.line_id(request.index))
        return exact or self.codes.get(_plain_key(request.custom_id, is_repeated=request.is_repeated))

    @property
    def go_by_content(self) -> bool:
        """Whether they can only be held against the very content that was run."""
        return any(key.startswith(LINE_ID_PREFIX) for key in self.codes)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The verdicts of an output file: of a file that was stopped, where requests without an answer may have no line at all."""

    answered: frozenset[str]  # ids
    is_as_run: bool = True  # else the input was changed since, so that places say nothing

    @classmethod
    def read(cls, lines: Iterable[bytes], *, is_as_run: bool = True) -> "Unanswered":
        """Return what an output file says."""
        values = (object_on(line) for line in lines)
        return cls(frozenset(str(value.get("custom_id", value.get("id"))) for value in values), is_as_run)

    def code_of(self, request: InputRequest) -> str | None:
        """As `Verdicts`."""
        is_known = self.is_as_run or not request.is_named_by_place
        return None if is_known and request.custom_id in self.answered and not request.is_repeated else UNANSWERED


@dataclass(slots=True)
class Selection:
    """Chooses what goes into the new file, and counts it."""

    verdicts: Verdicts
    codes: frozenset[str] | None = None  # those that are wanted; None is all
    counts: Counter[str] = field(default_factory=Counter)  # requests taken, by code
    num_left_out: int = 0  # too large to be kept in memory, so that they would fail again

    def takes(self, request: InputRequest) -> bool:
        """Whether a request goes into the new file; asked once of each."""
        code = self.verdicts.code_of(request)
        if code is None or (self.codes is not None and code not in self.codes):
            return False
        if not request.is_readable:
            self.num_left_out += 1
            return False
        self.counts[code] += 1
        return True


def content_fingerprint(path: Path) -> str:
    """Return the fingerprint of a request file, as the survey takes it.

    Raises:
        FileError: it cannot be read.
    """
    metered = open_metered(path)
    with metered.buffered() as file:
        while file.read(CHUNK_BYTES):
            pass
    return metered.fingerprint


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


def object_on(raw: bytes) -> Mapping[str, Any]:
    """Return the object on a line, empty where it cannot be read."""
    try:
        value = read_json(raw)
    except InvalidRequestError:
        return {}
    return value if isinstance(value, dict) else {}


def _plain_key(custom_id: str, *, is_repeated: bool) -> str:
    """Return the key of a line in the plain form, which names no more than the id; no line id looks like it."""
    return f"{'repeated' if is_repeated else 'first'}:{custom_id}"
