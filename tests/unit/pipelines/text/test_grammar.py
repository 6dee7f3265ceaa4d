"""An answer under a grammar is one that the grammar allows, whatever the scores; a grammar that cannot be enforced is refused."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.request import Grammar, GrammarKind
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.grammar import GrammarMask, GrammarMasks, compile_grammar
from pipelines.text.refusal import RefusalError

TOKENIZER = ByteTokenizer()
EOS = TOKENIZER.eos_id
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["good", "bad"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["label", "score"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def masks() -> GrammarMasks:
    return GrammarMasks(TOKENIZER.detokenizer.pieces, TOKENIZER.eos_ids, None, TOKENIZER.vocab_size)


def grammar(kind: GrammarKind, value: Any) -> str:
    return compile_grammar(Grammar(kind, value if isinstance(value, str) else json.dumps(value), "field"))


def set_bits(bits: bytes) -> list[int]:
    return [token for token in range(8 * len(bits)) if bits[token // 8] >> token % 8 & 1]


def written(mask: GrammarMask, choose: Callable[[list[int]], int], limit: int = 400) -> str:
    """Write an answer token by token, each chosen among those that are allowed, until it ends."""
    ids: list[int] = []
    while len(ids) < limit:
        token = choose(set_bits(mask.allowed(ids)))
        ids.append(token)
        if token == EOS:
            return bytes(ids[:-1]).decode()
    raise AssertionError(f"it does not end: {bytes(ids)!r}")


@given(st.data())
def test_every_answer_under_a_schema_is_valid_by_it(masks: GrammarMasks, data: st.DataObject) -> None:
    mask = masks.mask(grammar(GrammarKind.JSON_SCHEMA, SCHEMA))
    blanks = {ord(blank) for blank in " \t\n\r"}  # else most of an answer is these

    def choose(allowed: list[int]) -> int:
        return data.draw(st.sampled_from([token for token in allowed if token not in blanks] or allowed))

    jsonschema.validate(json.loads(written(mask, choose)), SCHEMA)


@given(st.data())
def test_every_answer_under_an_expression_or_a_choice_is_one(masks: GrammarMasks, data: st.DataObject) -> None:
    def choose(allowed: list[int]) -> int:
        return data.draw(st.sampled_from(allowed))

    assert re.fullmatch(
        r"[a-c]{2,4}-[0-9]", written(masks.mask(grammar(GrammarKind.REGEX, r"[a-c]{2,4}-[0-9]")), choose)
    )
    words = ["yes", "yes, but", "no \u00e9\n", 'quote"', "back\\slash", "a.*(b)|[c]{2}^$ #&~-/", "$5 + 1? <b>"]
    assert written(masks.mask(grammar(GrammarKind.CHOICE, words)), choose) in words


def test_blanks_between_the_parts_of_json_end(masks: GrammarMasks) -> None:
    """A model that likes blanks best gets on all the same."""
    mask = masks.mask(grammar(GrammarKind.JSON_SCHEMA, {"type": "object", "maxProperties": 0}))
    answer = written(mask, lambda allowed: ord(" ") if ord(" ") in allowed else allowed[-1])
    assert json.loads(answer) == {}
    assert 10 < len(answer) < 100


def test_choices_of_one_request_do_not_share_their_place(masks: GrammarMasks) -> None:
    first = masks.mask(grammar(GrammarKind.CHOICE, ["ab", "cd"]))
    second = first.fork()
    assert set_bits(first.allowed([*b"a"])) == [ord("b")]
    assert set_bits(second.allowed([])) == [*b"ac"]
    assert set_bits(second.allowed([*b"c"])) == [ord("d")]
    assert set_bits(first.fork().allowed([])) == [*b"ac"]


def test_the_same_question_has_the_same_answer(masks: GrammarMasks) -> None:
    """A step that is taken back asks again; one that holds an ended sequence is told that nothing but the end may come."""
    mask = masks.mask(grammar(GrammarKind.CHOICE, ["ab"]))
    assert mask.allowed([*b"a"]) == mask.allowed([*b"a"])
    assert set_bits(mask.allowed([*b"ab"])) == [EOS]
    assert set_bits(mask.allowed([*b"ab", EOS])) == [EOS]
    assert mask.failure == ""


def test_a_grammar_that_fails_on_its_way_lets_nothing_come_but_the_end_and_says_why(masks: GrammarMasks) -> None:
    mask = masks.mask(grammar(GrammarKind.CHOICE, ["ab"]))
    assert set_bits(mask.allowed([*b"x"])) == [EOS]
    assert "doesn't satisfy the grammar" in mask.failure


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (GrammarKind.REGEX, "(a", "field: found a regular expression that cannot be enforced: .*unclosed group"),
        (GrammarKind.REGEX, "a(?=b)", "look-around"),
        (GrammarKind.JSON_SCHEMA, {"type": "objekt"}, "field: found a JSON Schema that cannot be enforced: .*objekt"),
        (GrammarKind.JSON_SCHEMA, {"type": "array", "uniqueItems": True}, "uniqueItems"),
        (GrammarKind.JSON_SCHEMA, {"type": "string", "format": "shoe-size"}, "shoe-size"),
        (GrammarKind.JSON_SCHEMA, {"$ref": "#/$defs/none"}, "cannot be enforced"),
    ],
)
def test_what_cannot_be_enforced_is_refused(kind: GrammarKind, value: Any, says: str) -> None:
    """Also where all but one of a schema's words could be: none is passed over."""
    with pytest.raises(RefusalError, match=says) as caught:
        grammar(kind, value)
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "field")
    assert str(caught.value).isprintable()


def test_a_vocabulary_whose_texts_begin_with_a_blank_is_written_by_its_pieces() -> None:
    """Some tokenizers put a blank in front of every text; a mask must not ask for it in the middle of one."""
    pieces = [b"", b"{", b"}", b'"', b"a", b"ab", b" ", b":", b"1"]
    masks = GrammarMasks(pieces, [0], lambda _: [6, 1], len(pieces))
    mask = masks.mask(grammar(GrammarKind.CHOICE, ["{ab}"]))
    ids: list[int] = []
    while (token := set_bits(mask.allowed(ids))[-1]) != 0:
        ids.append(token)
    assert b"".join(pieces[token] for token in ids) == b"{ab}"


@pytest.mark.parametrize("size", [9, 31, 32, 33, 64, 96])
def test_a_mask_has_a_bit_for_each_token_in_whole_words_and_no_more(size: int) -> None:
    pieces = [b"", b"a", *(b"b%d" % number for number in range(size - 2))]
    mask = GrammarMasks(pieces, [0], lambda _: [1], size).mask(grammar(GrammarKind.CHOICE, ["a"]))
    assert len(mask.allowed([])) == len(mask.allowed([1])) == 4 * -(-size // 32)
    assert set_bits(mask.allowed([1])) == [0]


def test_thousands_of_choices_and_hundreds_of_properties_can_be_enforced(masks: GrammarMasks) -> None:
    """A catalogue of labels; a record most of whose fields may be left out."""
    words = [f"label {number}" for number in range(5000)]
    mask = masks.mask(grammar(GrammarKind.CHOICE, words))
    assert written(mask, lambda allowed: allowed[-1] if EOS not in allowed else EOS) in words
    fields = {f"field_{number}": {"type": "integer"} for number in range(300)}
    mask = masks.mask(
        grammar(GrammarKind.JSON_SCHEMA, {"type": "object", "properties": fields, "additionalProperties": False})
    )
    answer = b'{"field_299": 1}'
    for length in range(len(answer)):
        assert answer[length] in set_bits(mask.allowed([*answer[:length]]))
    assert not mask.failure
