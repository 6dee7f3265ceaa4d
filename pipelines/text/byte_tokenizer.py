"""A tokenizer without a model: a token is a byte. For the fake engine, where what counts is everything but the words."""

import json
from collections.abc import Sequence
from typing import Any

from pipelines.core.request import ToolFormat
from pipelines.text.chat import NOTHING, LiteralGuard, Message, RenderedChat, Told, check_told
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.template import check_thoughts
from pipelines.text.tokenizer import Tool
from pipelines.text.tool_calls import CALL_CLOSES, CALL_OPENS

_NUM_BYTES = 256
_START_ID = _NUM_BYTES + 1
_END = "<|end|>"
_START = "<|start|>"
_TEMPLATE_KNOWS = "enable_thinking"  # which opens the answer with an empty thought where it is false


class ByteTokenizer:
    """See `Tokenizer`; it is held to that by the same test as the real one. Ids below 256 are bytes, two are control tokens.

    An answer's token stands for `token_bytes` times its byte, so that long texts can be had of few steps.
    """

    def __init__(self, context: int = 8192, token_bytes: int = 1) -> None:
        self.context = context
        self.vocab_size = _NUM_BYTES + 2
        self.eos_id = _NUM_BYTES
        self.eos_ids: tuple[int, ...] = (self.eos_id,)
        self.start_id: int | None = _START_ID
        self.tool_format: ToolFormat | None = ToolFormat.HERMES
        self.detokenizer = Detokenizer([*(bytes([byte]) * token_bytes for byte in range(_NUM_BYTES)), b"", b""])
        self._guard = LiteralGuard((_END, _START), _rendered)

    def render(
        self,
        messages: Sequence[Message],
        told: Told = NOTHING,
        *,
        tools: Sequence[Tool] | None = None,
        continues: bool = False,
    ) -> RenderedChat:
        """See `Tokenizer`."""
        check_told(told, _TEMPLATE_KNOWS)
        check_thoughts(_TEMPLATE_KNOWS, messages)
        if tools:
            told = {**told, "tools": tools}
        return self._guard.render(messages, told, continues=continues)

    def encode_chats(self, chats: Sequence[RenderedChat]) -> list[tuple[int, ...]]:
        """See `Tokenizer`."""
        return [self._encode_chat(chat) if chat.literals else self.encode_text(chat.text) for chat in chats]

    def encode_texts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """See `Tokenizer`."""
        return [self.encode_text(text) for text in texts]

    def written(self) -> str:
        """See `Tokenizer`."""
        return ""

    def name(self, token_id: int) -> str:
        """See `Tokenizer`."""
        return {self.eos_id: _END, _START_ID: _START}.get(token_id, "")

    def showing(self, names: frozenset[str]) -> Detokenizer:
        """See `Tokenizer`."""
        control = {self.eos_id: _END, _START_ID: _START}
        return self.detokenizer.with_pieces(
            {token_id: name.encode() for token_id, name in control.items() if name in names}
        )

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the tokens of one text; what reads like a control token becomes it."""
        if "<|" not in text:
            return tuple(text.encode())
        ids: list[int] = []
        for part_of_start, part in enumerate(text.split(_START)):
            if part_of_start:
                ids.append(_START_ID)
            for part_of_end, plain in enumerate(part.split(_END)):
                if part_of_end:
                    ids.append(self.eos_id)
                ids += plain.encode()
        return tuple(ids)

    def _encode_chat(self, chat: RenderedChat) -> tuple[int, ...]:
        ids: tuple[int, ...] = ()
        end = 0
        for start, stop in chat.literals:
            ids += self.encode_text(chat.text[end:start]) + tuple(chat.text[start:stop].encode())
            end = stop
        return ids + self.encode_text(chat.text[end:])


def _rendered(messages: list[dict[str, Any]], told: dict[str, Any], *, continues: bool) -> str:
    tools = "".join(json.dumps(tool) + "\n" for tool in told.get("tools", ()))
    turns = [f"{_START}tools\n{tools}{_END}\n"] if tools else []
    turns += [f"{_START}{message['role']}\n{_said(message)}{_END}\n" for message in messages]
    if continues:
        return "".join(turns).removesuffix(f"{_END}\n")
    thought = "" if told.get("enable_thinking", True) else "<think></think>"
    return f"{''.join(turns)}{_START}assistant\n{thought}"


def _said(message: dict[str, Any]) -> str:
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls", ())
    ]
    written = "".join(f"\n{CALL_OPENS}\n{json.dumps(call)}\n{CALL_CLOSES}" for call in calls)
    return (message["content"] or "") + written
