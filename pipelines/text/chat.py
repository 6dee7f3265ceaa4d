"""Keeps what users write from becoming control tokens when a chat is rendered.

A chat template puts control tokens and users' words into one string, in which `<|im_end|>` in a user's message looks like
the template's own. Therefore such words go through the template as placeholders, characters that occur nowhere in the chat;
afterwards they are put back, and where they stand is remembered: what the tokenizer takes for a control token there is
tokenised again as plain text. A chat without such words takes the ordinary way, untouched.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from pipelines.text.refusal import RefusalCode, RefusalError

_FIRST_PLACEHOLDER = 0xF0000  # a plane of private-use characters
_LAST_PLACEHOLDER = 0xFFFFD

Message = Mapping[str, Any]
Told = Mapping[str, Any]  # what a template is given besides the messages, by name
NOTHING: Told = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as the model's template writes it."""

    text: str
    literals: tuple[tuple[int, int], ...] = ()  # [start, end) of users' words that read like control tokens, in order


class Template(Protocol):
    """A model's chat template."""

    def __call__(self, messages: list[dict[str, Any]], told: dict[str, Any], *, continues: bool) -> str:
        """Write a chat; `continues` leaves the last message open."""
        ...


def check_told(told: Told, template: str) -> None:
    """Look whether a template, given as its source, knows all that it would be told.

    Raises:
        RefusalError: it would pass over a name in silence.
    """
    for name in told:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            param = f"chat_template_kwargs.{name}"
            message = f"{param}: found a name that this model's chat template does not know, expected one that it does"
            raise RefusalError(RefusalCode.UNSUPPORTED_PARAMETER, param, message)


class LiteralGuard:
    """Renders chats around a template."""

    def __init__(self, control_strings: Iterable[str], template: Template) -> None:
        longest_first = sorted(filter(None, control_strings), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._template = template

    def render(self, messages: Sequence[Message], told: Told = NOTHING, *, continues: bool = False) -> RenderedChat:
        """Render a chat. Whatever the template raises goes through."""
        parts = [*messages, told] if told else messages
        found = sorted({word for part in parts for word in self._control_strings(part)})
        if not found:
            return RenderedChat(
                self._template([dict(message) for message in messages], dict(told), continues=continues)
            )
        placeholders = dict(zip(found, _unused_characters(parts, len(found)), strict=True))
        hidden_messages = [self._hidden(message, placeholders) for message in messages]
        hidden = self._template(hidden_messages, self._hidden(told, placeholders), continues=continues)
        return _restored(hidden, {character: word for word, character in placeholders.items()})

    def _control_strings(self, message: Message) -> list[str]:
        if self._pattern is None:
            return []
        values = [value for name, value in message.items() if name != "role"]
        return [word for text in _texts(values) for word in self._pattern.findall(text)]

    def _hidden(self, message: Message, placeholders: Mapping[str, str]) -> dict[str, Any]:
        def hide(text: str) -> str:
            return self._pattern.sub(lambda match: placeholders[match[0]], text) if self._pattern else text

        return {name: value if name == "role" else _mapped(value, hide) for name, value in message.items()}


def _texts(value: Any) -> Iterable[str]:
    """Yield every string in a message, however deep; names within it are words too, such as those of a tool's arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return the same with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _unused_characters(messages: Sequence[Message], count: int) -> list[str]:
    """Return private-use characters that occur nowhere in the chat; there are more of them than any model has control tokens."""
    used = {character for message in messages for text in _texts(message) for character in text}
    codes = range(_FIRST_PLACEHOLDER, _LAST_PLACEHOLDER + 1)
    free = (character for character in map(chr, codes) if character not in used)
    return [character for character, _ in zip(free, range(count), strict=False)]


def _restored(hidden: str, words: Mapping[str, str]) -> RenderedChat:
    parts: list[str] = []
    literals: list[tuple[int, int]] = []
    length = 0
    for part in re.split(f"([{''.join(words)}])", hidden):
        text = words.get(part, part)
        if part in words:
            literals.append((length, length + len(text)))
        parts.append(text)
        length += len(text)
    return RenderedChat("".join(parts), tuple(literals))
