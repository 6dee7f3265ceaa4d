"""The tokenizer of a model folder, and what the text process needs of any tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipelines.config import ModelConfig
from pipelines.core.request import ToolFormat
from pipelines.errors import ModelError
from pipelines.text.chat import NOTHING, LiteralGuard, Message, RenderedChat, Told, check_told
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.pieces import drops_first_space, token_pieces
from pipelines.text.refusal import RefusalCode, RefusalError
from pipelines.text.template import check_thoughts, check_tools, find_tool_format, with_short_ids

Tool = Mapping[str, Any]  # as a request has it: {"type": "function", "function": {"name", ...}}


class Tokenizer(Protocol):
    """Text to token ids and back."""

    eos_ids: tuple[int, ...]  # the tokenizer's own; a model's generation config may name more
    start_id: int | None  # what an empty prompt starts from
    detokenizer: Detokenizer
    tool_format: ToolFormat | None  # how the model was taught to write calls, where that can be told for sure

    def render(
        self,
        messages: Sequence[Message],
        told: Told = NOTHING,
        *,
        tools: Sequence[Tool] | None = None,
        continues: bool = False,
    ) -> RenderedChat:
        """Write a chat as the model was taught to read it, up to where its answer begins.

        `told` is what the template is given besides; `tools` is None where the messages do not speak of any either;
        `continues` has the answer go on with the last message.

        Raises:
            RefusalError: the model has no chat template, it does not know what it is told, or refuses these messages.
        """
        ...

    def encode_chats(self, chats: Sequence[RenderedChat]) -> Sequence[Sequence[int]]:
        """Return the ids of rendered chats; users' words never become control tokens.

        Raises:
            Exception: a text that is no Unicode; then none of them is tokenised.
        """
        ...

    def encode_texts(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the ids of raw prompts: control tokens are read, a begin-of-sequence token is added if the model has it so.

        Raises:
            Exception: as above.
        """
        ...

    def written(self) -> str:
        """Return the tokenizer as the tokenizers library reads it; empty for one that is none of its."""
        ...

    def name(self, token_id: int) -> str:
        """Return how a control token is written; empty for an id that stands for nothing."""
        ...

    def showing(self, names: frozenset[str]) -> Detokenizer:
        """Return a detokenizer by which control tokens of these names are text."""
        ...


class ModelTokenizer:
    """A transformers tokenizer, used through its Rust backend: without limits on length, clean-ups or warnings.

    Used from one thread.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self._control_ids = {token_id for token_id, token in added.items() if token.special}
        self._guard = LiteralGuard((added[token_id].content for token_id in self._control_ids), self._apply_template)
        self._control_names = {added[token_id].content: token_id for token_id in self._control_ids}
        pieces = token_pieces(self._backend, self._control_ids, vocab_size)
        self.detokenizer = Detokenizer(pieces, drops_first_space=drops_first_space(self._backend, pieces))
        self._showing: dict[frozenset[str], Detokenizer] = {}
        self.tool_format = find_tool_format(self._template(has_tools=True)) if tokenizer.chat_template else None
        self.eos_ids: tuple[int, ...] = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        self.start_id = next((int(token_id) for token_id in starts if token_id is not None), None)

    def render(
        self,
        messages: Sequence[Message],
        told: Told = NOTHING,
        *,
        tools: Sequence[Tool] | None = None,
        continues: bool = False,
    ) -> RenderedChat:
        """See `Tokenizer`."""
        if not self._tokenizer.chat_template:
            raise RefusalError(
                RefusalCode.NO_CHAT_TEMPLATE,
                "messages",
                "this model has no chat template, so it cannot be given messages: send a prompt to /v1/completions instead",
            )
        source = self._template(has_tools=bool(tools))
        check_told(told, source)
        check_thoughts(source, messages)
        if tools is not None:
            check_tools(source, messages, has_tools=bool(tools))
            messages = with_short_ids(source, messages)
        if tools:
            told = {**told, "tools": list(tools)}
        try:
            return self._guard.render(messages, told, continues=continues)
        except Exception as error:  # a template is a program of the model's authors, whatever it raises is its word
            raise RefusalError(
                RefusalCode.CHAT_TEMPLATE_REFUSES,
                "messages",
                f"the model's chat template refuses these messages: {error}",
            ) from error

    def encode_chats(self, chats: Sequence[RenderedChat]) -> list[list[int]]:
        """See `Tokenizer`."""
        encodings = self._backend.encode_batch_fast([chat.text for chat in chats], add_special_tokens=False)
        return [
            self._guarded_ids(chat) if chat.literals else encoding.ids
            for chat, encoding in zip(chats, encodings, strict=True)
        ]

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer`."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=True)]

    def written(self) -> str:
        """See `Tokenizer`."""
        text: str = self._backend.to_str()
        return text

    def name(self, token_id: int) -> str:
        """See `Tokenizer`."""
        return self._backend.id_to_token(token_id) or ""

    def showing(self, names: frozenset[str]) -> Detokenizer:
        """See `Tokenizer`."""
        if names not in self._showing:
            shown = {self._control_names[name]: name.encode() for name in names if name in self._control_names}
            self._showing[names] = self.detokenizer.with_pieces(shown)
        return self._showing[names]

    def _template(self, *, has_tools: bool) -> str:
        """Return the template's source; some models have one of their own for chats with tools, whichever they are."""
        return str(self._tokenizer.get_chat_template(tools=[{}] if has_tools else None))

    def _apply_template(self, messages: list[dict[str, Any]], told: dict[str, Any], *, continues: bool) -> str:
        rendered: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not continues, continue_final_message=continues, **told
        )
        return rendered

    def _guarded_ids(self, chat: RenderedChat) -> list[int]:
        """Tokenise as usual, then put plain tokens where a user's words became a control token."""
        encoding = self._backend.encode(chat.text, add_special_tokens=False)
        ids: list[int] = []
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            is_literal = any(start < stop and begin < end for begin, stop in chat.literals)
            if is_literal and token_id in self._control_ids:
                ids += self.plain_ids(chat.text[start:end])
            else:
                ids.append(token_id)
        return ids

    def plain_ids(self, text: str) -> list[int]:
        """Return the ids of a piece of text, none of them a control token."""
        self._backend.encode_special_tokens = True
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        finally:
            self._backend.encode_special_tokens = False
        return ids


def load_tokenizer(config: ModelConfig, folder: Path, vocab_size: int) -> ModelTokenizer:
    """Load the tokenizer that lies in a model's folder.

    Raises:
        ModelError: there is none, or it is of a kind that is not supported.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds; the fake engine does without

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=config.trust_remote_code, local_files_only=True
        )
    except Exception as error:  # whatever transformers says of a folder that it cannot use
        reason = " ".join(str(error).split())
        raise ModelError(f"model folder {folder}: its tokenizer cannot be loaded: {reason}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        kind = type(tokenizer).__name__
        raise ModelError(f"model folder {folder}: its tokenizer is a {kind}, expected one with a tokenizer.json")
    return ModelTokenizer(tokenizer, vocab_size)
