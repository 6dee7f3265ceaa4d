"""Reading the requests of a .json file: one object, or an array cut into its elements while it is read, in flat memory.

Only brackets, commas and quotation marks are looked at; whether an element is JSON is for its parser to say. So a fault
inside an element stays in it, as long as its brackets are balanced:

    [ {"prompt": "a"} , {"prompt": tru} , {"prompt": "c"} ]
      element 1         element 2         element 3            depth 1 between them, deeper inside

Where the array itself breaks (it is never closed, is closed by the wrong bracket, or something stands behind it), what
came before are elements and the break is one more, unreadable; nothing behind it can be told apart.
"""

import io
import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import TypeAlias

from daemon.errors import FileFormatError
from daemon.line_reader import BYTE_ORDER_MARK, CHUNK_BYTES, JSON_SPACE, MAX_REQUEST_BYTES, oversized
from daemon.request_json import read_json
from daemon.request_problem import InvalidRequestError, shown
from daemon.request_record import Unreadable

Element: TypeAlias = tuple[int, bytes | Unreadable]  # line on which it starts, content

# Each matches up to and with the next mark; possessive, so that no input makes them go back. Strings that end in the same
# chunk are stepped over; a quotation mark is a mark only where the chunk ends within its string.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_WITHIN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+["\\]', re.DOTALL)
_BETWEEN_ELEMENTS = re.compile(rb'(?:[^\[\]{},"]++|' + _STRING + rb')*+[\[\]{},"]', re.DOTALL)
_WITHIN_ELEMENT = re.compile(rb'(?:[^\[\]{}"]++|' + _STRING + rb')*+[\[\]{}"]', re.DOTALL)
_QUOTE, _BACKSLASH, _COMMA, _CLOSING = ord('"'), ord("\\"), ord(","), ord("]")
_OPENINGS, _CLOSINGS = frozenset(b"[{"), frozenset(b"]}")
_EXCERPT_BYTES = 20


class _State(Enum):
    OPEN = auto()  # elements follow
    CLOSED = auto()  # nothing but space may follow
    BROKEN = auto()  # what follows is not looked at


class ArraySplitter:
    """Cuts the bytes behind an array's opening bracket, however they are chunked, into elements."""

    def __init__(self, line: int = 1, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._max_bytes = max_bytes  # of one element
        self._state = _State.OPEN
        self._depth = 1
        self._in_string = False
        self._is_escaped = False  # the next byte stands behind a backslash
        self._line = line  # of the next byte
        self._start_line = line  # of the element being read
        self._pieces: list[bytes] = []  # of it; empty once it is too large
        self._size = 0  # of it
        self._num_elements = 0

    def feed(self, chunk: bytes) -> Iterator[Element]:
        """Take bytes; give the elements that are now whole."""
        start = end = 0
        while self._state is _State.OPEN:
            end = self._next_mark(chunk, end)
            if end < 0:
                self._take(chunk[start:])
                return
            mark = chunk[end - 1]
            if self._depth > 1 or mark in _OPENINGS:
                self._depth += 1 if mark in _OPENINGS else -1
                continue
            self._take(chunk[start : end - 1])
            start = end
            if mark == _COMMA or self._size or self._num_elements:
                yield self._cut()
            if mark != _COMMA:
                yield from self._close(mark)
        yield from self._check_rest(chunk[start:])

    def finish(self) -> Iterator[Element]:
        """Give what the end of the file leaves: nothing, if the array is closed."""
        if self._state is not _State.OPEN:
            return
        if self._size and self._depth == 1 and not self._in_string:
            yield self._cut()
        line = self._start_line if self._size else self._line
        yield line, Unreadable("found the end of the file within the array, expected its closing ]")

    def _next_mark(self, chunk: bytes, position: int) -> int:
        """Return the position behind the next mark outside of strings, or -1 if this chunk has no more."""
        while True:
            if self._is_escaped and position < len(chunk):
                position += 1
                self._is_escaped = False
            found = self._pattern().match(chunk, position)
            if found is None:
                return -1
            position = found.end()
            match chunk[position - 1]:
                case mark if mark == _QUOTE:
                    self._in_string = not self._in_string
                case mark if mark == _BACKSLASH:
                    self._is_escaped = True
                case _:
                    return position

    def _pattern(self) -> re.Pattern[bytes]:
        if self._in_string:
            return _WITHIN_STRING
        return _BETWEEN_ELEMENTS if self._depth == 1 else _WITHIN_ELEMENT

    def _take(self, piece: bytes) -> None:
        """Add to the element being read; space before it is dropped."""
        if not self._size:
            content = piece.lstrip(JSON_SPACE)
            self._line += piece.count(b"\n", 0, len(piece) - len(content))
            self._start_line = self._line
            piece = content
        self._line += piece.count(b"\n")
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def _cut(self) -> Element:
        """End the element being read."""
        content: bytes | Unreadable = b"".join(self._pieces)
        if self._size > self._max_bytes:
            content = oversized(self._size, self._max_bytes)
        elif not self._size:
            content = Unreadable("found nothing between the array's commas, expected a JSON object")
        self._pieces.clear()
        self._size = 0
        self._num_elements += 1
        return self._start_line, content

    def _close(self, mark: int) -> Iterator[Element]:
        self._state = _State.CLOSED
        if mark != _CLOSING:
            self._state = _State.BROKEN
            yield self._line, Unreadable("found } at the end of the array, expected ]")

    def _check_rest(self, rest: bytes) -> Iterator[Element]:
        """Look at what stands behind the array."""
        content = rest.lstrip(JSON_SPACE)
        self._line += rest.count(b"\n", 0, len(rest) - len(content))
        if content and self._state is _State.CLOSED:
            self._state = _State.BROKEN
            yield self._line, Unreadable("found more text behind the array's closing ], expected the end of the file")


def read_document(file: io.BufferedReader, name: str, max_bytes: int = MAX_REQUEST_BYTES) -> Iterator[Element]:
    """Give the requests of a .json file, reading it to its end.

    Raises:
        FileFormatError: it is neither an array nor an object, or the one object cannot be read.
    """
    line = 1
    rest = file.read(CHUNK_BYTES).removeprefix(BYTE_ORDER_MARK)
    while rest and not rest.strip(JSON_SPACE):
        line += rest.count(b"\n")
        rest = file.read(CHUNK_BYTES)
    content = rest.lstrip(JSON_SPACE)
    line += rest.count(b"\n", 0, len(rest) - len(content))
    match content[:1]:
        case b"[":
            yield from _read_array(file, content[1:], line, max_bytes)
        case b"{":
            yield line, _read_object(file, content, name, line, max_bytes)
        case _:
            found = _excerpt(content) if content else "nothing"
            raise FileFormatError(
                f"{name}: found {found}, expected a JSON object or an array of them", line if content else None
            )


def _read_array(file: io.BufferedReader, content: bytes, line: int, max_bytes: int) -> Iterator[Element]:
    splitter = ArraySplitter(line, max_bytes)
    yield from splitter.feed(content)
    while chunk := file.read(CHUNK_BYTES):
        yield from splitter.feed(chunk)
    yield from splitter.finish()


def _read_object(file: io.BufferedReader, content: bytes, name: str, line: int, max_bytes: int) -> bytes:
    content += file.read(max(max_bytes + 1 - len(content), 0))
    if len(content) > max_bytes:
        raise FileFormatError(f"{name}: found an object of more than {max_bytes} bytes, expected at most so many")
    try:
        read_json(content)
    except InvalidRequestError as error:
        expected = "expected one object or an array (one object a line is .jsonl)"
        raise FileFormatError(f"{name}: {error.text}; {expected}", line) from error
    return content


def _excerpt(content: bytes) -> str:
    return shown(content[:_EXCERPT_BYTES].decode(errors="replace"))
