"""Token ids to text by way of bytes: never half a character, and the same however the tokens arrive.

Every token stands for some bytes; the text of tokens is what their bytes decode to. Bytes at the end that only begin a
character are held back until the rest comes, and dropped if it never does. Bytes that are no UTF-8 become U+FFFD, one for
each longest run that could have begun a character. So the text of k tokens is always a prefix of the text of k + 1, which a
tokenizer's own `decode` does not promise, and where a stop string ends is well defined:

    the stop string is found at the smallest k whose text contains it; the answer is the text before its first character
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence


class Detokenizer:
    """Holds the bytes of each token."""

    def __init__(self, pieces: Sequence[bytes], *, drops_first_space: bool = False) -> None:
        self._pieces = pieces
        self._drops_first_space = drops_first_space  # the tokenizer writes a blank before the first word of a text

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token by its id; empty for control tokens."""
        return self._pieces

    def with_pieces(self, changed: Mapping[int, bytes]) -> "Detokenizer":
        """Return one for which some tokens stand for other bytes."""
        if not changed:
            return self
        pieces = [changed.get(token_id, piece) for token_id, piece in enumerate(self._pieces)]
        return Detokenizer(pieces, drops_first_space=self._drops_first_space)

    def text(self, token_ids: Iterable[int], *, opens_text: bool) -> str:
        """Return the text of tokens. `opens_text`: they begin a text of their own, as a chat answer does."""
        pieces = self._pieces
        text, _ = codecs.utf_8_decode(b"".join([pieces[token_id] for token_id in token_ids]), "replace", False)
        return text.removeprefix(" ") if opens_text and self._drops_first_space else text

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of one token, empty for a control token."""
        return self._pieces[token_id]

    def stream(self, *, opens_text: bool) -> "TextStream":
        """Return the same for tokens that come one by one."""
        return TextStream(self._pieces, drops_space=opens_text and self._drops_first_space)


class TextStream:
    """The text of tokens that come one by one."""

    def __init__(self, pieces: Sequence[bytes], *, drops_space: bool) -> None:
        self._pieces = pieces
        self._drops_space = drops_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes; often none."""
        text = self._decoder.decode(self._pieces[token_id])
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


class StopWatcher:
    """Looks for stop strings in the tokens of one choice, as they come."""

    def __init__(
        self, stream: TextStream, stops: tuple[str, ...], stop_token_ids: frozenset[int], min_tokens: int = 0
    ) -> None:
        self._stream = stream
        self._min_tokens = min_tokens  # what these complete is not looked at
        self._stops = stops  # none of them empty
        self._stop_token_ids = stop_token_ids  # these are no text
        self._num_kept = max(map(len, stops)) - 1  # characters in which a stop string may have begun
        self._parts: list[str] = []
        self._tail = ""  # the last `num_kept` characters
        self.num_seen = 0  # tokens pushed, up to and with the one that completed a stop string
        self.text: str | None = None  # the answer, once a stop string is complete

    def push(self, token_ids: Iterable[int]) -> bool:
        """Take the next tokens; return whether a stop string is complete. Tokens after that are not looked at."""
        for token_id in token_ids:
            if self.text is not None:
                return True
            self.num_seen += 1
            if token_id not in self._stop_token_ids and (new := self._stream.push(token_id)):
                self._look(new)
        return self.text is not None

    def _look(self, new: str) -> None:
        if self.num_seen <= self._min_tokens:
            self._parts.append(new)
            return
        window = self._tail + new
        found = [at for stop in self._stops if (at := window.find(stop)) >= 0]
        self._parts.append(new)
        if found:
            text = "".join(self._parts)
            self.text = text[: len(text) - len(window) + min(found)]
        self._tail = window[-self._num_kept :] if self._num_kept else ""
