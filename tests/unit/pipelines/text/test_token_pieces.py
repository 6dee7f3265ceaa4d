"""The bytes of each token are told right for every kind of decoder, and a decoder without such bytes is refused."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from pipelines.errors import ModelError
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.pieces import byte_alphabet, drops_first_space, token_pieces

SPACE = "\u2581"


def sentencepiece(decoder: Any) -> Tokenizer:
    """A vocabulary as Llama 2 has it: words with a blank mark, and a token for each byte."""
    words = [
        "<unk>",
        f"{SPACE}a",
        "a",
        f"{SPACE}word",
        "s",
        f"{SPACE}{SPACE}",
        "\u00e9",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


LLAMA = decoders.Sequence(
    [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(content=" ", left=1, right=0),
    ]
)
GEMMA = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])


@pytest.mark.parametrize(("decoder", "drops"), [(LLAMA, True), (GEMMA, False)], ids=["llama", "gemma"])
def test_sentencepiece_tokens_are_words_and_bytes(decoder: Any, drops: bool) -> None:
    tokenizer = sentencepiece(decoder)
    pieces = token_pieces(tokenizer, {tokenizer.token_to_id("<s>")}, vocab_size=300)
    told = {
        token: pieces[tokenizer.token_to_id(token)]
        for token in (f"{SPACE}word", "s", f"{SPACE}{SPACE}", "<0xF0>", "<s>")
    }
    assert told == {f"{SPACE}word": b" word", "s": b"s", f"{SPACE}{SPACE}": b"  ", "<0xF0>": b"\xf0", "<s>": b""}
    assert len(pieces) == 300
    assert drops_first_space(tokenizer, pieces) is drops
    detokenizer = Detokenizer(pieces, drops_first_space=drops)
    ids = [
        tokenizer.token_to_id(token)
        for token in (f"{SPACE}word", "s", *(f"<0x{byte:02X}>" for byte in "\U0001f600".encode()))
    ]
    assert detokenizer.text(ids, opens_text=True) == tokenizer.decode(ids)
    # The tokenizer itself would say U+FFFD thrice.
    assert detokenizer.text(ids[:-1], opens_text=True).strip() == "words"


def test_byte_level_tokens_are_bytes() -> None:
    """Every byte has its character; an added token outside the alphabet stands for itself."""
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["<\u4e2d>"])
    pieces = token_pieces(tokenizer, (), vocab_size=0)
    assert [pieces[tokenizer.token_to_id(character)] for character in alphabet] == [
        bytes([byte]) for byte in alphabet.values()
    ]
    assert pieces[tokenizer.token_to_id("<\u4e2d>")] == "<\u4e2d>".encode()
    assert not drops_first_space(tokenizer, pieces)


def test_a_decoder_that_does_more_than_join_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "n": 3, "##'t": 4}, unk_token="[UNK]"))  # noqa: S106  no password
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        token_pieces(tokenizer, (), vocab_size=5)
