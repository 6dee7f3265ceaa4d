"""A vocabulary from the text process, which has read the model's tokenizer, as the engine process makes masks with it."""

from collections.abc import Callable, Sequence

from pipelines.core.request import Vocabulary
from pipelines.core.sequence import TokenMask
from pipelines.errors import InvariantError


class VocabularyMasks:
    """Makes masks of grammars. `learn` is called from the engine's loop, `mask` from the thread that compiles for it."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size  # the model's
        self._vocabulary: Vocabulary | None = None
        self._new_mask: Callable[[str], TokenMask] | None = None

    def learn(self, vocabulary: Vocabulary) -> None:
        """Take the vocabulary. A text process that was started again says the same once more."""
        self._vocabulary = self._vocabulary or vocabulary

    def mask(self, grammar: str) -> TokenMask:
        """Return the mask of one choice; the first one takes longer."""
        if self._new_mask is None:
            self._new_mask = self._read()
        return self._new_mask(grammar)

    def _read(self) -> Callable[[str], TokenMask]:
        from pipelines.text.grammar import GrammarMasks  # noqa: PLC0415  for engines with such requests alone

        known = self._vocabulary
        if known is None:
            raise InvariantError("a grammar came before the vocabulary")
        encode = _plain_encoder(known.tokenizer) if known.tokenizer else None
        return GrammarMasks(known.pieces, known.eos_ids, encode, self._vocab_size).mask


def _plain_encoder(tokenizer: str) -> Callable[[str], Sequence[int]]:
    """Return what tokenises a text in which nothing is a control token."""
    from tokenizers import Tokenizer  # noqa: PLC0415  as above

    backend = Tokenizer.from_str(tokenizer)
    backend.encode_special_tokens = True

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    return encode
