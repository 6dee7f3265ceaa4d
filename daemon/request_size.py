"""About how much memory a request takes up, so that what is kept or outstanding of requests can be bounded.

It is what an interpreter of 64 bits needs, and rather more than less: what holds many small values takes up many times its text.
"""

from typing import Any

from daemon.request_record import BadLine, ParsedRequest

_RECORD = 400  # bytes of a request and its sampling
_BAD_RECORD = 200
_OBJECT = 240  # of an object, besides what it holds
_SLOT = 56  # of a key of an object
_ELEMENT = 40  # of a list, and of what is neither text nor holds anything
_TOKEN_ID = 36  # of a tuple of them
_BIAS = 128
_ASCII = 56  # of a text, besides a byte a character
_WIDE, _CHARACTER = 80, 4  # of one that is not ASCII: besides its characters, and of each at most
_NUM_USUAL_KEYS = 2  # of a message: role and content


def size_of(item: ParsedRequest | BadLine) -> int:
    """Return the bytes of memory."""
    if isinstance(item, BadLine):
        return _BAD_RECORD + _text(item.custom_id) + _text(item.message)
    sampling = item.sampling
    size = _RECORD + _text(item.custom_id)
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
    return _ASCII + len(text) if text.isascii() else _WIDE + _CHARACTER * len(text)


def _message(message: dict[str, Any]) -> int:
    content = message["content"]
    if len(message) == _NUM_USUAL_KEYS and content is not None:
        return _OBJECT + _text(content)
    return _value(message)


def _value(value: Any) -> int:
    """Of a value as JSON has it, which is not nested deep."""
    match value:
        case str():
            return _text(value)
        case dict():
            return _OBJECT + sum([_SLOT + _text(key) + _value(held) for key, held in value.items()])
        case list():
            return 2 * _ELEMENT + sum([_ELEMENT + _value(held) for held in value])
        case _:
            return _ELEMENT
