"""One line of a request file: told apart as an OpenAI Batch line or a plain request, and read into a record.

A line is plain if it has `messages` or `prompt` and no `body`, or none of the keys of a Batch line. Whatever is wrong
with it makes a bad line; nothing that stands in a file raises.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon.file_kinds import FileKind
from daemon.quick_body import read_body_quickly
from daemon.request_body import Body, plain_url
from daemon.request_json import check_string, check_text, read_json
from daemon.request_problem import InvalidRequestError, mismatch, missing, shown, unknown
from daemon.request_record import BadLine, ParsedRequest, Place, Unreadable, Url
from pipelines.core.request import SamplingParams

_BATCH_KEYS = ("custom_id", "method", "url", "body")
_URLS: Mapping[str, Url] = {url.value: url for url in Url}
_OTHER_URLS = frozenset(  # OpenAI's Batch API takes these too
    {"/v1/embeddings", "/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/videos"}
)


@dataclass(frozen=True, slots=True)
class LineParser:
    """Makes records of the requests of one file; it has no state, so a request means the same at each reading."""

    name: str  # of the file, for messages
    kind: FileKind

    def parse(self, raw: bytes | Unreadable, place: Place) -> ParsedRequest | BadLine:
        """Return what stands at `place`."""
        if isinstance(raw, Unreadable):
            return self.bad(InvalidRequestError("invalid_json_line", None, raw.text), place, None)
        custom_id = None
        try:
            line = _read_object(raw)
            is_plain_line = is_plain(line)
            custom_id = self._custom_id(line, place, is_plain=is_plain_line)
            check_text(line, raw)
            url, given = _plain(line) if is_plain_line else _batch(line)
            body = _read_body(url, given, is_plain=is_plain_line)
        except InvalidRequestError as error:
            return self.bad(error, place, custom_id)
        return ParsedRequest(
            index=place.index,
            line=place.line,
            custom_id=custom_id,
            url=url,
            is_plain=is_plain_line,
            model=body.model,
            sampling=body.sampling,
            seed=body.seed,
            messages=body.messages,
            text=body.text,
            token_ids=body.token_ids,
            template_kwargs=body.template_kwargs,
            continues_message=body.continues_message,
            grammar=body.grammar,
            wants_token_ids=body.wants_token_ids,
            tools=body.tools,
        )

    def prompt(self, text: str, place: Place) -> ParsedRequest:
        """Return the request of a text that stands for itself: what a user says to the model."""
        return ParsedRequest(
            index=place.index,
            line=place.line,
            custom_id=self.default_id(place),
            url=Url.CHAT,
            is_plain=True,
            model=None,
            sampling=SamplingParams(),
            seed=None,
            messages=({"role": "user", "content": text},),
        )

    def duplicate(self, request: ParsedRequest, first: Place) -> BadLine:
        """Return what becomes of a request whose custom_id stood at `first` before."""
        param = "id" if request.is_plain else "custom_id"
        text = f"found {shown(request.custom_id)}, which {in_words(first, self.kind)} has already, expected an id of its own"
        error = InvalidRequestError("duplicate_custom_id", param, text)
        return self.bad(error, Place(request.index, request.line), request.custom_id)

    def _custom_id(self, line: Mapping[str, Any], place: Place, *, is_plain: bool) -> str:
        key = "id" if is_plain else "custom_id"
        given = line.get(key)
        if given is None and is_plain and isinstance(line.get("custom_id"), str):
            # The line is refused for it, under the name by which it is known.
            key, given = "custom_id", line["custom_id"]
        match given:
            case None:
                return self.default_id(place)
            case str(given) if given:
                check_string((key,), given)
                return given
            case int(given) if is_plain and not isinstance(given, bool):
                return str(given)
            case given:
                expected = "a string (not empty) or a whole number" if is_plain else "a string that is not empty"
                raise mismatch("invalid_value" if given == "" else "invalid_type", key, given, expected)

    def default_id(self, place: Place) -> str:
        """Return the id of a request without one; elements of an array are counted, lines are where they are."""
        return f"line-{place.index + 1 if self.kind is FileKind.JSON else place.line}"

    def bad(self, error: InvalidRequestError, place: Place, custom_id: str | None) -> BadLine:
        """Return the request at `place` as one that cannot be run; `custom_id` is None where it could not be read."""
        subject = f"{error.within}{error.param}: " if error.param else ""
        message = f"{self.name} {in_words(place, self.kind)}: {subject}{error.text}"
        param = error.param and error.param.removeprefix("body.")  # there where the line was looked through as a whole
        own_id = self.default_id(place) if custom_id is None else custom_id
        return BadLine(place.index, place.line, own_id, error.code, message, param)


def in_words(place: Place | ParsedRequest, kind: FileKind) -> str:
    """Say where a request stands in a file of a kind."""
    match kind:
        case FileKind.JSON:
            return f"element {place.index + 1} (line {place.line})"
        case FileKind.PARQUET:
            return f"row {place.line}"
        case _:
            return f"line {place.line}"


def _read_object(raw: bytes) -> dict[str, Any]:
    value = read_json(raw)
    if not isinstance(value, dict):
        raise mismatch("invalid_json_line", None, value, "a JSON object")
    return value


def is_plain(line: Mapping[str, Any]) -> bool:
    """Return whether a line is a plain request, and not one of OpenAI's Batch."""
    if "body" in line:
        return False
    return "messages" in line or "prompt" in line or not any(key in line for key in _BATCH_KEYS)


def _batch(line: Mapping[str, Any]) -> tuple[Url, Mapping[str, Any]]:
    method, url, body = line.get("method"), line.get("url"), line.get("body")
    if method is None:
        if "response" in line:
            text = "found a line of results, expected a request: its answer belongs among the messages of one"
            raise InvalidRequestError("invalid_json_line", "response", text)
        raise missing("method", '"POST"')
    if method != "POST":
        raise mismatch("invalid_method", "method", method, '"POST"')
    if url is None:
        raise missing("url", "one of " + ", ".join(Url))
    if not isinstance(url, str) or url not in _URLS:
        ending = ": this one is not supported" if isinstance(url, str) and url in _OTHER_URLS else ""
        raise mismatch("invalid_url", "url", url, "one of " + ", ".join(Url) + ending)
    if body is None:
        raise missing("body", "an object")
    if not isinstance(body, dict):
        raise mismatch("invalid_type", "body", body, "an object")
    for key, value in line.items():
        if key not in _BATCH_KEYS and value is not None:
            raise unknown("", key, _BATCH_KEYS)
    return _URLS[url], body


def _plain(line: Mapping[str, Any]) -> tuple[Url, Mapping[str, Any]]:
    if sum(line.get(key) is not None for key in _BATCH_KEYS) > 1:  # a Batch line but for the body around its fields
        raise missing("body", "an object with the fields that stand beside it here")
    if line.get("custom_id") is not None:
        raise InvalidRequestError("unknown_parameter", "custom_id", 'unknown key, the id of a plain request is "id"')
    given = {key: value for key, value in line.items() if key != "id"}
    return plain_url(given), given


def _read_body(url: Url, given: Mapping[str, Any], *, is_plain: bool) -> Body:
    try:
        return read_body_quickly(url, given)
    except InvalidRequestError as error:
        error.within = "" if is_plain else "body."
        raise
