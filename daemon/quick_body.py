"""Reads the bodies of one file quickly: most of them differ in prompt, seed and length alone, so the rest of each is read once.

What a prompt or a seed has to be to go this way is looked at here; whatever else there is goes the long way, so that nothing
is taken otherwise than `read_body` takes it, and nothing refused in other words.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from daemon.request_body import SEED_SPAN, Body, read_body
from daemon.request_record import Url

_MAX_KEPT = 256  # different rests; each is small, see below
_MAX_CHARS = 64  # of a text in a rest that is kept
_ROLES: Mapping[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NUM_KEYS = 2  # of a message that has a role and a content
_PROMPTS: Mapping[Url, tuple[str, Any]] = {  # a prompt that stands for any other
    Url.CHAT: ("messages", [{"role": "user", "content": ""}]),
    Url.COMPLETIONS: ("prompt", ""),
}
_DEPENDS = "continue_final_message"  # asks for something of the messages
_LENGTH = "max_tokens"
_ANY_LENGTH = 1  # a length that stands for any other
_MAX_LENGTH = 1 << 31
_DEPEND_ON_LENGTH = frozenset({"min_tokens", "max_completion_tokens"})


def read_body_quickly(url: Url, given: Mapping[str, Any]) -> Body:
    """Return what `read_body` returns, or raise what it raises."""
    if url not in _PROMPTS or _DEPENDS in given:
        return read_body(url, given)
    rest = dict(given)
    prompt, seed = rest.pop(_PROMPTS[url][0], None), rest.pop("seed", None)
    messages = _messages(prompt) if url is Url.CHAT else None
    is_usual = type(prompt) is str if messages is None else bool(messages)
    if not (is_usual and _is_seed(seed) and all(map(_is_simple, rest.values()))):
        return read_body(url, given)
    body = _read_rest(url, tuple(rest), *rest.values())
    return Body(
        body.model,
        body.sampling,
        None if seed is None else seed % SEED_SPAN,
        messages=messages,
        text=prompt if messages is None else None,
        template_kwargs=body.template_kwargs,
        grammar=body.grammar,
        wants_token_ids=body.wants_token_ids,
    )


@lru_cache(maxsize=_MAX_KEPT, typed=True)  # typed: 1, 1.0 and true are equal, but not to a field
def _read_rest(url: Url, names: tuple[str, ...], *values: Any) -> Body:
    length = values[names.index(_LENGTH)] if _LENGTH in names else None
    if type(length) is int and _ANY_LENGTH < length < _MAX_LENGTH and _DEPEND_ON_LENGTH.isdisjoint(names):
        others = (_ANY_LENGTH if name == _LENGTH else value for name, value in zip(names, values, strict=True))
        body = _read_rest(url, names, *others)
        return replace(body, sampling=replace(body.sampling, max_tokens=length))
    name, prompt = _PROMPTS[url]
    return read_body(url, {**dict(zip(names, values, strict=True)), name: prompt})


def _messages(given: Any) -> tuple[dict[str, Any], ...]:
    """Return the messages if each of them is a role and a text and no more, else none."""
    messages: list[dict[str, Any]] = []
    for turn in given if type(given) is list else ():
        if type(turn) is not dict or len(turn) != _NUM_KEYS:
            return ()
        role, content = turn.get("role"), turn.get("content")
        if type(role) is not str or role not in _ROLES or type(content) is not str:
            return ()
        messages.append({"role": _ROLES[role], "content": content})
    return tuple(messages)


def _is_seed(value: Any) -> bool:
    return value is None or (type(value) is int and -SEED_SPAN <= value < SEED_SPAN)


def _is_simple(value: Any) -> bool:
    kind = type(value)
    return kind in {int, float, bool, type(None)} or (kind is str and len(value) <= _MAX_CHARS)
