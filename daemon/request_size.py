"""About how much memory a request takes up, so that what is kept or outstanding of requests can be bounded.

It is an upper estimate for a 64-bit interpreter. A request's length would not do: what holds many small values, such as token
ids or the schemas of tools, takes up many times its text.
"""

from typing import Any

from daemon.request_record import BadLine, ParsedRequest

# Bytes of what requests are made of.
_REQUEST = 400  # with its sampling
_BAD_LINE = 200
_OBJECT = 240  # without what it holds
_OBJECT_KEY = 56
_ELEMENT = 40  # of a list; also a value that is neither a text nor holds anything
_TOKEN_ID = 36  # of a tuple of them
_BIAS = 128
_ASCII_TEXT = 56  # without its characters, of which each is a byte
_WIDE_TEXT, _WIDE_CHARACTER = 80, 4  # a text that is not ASCII: without its characters; each of them, at most

_NUM_USUAL_KEYS = 2  # of a message: role and content


def memory_bytes(item: ParsedRequest | BadLine) -> int:
    """Return the bytes of memory that a request or a bad line takes up, rather too many than too few."""
    if isinstance(item, BadLine):
        return _BAD_LINE + _text(item.custom_id) + _text(item.message)
    sampling = item.sampling
    size = _REQUEST + _text(item.custom_id)
    if item.text is not None:
        size += _text(item.text)
    if item.messages:
        size += sum(map(_message, item.messages))
    if item.token_ids or sampling.stop_token_ids:
        size += _TOKEN_ID * (len(item.token_ids or ()) + len(sampling.stop_token_ids))
    if sampling.stop or sampling.logit_bias:
        size += sum(map(_text, sampling.stop)) + _BIAS * len(sampling.logit_bias)
    if item.model is not None:
        size += _text(item.model)
    if item.grammar is not None:
        size += _OBJECT + _text(item.grammar.text)
    if item.template_kwargs is not None:
        size += _value(item.template_kwargs)
    if item.tools is not None:
        size += sum(map(_value, item.tools.definitions))
    return size


def _text(text: str) -> int:
    return _ASCII_TEXT + len(text) if text.isascii() else _WIDE_TEXT + _WIDE_CHARACTER * len(text)


def _message(message: dict[str, Any]) -> int:
    content = message["content"]
    if len(message) == _NUM_USUAL_KEYS and content is not None:
        return _OBJECT + _text(content)
    return _value(message)


def _value(value: Any) -> int:
    """Return the bytes of a value as JSON has it. It recurses: what is nested too deep was refused before."""
    match value:
        case str():
            return _text(value)
        case dict():
            return _OBJECT + sum([_OBJECT_KEY + _text(key) + _value(held) for key, held in value.items()])
        case list():
            return 2 * _ELEMENT + sum([_ELEMENT + _value(held) for held in value])
        case _:
            return _ELEMENT
