"""Takes an answer apart: what the model thought in front of it, the calls of tools in it, and what it says.

Where a thought is not told apart it stays where it was, but what it says of calls is a thought and calls nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.core.request import Choice, TextRequest, ToolFormat
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.tokenizer import Tokenizer
from pipelines.text.tool_calls import CALL_MARKS, CALLS_FOLLOW, Piece, find_calls
from pipelines.text.tool_use import format_of

THOUGHT_OPENS, THOUGHT_CLOSES = "<think>", "</think>"
_THOUGHT_MARKS = frozenset({THOUGHT_OPENS, THOUGHT_CLOSES})
_NUM_TAIL_TOKENS = 32  # of a prompt, among which its template may have opened a thought


@dataclass(frozen=True, slots=True)
class Thought:
    """Where in a text a thought stands."""

    start: int  # behind the mark that opens it
    end: int  # before the mark that closes it
    answer: int  # where the answer begins; the end of the text where it does not


def find_thought(text: str, *, is_open: bool) -> Thought | None:
    """Return where the thought at the beginning of a text is; `is_open`: what stands before the text opened it."""
    start = 0
    if not is_open:
        start = len(text) - len(text.lstrip())
        if not text.startswith(THOUGHT_OPENS, start):
            return None
        start += len(THOUGHT_OPENS)
    end = text.find(THOUGHT_CLOSES, start)
    return Thought(start, len(text), len(text)) if end < 0 else Thought(start, end, end + len(THOUGHT_CLOSES))


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Takes the answers of one request apart."""

    form: ToolFormat | None  # of calls; None: none are looked for
    names: frozenset[str]  # of the tools that may be called
    is_held: bool  # a grammar says what the answer is: there is no thought in it
    splits_reasoning: bool
    begins_in_thought: bool
    detokenizer: Detokenizer  # by which marks can be seen that are control tokens

    def read(self, choice: Choice, token_ids: Sequence[int], *, opens_text: bool) -> Choice:
        """Return a finished choice with its parts told apart; `token_ids` are those of its text, and maybe one that ended it."""
        text = choice.text
        thought = None if self.is_held else find_thought(text, is_open=self.begins_in_thought)
        begin = thought.answer if thought else 0
        pieces = self._pieces(text[begin:])
        calls = tuple(call for piece in pieces for call in piece.calls)
        said = "".join(
            [piece.written for piece in pieces if not piece.calls and not (calls and piece.written.isspace())]
        )
        if thought is None or not self.splits_reasoning:
            return replace(choice, text=text[:begin] + said, tool_calls=calls)
        return replace(
            choice,
            text=said.lstrip(),
            tool_calls=calls,
            reasoning=text[thought.start : thought.end].strip(),
            num_reasoning_tokens=self._num_tokens(token_ids, begin, opens_text=opens_text),
        )

    def _num_tokens(self, token_ids: Sequence[int], num_chars: int, *, opens_text: bool) -> int:
        """Return how many tokens it takes to write so many characters of the text."""
        stream = self.detokenizer.stream(opens_text=opens_text)
        count = 0
        for token_id in token_ids:
            if num_chars <= 0:
                break
            num_chars -= len(stream.push(token_id))
            count += 1
        return count

    def _pieces(self, text: str) -> list[Piece]:
        if self.form is None:
            return [Piece(text)]
        if (
            self.form is ToolFormat.MISTRAL and self.is_held
        ):  # its mark is a control token, which a grammar cannot ask for
            pieces = find_calls(CALLS_FOLLOW + text, self.form, self.names)
            return pieces if any(piece.calls for piece in pieces) else [Piece(text)]
        return find_calls(text, self.form, self.names)


def answer_reader(request: TextRequest, prompt: Sequence[int], tokenizer: Tokenizer) -> AnswerReader | None:
    """Return what takes the answers of a prepared request apart; None where they are text and nothing else."""
    form = format_of(request, tokenizer)
    splits = request.splits_reasoning and request.messages is not None
    if form is None and not splits:
        return None
    detokenizer = tokenizer.showing(_THOUGHT_MARKS | CALL_MARKS if form else _THOUGHT_MARKS)
    tools = request.tools
    return AnswerReader(
        form=form,
        names=frozenset(tool["function"]["name"] for tool in tools.definitions) if tools else frozenset(),
        is_held=request.grammar is not None or (tools is not None and tools.must_call),
        splits_reasoning=splits,
        begins_in_thought=_opens_thought(request, prompt, detokenizer),
        detokenizer=detokenizer,
    )


def _opens_thought(request: TextRequest, prompt: Sequence[int], detokenizer: Detokenizer) -> bool:
    """Return whether an answer begins within a thought, because of the template or of the message that it goes on with."""
    if request.continues_message and request.messages:
        return _is_open(request.messages[-1])
    tail = detokenizer.text(prompt[-_NUM_TAIL_TOKENS:], opens_text=False)
    return tail.rstrip().endswith(THOUGHT_OPENS)


def _is_open(message: Mapping[str, Any]) -> bool:
    thought = find_thought(message["content"] or "", is_open=False)
    return thought is not None and thought.answer == thought.end
