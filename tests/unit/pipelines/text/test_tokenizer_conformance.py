"""The byte tokenizer of the fake engine does what the real one does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.config import ModelConfig
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.refusal import RefusalError
from pipelines.text.tokenizer import Tokenizer, load_tokenizer

CONTROL = {"bytes": "<|end|>", "embedded": "<|im_end|>"}
# The embedded model has no tokens for a few control characters and for the bytes of the highest planes.
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0xFFFF), max_size=60)
any_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def embedded_tokenizer(embedded_model: Path) -> Tokenizer:
    return load_tokenizer(ModelConfig(str(embedded_model)), embedded_model, vocab_size=49152)


@pytest.fixture(params=["bytes", pytest.param("embedded", marks=pytest.mark.model)])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def tokenizer(kind: str, request: pytest.FixtureRequest) -> Tokenizer:
    found: Any = ByteTokenizer() if kind == "bytes" else request.getfixturevalue("embedded_tokenizer")
    return found


def encode_chat(tokenizer: Tokenizer, *contents: str) -> Sequence[int]:
    (ids,) = tokenizer.encode_chats([tokenizer.render([{"role": "user", "content": content} for content in contents])])
    return list(ids)


@any_example
@given(text=texts)
def test_a_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    (ids,) = tokenizer.encode_texts([text])
    assert tokenizer.detokenizer.text(ids, opens_text=False) == text


def test_the_same_tokens_alone_and_together(tokenizer: Tokenizer) -> None:
    prompts = ["", "one", "two words", "\U0001f600", "1234"]
    assert [list(ids) for ids in tokenizer.encode_texts(prompts)] == [
        list(ids) for prompt in prompts for ids in tokenizer.encode_texts([prompt])
    ]
    assert list(tokenizer.encode_texts([])) == []
    assert list(tokenizer.encode_chats([])) == []


def test_a_control_string_in_a_raw_prompt_is_the_control_token_and_is_no_text(tokenizer: Tokenizer, kind: str) -> None:
    (ids,) = tokenizer.encode_texts([f"a{CONTROL[kind]}b"])
    assert list(ids).count(tokenizer.eos_ids[0]) == 1
    assert tokenizer.detokenizer.text(ids, opens_text=True) == "ab"


def test_a_control_string_that_a_user_writes_stays_text(tokenizer: Tokenizer, kind: str) -> None:
    """It adds no control token, and the text with it comes back whole."""
    plain = encode_chat(tokenizer, "a b")
    guarded = encode_chat(tokenizer, f"a {CONTROL[kind]}b")
    end = tokenizer.eos_ids[0]
    assert plain.count(end) == guarded.count(end)
    assert f"a {CONTROL[kind]}b" in tokenizer.detokenizer.text(guarded, opens_text=True)


@any_example
@given(
    contents=st.lists(st.lists(texts | st.sampled_from(list(CONTROL.values()))).map("".join), min_size=1, max_size=3)
)
def test_no_words_of_a_user_become_control_tokens(tokenizer: Tokenizer, contents: list[str]) -> None:
    """As many control tokens stand in a chat as its turns bring, whatever is in them."""
    end = tokenizer.eos_ids[0]
    assert encode_chat(tokenizer, *contents).count(end) == encode_chat(tokenizer, *("x" for _ in contents)).count(end)


def test_half_a_surrogate_pair_cannot_be_tokenised(tokenizer: Tokenizer) -> None:
    with pytest.raises(Exception, match=r"surrogate|TextInputSequence"):
        tokenizer.encode_texts(["good", "\ud83d"])


def test_an_empty_prompt_has_something_to_start_from(tokenizer: Tokenizer) -> None:
    assert tokenizer.start_id is not None
    assert tokenizer.detokenizer.text([tokenizer.start_id], opens_text=True) == ""


def test_a_chat_that_goes_on_with_its_last_message_ends_in_that_messages_text(tokenizer: Tokenizer) -> None:
    """So that what comes next is the same message's; a control string in it stays words."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure <|im_end|>: {"}]
    chat = tokenizer.render(messages, continues=True)
    assert chat.text.endswith("Sure <|im_end|>: {")
    assert len(tokenizer.render(messages).text) > len(chat.text)


def test_a_name_that_the_template_does_not_know_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RefusalError, match=r"^chat_template_kwargs\.shoe_size: "):
        tokenizer.render([{"role": "user", "content": "Hi"}], {"shoe_size": 43})


def test_tools_are_told_to_the_model_or_refused_by_name(tokenizer: Tokenizer, kind: str) -> None:
    """The embedded model was not taught to call; its template would pass over them."""
    messages = [{"role": "user", "content": "Hi"}]
    tools = [{"type": "function", "function": {"name": "shoe_size"}}]
    if kind == "bytes":
        assert "shoe_size" in tokenizer.render(messages, tools=tools).text
        assert tokenizer.tool_format is not None
    else:
        with pytest.raises(RefusalError, match=r"^tools: this model's chat template does not know tools"):
            tokenizer.render(messages, tools=tools)
        assert tokenizer.tool_format is None


def test_a_detokenizer_that_shows_marks_is_the_same_otherwise(tokenizer: Tokenizer, kind: str) -> None:
    (ids,) = tokenizer.encode_texts([f"a{CONTROL[kind]} b"])
    assert tokenizer.showing(frozenset({"<think>"})).text(ids, opens_text=True) == "a b"
    shown = tokenizer.showing(frozenset({CONTROL[kind]})).text(ids, opens_text=True)
    assert shown == f"a{CONTROL[kind]} b"
