"""The engine makes of the vocabulary that it is told the masks that the tokenizer itself would give."""

import json
from pathlib import Path

import pytest
from small_model import save_small_model

from pipelines.channel import HEADER, Peer, decode_records, encode_frame
from pipelines.config import ModelConfig
from pipelines.core.request import Grammar, GrammarKind, Vocabulary
from pipelines.errors import InvariantError
from pipelines.models.facts import SamplingDefaults
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.grammar import GrammarMasks, compile_grammar
from pipelines.text.prepare import Preparer
from pipelines.text.tokenizer import ModelTokenizer, Tokenizer, load_tokenizer
from pipelines.text.vocabulary import VocabularyMasks

WORDS = ("yes, <|end|> it is", "yes no", "maybe")


def choice(*words: str) -> str:
    return compile_grammar(Grammar(GrammarKind.CHOICE, json.dumps(words), "guided_choice"))


def told(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The vocabulary, on its way through a frame."""
    known = Preparer(tokenizer, vocab_size, 256, SamplingDefaults()).vocabulary()
    (record,) = decode_records(encode_frame(Peer.ENGINE, [known])[HEADER.size :])
    assert record == known
    return record


def masks_of(vocabulary: Vocabulary, vocab_size: int) -> VocabularyMasks:
    masks = VocabularyMasks(vocab_size)
    masks.learn(vocabulary)
    return masks


@pytest.fixture(scope="module")
def model_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = save_small_model(tmp_path_factory.mktemp("model") / "model")
    return load_tokenizer(ModelConfig(folder), Path(folder), 260)


def test_the_masks_are_those_of_the_models_own_tokenizer(model_tokenizer: ModelTokenizer) -> None:
    """At each token of each answer, one that reads like a control token among them."""
    eos = model_tokenizer.eos_ids
    own = GrammarMasks(model_tokenizer.detokenizer.pieces, eos, model_tokenizer.plain_ids, 260).mask(choice(*WORDS))
    made = masks_of(told(model_tokenizer, 260), 260).mask(choice(*WORDS))
    for word in WORDS:
        ids = model_tokenizer.plain_ids(word)
        for end in range(len(ids) + 1):
            bits = made.fork().allowed(ids[:end])
            assert bits == own.fork().allowed(ids[:end])
            assert bits[(token := [*ids, *eos][end]) // 8] >> token % 8 & 1


def test_a_tokenizer_without_a_file_is_followed_by_its_pieces() -> None:
    tokenizer = ByteTokenizer()
    mask = masks_of(told(tokenizer, tokenizer.vocab_size), tokenizer.vocab_size).mask(choice("ab"))
    assert [int.from_bytes(mask.allowed(list(seen)), "little") for seen in (b"", b"a", b"ab")] == [
        1 << ord("a"),
        1 << ord("b"),
        1 << tokenizer.eos_id,
    ]


def test_what_is_said_again_changes_nothing() -> None:
    """By a text process that was started anew."""
    tokenizer = ByteTokenizer()
    masks = masks_of(told(tokenizer, tokenizer.vocab_size), tokenizer.vocab_size)
    before = masks.mask(choice("ab")).allowed([])
    masks.learn(Vocabulary((b"z",), (0,), ""))
    assert masks.mask(choice("ab")).allowed([]) == before


def test_a_grammar_before_the_vocabulary_is_a_fault_of_ours() -> None:
    with pytest.raises(InvariantError, match="before the vocabulary"):
        VocabularyMasks(8).mask(choice("a"))
