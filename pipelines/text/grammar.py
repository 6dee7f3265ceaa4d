"""What an answer must look like, as masks over the vocabulary: compiled by llguidance, one bit a token and step.

The text process checks a grammar and writes it as llguidance reads it, so that what is wrong with it is an error line. The
engine process makes a mask of it for each choice. A mask is asked for its bits once the tokens before are known, which is
between a step's forward pass and its sampler (see `Batch.mask_awaits_tokens`).
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pipelines.core.request import Grammar, GrammarKind
from pipelines.text.refusal import RefusalCode, RefusalError

# Between two parts of a JSON value. Without a bound a model that likes line ends may write nothing else up to its limit.
JSON_OPTIONS: Any = {"whitespace_pattern": r"[ \t\n\r]{0,40}"}
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")  # what means something in an expression
_LIMITS = LLParserLimits(max_items_in_row=10_000)  # five times the default: hundreds of properties that may be left out
_NUM_KEPT = 64  # grammars; all requests of a file tend to have the same one
_MAX_MESSAGE_CHARS = 300
_NAMES = {
    GrammarKind.JSON_SCHEMA: "a JSON Schema",
    GrammarKind.REGEX: "a regular expression",
    GrammarKind.CHOICE: "a choice",
    GrammarKind.CALLS: "tools",
}


@lru_cache(maxsize=_NUM_KEPT)
def compile_grammar(grammar: Grammar) -> str:
    """Return a grammar as llguidance reads it.

    Raises:
        RefusalError: it is none, or asks for what cannot be enforced.
    """
    try:
        text = _written(grammar)
        is_wrong, remarks = LLMatcher.validate_grammar_with_warnings(text, limits=_LIMITS)
    except ValueError as error:
        is_wrong, remarks, text = True, [str(error)], ""
    if is_wrong or remarks:  # a warning says that some of it would not be enforced
        reason = _one_line("; ".join(remarks))
        raise RefusalError(
            RefusalCode.INVALID_GRAMMAR,
            grammar.param,
            f"{grammar.param}: found {_NAMES[grammar.kind]} that cannot be enforced: {reason}",
        )
    return text


def _written(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(grammar.text, defaults=JSON_OPTIONS)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            words = [re.sub(_META, r"\\\g<0>", word) for word in json.loads(grammar.text)]
            return LLMatcher.grammar_from_regex("|".join(words))  # as rules of a grammar thousands would be too many
        case GrammarKind.CALLS:
            return grammar.text
        case _:
            assert_never(grammar.kind)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_MESSAGE_CHARS]


class GrammarMask:
    """See `pipelines.core.sequence.TokenMask`."""

    def __init__(self, fresh: LLMatcher, end: bytes) -> None:
        self._fresh = fresh
        self._matcher = fresh.deep_copy()
        self._end = end
        self._num_seen = 0
        self.failure = ""

    def fork(self) -> "GrammarMask":
        """See `TokenMask`."""
        return GrammarMask(self._fresh, self._end)

    def allowed(self, output_token_ids: list[int]) -> bytes:
        """See `TokenMask`. A grammar that turns out to be too costly lets the sequence end, with `failure` saying so."""
        for token in output_token_ids[self._num_seen :]:
            if not self._matcher.is_stopped():  # behind a complete answer the end alone may come, and is none of it
                self._matcher.consume_token(token)
        self._num_seen = len(output_token_ids)
        bits = self._end if self._matcher.is_error() else self._matcher.compute_bitmask()
        if self._matcher.is_error() and not self.failure:
            self.failure = _one_line(self._matcher.get_error().partition("<state>")[0])
        return self._end if self.failure else bits[: len(self._end)]  # it may have a word more


class GrammarMasks:
    """Makes the masks of one model's vocabulary. Used from the engine's loop and from the thread that compiles for it."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        eos_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]] | None,
        vocab_size: int,
    ) -> None:
        """`pieces` are the bytes of each token, empty for control tokens.

        `encode` is how the model's texts are tokenised; without one the longest piece that fits comes first.
        """
        pieces = pieces[:vocab_size]  # a tokenizer may have more than the model
        self._pieces = pieces
        self._encode = encode
        self._encoding = threading.Lock()  # a tokenizer is used by one thread at a time
        self._greedy = {piece: token_id for token_id, piece in reversed(list(enumerate(pieces))) if piece}
        self._longest = max(map(len, self._greedy), default=0)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(pieces, eos_ids[0], self._ids)), vocab_size, list(eos_ids)
        )
        words = bytearray(4 * -(-vocab_size // 32))
        for token_id in eos_ids:
            words[token_id // 8] |= 1 << token_id % 8
        self._end = bytes(words)
        self._fresh = lru_cache(maxsize=_NUM_KEPT)(self._compiled)

    def mask(self, grammar: str) -> GrammarMask:
        """Return the mask of one choice; `grammar` as `compile_grammar` writes it."""
        return GrammarMask(self._fresh(grammar), self._end)

    def _compiled(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)

    def _ids(self, text: bytes) -> list[int]:
        """Return tokens that are exactly `text`: the model's own, or where it would add a blank, the longest first."""
        if self._encode is None:
            return self._longest_first(text)
        try:
            with self._encoding:
                ids = list(self._encode(text.decode()))
        except UnicodeDecodeError:
            return self._longest_first(text)
        written = b"".join([piece for token_id in ids for piece in self._pieces[token_id : token_id + 1]])
        return ids if written == text else self._longest_first(text)

    def _longest_first(self, text: bytes) -> list[int]:
        ids: list[int] = []
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            length = next((length for length in lengths if text[:length] in self._greedy), 0)
            if not length:
                return ids  # a byte without a token: no answer can hold it
            ids.append(self._greedy[text[:length]])
            text = text[length:]
        return ids


class _Vocabulary:
    """A vocabulary as llguidance asks for it."""

    bos_token_id = None
    unk_token_id = None

    def __init__(self, pieces: Sequence[bytes], eos_id: int, encode: Callable[[bytes], list[int]]) -> None:
        self.tokens = list(pieces)
        self.eos_token_id = eos_id
        self.special_token_ids: list[int] = []
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text)
