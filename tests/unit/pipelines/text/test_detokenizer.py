"""Text comes out of tokens whole, never half a character, and stop strings are found wherever they lie."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.text.detokenizer import Detokenizer, StopWatcher

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # seven characters' worth of bytes each, one glyph
BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [*BYTES, b"three", b" f", b"our", b"", b"\xf0\x9f\x91", b"\xa8\xe2", b" "]  # 259 is a control token
STOP_TOKEN = 259

token_lists = st.lists(
    st.one_of(st.integers(0, len(PIECES) - 1), st.sampled_from([*b"ab", *FAMILY.encode(), 256, 257, 258, 260, 261])),
    max_size=40,
)
stop_lists = st.lists(
    st.one_of(st.text("ab", min_size=1, max_size=3), st.sampled_from([FAMILY, "three f", "\ufffd"])), min_size=1
)


def text_of(token_ids: Sequence[int]) -> str:
    return Detokenizer(PIECES).text(token_ids, opens_text=False)


def watcher(*stops: str) -> StopWatcher:
    return StopWatcher(Detokenizer(PIECES).stream(opens_text=False), stops, frozenset({STOP_TOKEN}))


@given(token_lists)
def test_the_text_of_some_tokens_is_a_prefix_of_the_text_of_more(token_ids: list[int]) -> None:
    """Whatever the bytes are, no character once said is taken back, and none is half."""
    texts = [text_of(token_ids[:count]) for count in range(len(token_ids) + 1)]
    for shorter, longer in pairwise(texts):
        assert longer.startswith(shorter)


@given(st.text(max_size=20), st.integers(0, 3))
def test_a_text_comes_back_and_a_begun_character_is_dropped(text: str, num_extra: int) -> None:
    begun = "\U0001f600".encode()[:num_extra]
    assert text_of([*text.encode("utf-8", "ignore"), *begun]) == text.encode("utf-8", "ignore").decode()


def test_a_replacement_character_that_the_model_wrote_stays() -> None:
    """U+FFFD may be what the model said; only bytes that begin a character are dropped."""
    assert text_of([*"x\ufffd".encode(), 0xE2, 0x82]) == "x\ufffd"


def test_bytes_that_are_no_character_are_replaced_and_the_rest_is_kept() -> None:
    assert text_of([*b"a", 0xFF, *b"b"]) == "a\ufffdb"


def test_a_blank_before_the_first_word_is_dropped_where_the_tokenizer_does_and_a_text_opens() -> None:
    detokenizer = Detokenizer([b"", b" word"], drops_first_space=True)
    assert detokenizer.text([0, 1, 1], opens_text=True) == "word word"
    assert detokenizer.text([1, 1], opens_text=False) == " word word"
    stream = detokenizer.stream(opens_text=True)
    assert [stream.push(token_id) for token_id in (0, 1, 1)] == ["", "word", " word"]


def expected_stop(token_ids: list[int], stops: list[str]) -> tuple[int, str] | None:
    """The definition: the smallest number of tokens whose text holds a stop string, and the text before it."""
    for count in range(1, len(token_ids) + 1):
        if token_ids[count - 1] == STOP_TOKEN:
            continue
        text = text_of([token_id for token_id in token_ids[:count] if token_id != STOP_TOKEN])
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return count, text[: min(found)]
    return None


@given(token_lists, stop_lists, st.lists(st.integers(0, 40)))
@example([*FAMILY.encode()], [FAMILY], [1, 5, 11])
@example([256, 257, 258], ["three f", "our"], [])
def test_a_stop_string_is_found_at_the_same_token_however_tokens_are_grouped(
    token_ids: list[int], stops: list[str], cuts: list[int]
) -> None:
    """For any tokens, any stop strings and any grouping the watcher agrees with the definition."""
    found = watcher(*stops)
    bounds = sorted({0, len(token_ids), *(cut for cut in cuts if cut < len(token_ids))})
    for start, end in pairwise(bounds):
        if found.push(token_ids[start:end]):
            break
    expected = expected_stop(token_ids, stops)
    assert (None if found.text is None else (found.num_seen, found.text)) == expected


@pytest.mark.parametrize(
    ("token_ids", "stop", "num_tokens", "text"),
    [
        ([256, 257, 258], "three f", 2, ""),
        ([*b"x", 256, 257, 258], "e fo", 4, "xthre"),
        ([*b"x", 260, 261, *FAMILY.encode()[5:]], FAMILY, 3 + len(FAMILY.encode()) - 5, "x"),
        ([*b"aab"], "ab", 3, "a"),
    ],
    ids=["across tokens", "inside tokens", "emoji", "overlap"],
)
def test_the_text_is_cut_before_the_stop_string(token_ids: list[int], stop: str, num_tokens: int, text: str) -> None:
    found = watcher(stop)
    assert found.push(token_ids)
    assert (found.num_seen, found.text) == (num_tokens, text)


def test_of_two_stop_strings_in_one_token_the_first_in_the_text_cuts() -> None:
    found = watcher("ee", "hr")
    assert found.push([256])
    assert (found.num_seen, found.text) == (1, "t")


def test_half_of_an_emoji_does_not_stop_anything() -> None:
    found = watcher(FAMILY)
    assert not found.push(FAMILY.encode()[:-1])
    assert found.push(FAMILY.encode()[-1:])


def test_a_stop_string_among_the_first_tokens_is_passed_over_where_there_must_be_more() -> None:
    """Also one that begins among them; it is found where it comes again, and the answer keeps all that is before that."""
    ids = [token for token in range(len(PIECES)) if PIECES[token] == b"a"][:1] * 6
    watching = StopWatcher(Detokenizer(PIECES).stream(opens_text=False), ("aa",), frozenset({STOP_TOKEN}), 3)
    assert not watching.push(ids[:4])
    assert watching.push(ids[4:])
    assert (watching.num_seen, watching.text) == (5, "aaa")
