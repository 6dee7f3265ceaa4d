"""The bytes that each token of a `tokenizers` tokenizer stands for."""

import json
import random
import re
from collections.abc import Collection, Sequence
from typing import Any

from pipelines.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NUM_SAMPLES = 50  # texts by which the table is checked against the tokenizer
_SAMPLE_TOKENS = 20


def token_pieces(backend: Any, control_ids: Collection[int], vocab_size: int) -> list[bytes]:
    """Return the bytes of each id, empty for control tokens and for ids that the model has but the tokenizer has not.

    Raises:
        ModelError: the tokenizer's decoder does more than join tokens, so that no such table exists.
    """
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    kinds = _decoder_kinds(backend.decoder)
    pieces = [b""] * max(vocab_size, max(vocab.values(), default=-1) + 1)
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        for token, token_id in vocab.items():
            pieces[token_id] = _byte_level_piece(token, alphabet)
    else:
        for token_id, piece in _asked_pieces(backend, vocab).items():
            pieces[token_id] = piece
        if "ByteFallback" in kinds:
            for token, token_id in vocab.items():
                if match := _BYTE_TOKEN.fullmatch(token):
                    pieces[token_id] = bytes([int(match[1], 16)])
    for token_id in control_ids:
        pieces[token_id] = b""
    _check(backend, vocab, pieces)
    return pieces


def drops_first_space(backend: Any, pieces: Sequence[bytes]) -> bool:
    """Return whether the tokenizer takes the blank off the first word of what it decodes."""
    with_space = next((index for index, piece in enumerate(pieces) if _is_word(piece)), None)
    return with_space is not None and not str(backend.decode([with_space])).startswith(" ")


def byte_alphabet() -> dict[str, int]:
    """Return the printable character by which byte-level vocabularies write each byte, turned round.

    Printable Latin-1 characters stand for themselves, the other bytes in their order for U+0100 and up: the alphabet of
    GPT-2's vocabulary.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _byte_level_piece(token: str, alphabet: dict[str, int]) -> bytes:
    """Return a token's bytes; one with a character that is not in the alphabet is written as it is."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def _asked_pieces(backend: Any, vocab: dict[str, int]) -> dict[int, bytes]:
    """Return what each token adds behind another one: at the start of a text some tokenizers drop a blank."""
    anchor = next((vocab[token] for token in ("a", "\u2581a", "e", "\u2581e") if token in vocab), None)
    if anchor is None:
        raise ModelError("the tokenizer has no token for the letter a, so its decoder cannot be read")
    before = len(backend.decode([anchor]))
    ids = list(vocab.values())
    texts = backend.decode_batch([[anchor, token_id] for token_id in ids])
    return {token_id: text[before:].encode() for token_id, text in zip(ids, texts, strict=True)}


def _decoder_kinds(decoder: Any) -> set[str]:
    if decoder is None:
        return set()
    state = json.loads(decoder.__getstate__())
    return {part["type"] for part in state.get("decoders", [state])}


def _is_word(piece: bytes) -> bool:
    return piece.startswith(b" ") and piece[1:].isalpha()


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return bool(piece)


def _check(backend: Any, vocab: dict[str, int], pieces: Sequence[bytes]) -> None:
    """Compare the table with the tokenizer's own decoding of arbitrary tokens."""
    ids = [token_id for token_id in sorted(vocab.values()) if _is_text(pieces[token_id])]
    choice = random.Random(0)  # noqa: S311  a sample, no secret
    for _ in range(_NUM_SAMPLES if ids else 0):
        sample = choice.choices(ids, k=_SAMPLE_TOKENS)
        ours = b"".join(pieces[token_id] for token_id in sample).decode()
        theirs = str(backend.decode(sample))
        if theirs not in (ours, ours.removeprefix(" ")):
            raise ModelError(
                f"the tokenizer's decoder {backend.decoder} does not just join tokens: it is not supported"
            )
