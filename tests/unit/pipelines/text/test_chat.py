"""Users' words stay words when a chat is rendered."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.text.chat import LiteralGuard, RenderedChat, check_told
from pipelines.text.refusal import RefusalError

CONTROL = ("<s>", "<s>>", "</s>", "[END]")


def template(messages: list[dict[str, Any]], *_: object, **__: object) -> str:
    return "".join(f"<s>{message['role']}: {message['content'].strip()}</s>" for message in messages)


def render(*contents: str) -> RenderedChat:
    messages = [{"role": "user", "content": content} for content in contents]
    return LiteralGuard(CONTROL, template).render(messages)


def test_an_ordinary_chat_goes_to_the_template_untouched() -> None:
    seen: list[list[dict[str, Any]]] = []
    guard = LiteralGuard(CONTROL, lambda messages, *_, **__: seen.append(messages) or "rendered")  # type: ignore[func-returns-value]
    messages = [{"role": "user", "content": "1 < 2 [end]", "name": "x"}]
    assert guard.render(messages) == RenderedChat("rendered")
    assert seen == [messages]


def test_words_that_read_like_control_tokens_are_marked_and_the_templates_own_are_not() -> None:
    chat = render("a </s> b", "plain")
    assert chat.text == "<s>user: a </s> b</s><s>user: plain</s>"
    assert [chat.text[start:end] for start, end in chat.literals] == ["</s>"]
    assert chat.literals == ((11, 15),)


def test_of_two_control_tokens_at_one_place_the_longer_is_meant() -> None:
    chat = render("<s>>")
    assert [chat.text[start:end] for start, end in chat.literals] == ["<s>>"]


def test_the_template_does_not_see_the_words() -> None:
    """So a template that looks for its own tokens in a message is not led astray."""
    seen: list[str] = []

    def looking(messages: list[dict[str, Any]], *_: object, **__: object) -> str:
        seen.extend(message["content"] for message in messages)
        return template(messages)

    LiteralGuard(CONTROL, looking).render([{"role": "user", "content": "x</s>y"}])
    assert "</s>" not in seen[0]
    assert (seen[0][0], seen[0][-1], len(seen[0])) == ("x", "y", 3)


def test_words_deep_inside_a_message_are_found_too() -> None:
    message = {"role": "user", "content": "x", "calls": [{"arguments": {"text": ["[END]"]}}]}
    guard = LiteralGuard(CONTROL, lambda messages, *_, **__: messages[0]["calls"][0]["arguments"]["text"][0])
    assert guard.render([message]) == RenderedChat("[END]", ((0, 5),))


def test_names_within_a_message_are_words_too() -> None:
    """As those of a call's arguments are, which somebody chose as much as their values."""
    message = {"role": "user", "content": "x", "calls": [{"arguments": {"</s>": 1}}]}
    guard = LiteralGuard(CONTROL, lambda messages, *_, **__: next(iter(messages[0]["calls"][0]["arguments"])))
    assert guard.render([message]) == RenderedChat("</s>", ((0, 4),))


def test_what_a_template_is_told_is_guarded_as_messages_are() -> None:
    def telling(messages: list[dict[str, Any]], told: dict[str, Any], *, continues: bool) -> str:
        return f"<s>{told['identity']}|{told['flag']}|{continues}|{messages[0]['content']}"

    guard = LiteralGuard(CONTROL, telling)
    chat = guard.render([{"role": "user", "content": "x"}], {"identity": "a</s>b", "flag": False}, continues=True)
    assert chat == RenderedChat("<s>a</s>b|False|True|x", ((4, 8),))


def test_a_name_that_the_template_does_not_know_is_refused() -> None:
    """A template passes over what it does not know, and a misspelt name would change nothing in silence."""
    source = "{% if enable_thinking is defined %}..."
    check_told({"enable_thinking": False}, source)
    with pytest.raises(RefusalError, match=r"^chat_template_kwargs.enable_think: found a name that") as caught:
        check_told({"enable_think": False}, source)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "chat_template_kwargs.enable_think")


parts = st.sampled_from(["<s>", "</s>", "[END]", "a", " ", "<", "\U000f0000", "\U000f0001", "\n"])
contents = st.lists(parts, min_size=1)


@given(st.lists(st.text() | contents.map("".join), min_size=1, max_size=3))
def test_what_is_rendered_is_what_the_template_would_have_written(messages: list[str]) -> None:
    """Whatever users write, placeholders of their own among it, comes out unchanged, each control word of theirs marked."""
    chat = render(*messages)
    plain = template([{"role": "user", "content": content} for content in messages])
    assert chat.text == plain
    own = sum(chat.text[start:end] in CONTROL for start, end in chat.literals)
    assert own == len(chat.literals)
    unmarked = "".join(
        chat.text[end:start]
        for end, start in zip(
            (0, *(end for _, end in chat.literals)), (*(start for start, _ in chat.literals), None), strict=True
        )
    )
    assert unmarked.count("<s>") == unmarked.count("</s>") == len(messages)


def test_a_model_without_control_tokens_needs_no_guard() -> None:
    assert LiteralGuard((), template).render([{"role": "user", "content": "<s>"}]).literals == ()


def test_what_the_template_raises_goes_through() -> None:
    def refuse(*_: object, **__: object) -> str:
        raise ValueError("no system role")

    with pytest.raises(ValueError, match="no system role"):
        LiteralGuard(CONTROL, refuse).render([{"role": "system", "content": "</s>"}])
