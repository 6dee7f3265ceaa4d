"""An answer is taken apart into thought, calls and what it says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.request import (
    Choice,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    TextRequest,
    ToolCall,
    ToolFormat,
    ToolUse,
)
from pipelines.text.answer import AnswerReader, answer_reader, find_thought
from pipelines.text.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
TOOLS = ToolUse(({"type": "function", "function": {"name": "f"}},))
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
USER = {"role": "user", "content": "Hi"}


def reader(prompt: str = "Hi", **fields: Any) -> AnswerReader | None:
    given = TextRequest(1, 0, 0, SamplingParams(), **{"messages": (USER,)} | fields)
    return answer_reader(given, tuple(prompt.encode()), TOKENIZER)


def read(text: str, prompt: str = "Hi", **fields: Any) -> Choice:
    found = reader(prompt, **fields)
    assert found is not None
    return found.read(Choice(text, FinishReason.STOP, len(text)), tuple(text.encode()), opens_text=True)


def parts(choice: Choice) -> tuple[str | None, str, int]:
    return choice.reasoning, choice.text, len(choice.tool_calls)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", (None, "Paris", 0)),
        ("<think>\nHm.\n</think>\n\nParis", ("Hm.", "Paris", 0)),
        ("\n<think></think>Paris\n", ("", "Paris\n", 0)),
        ("<think>Hm", ("Hm", "", 0)),  # cut
        ("<think>a</think>b<think>c</think>", ("a", "b<think>c</think>", 0)),
        ("Well, <think>a</think>b", (None, "Well, <think>a</think>b", 0)),
        ("<thi", (None, "<thi", 0)),
    ],
)
def test_a_thought_is_split_off(text: str, expected: tuple[str | None, str, int]) -> None:
    assert parts(read(text, splits_reasoning=True)) == expected


@pytest.mark.parametrize("prompt", ["...assistant\n<think>\n", "<think>"])
def test_a_thought_that_the_template_opened_is_seen(prompt: str) -> None:
    assert parts(read("Hm.</think>\nParis", prompt, splits_reasoning=True)) == ("Hm.", "Paris", 0)
    assert parts(read("Hm", prompt, splits_reasoning=True)) == ("Hm", "", 0)
    assert parts(read("Paris", "<think>\n\n</think>\n\n", splits_reasoning=True)) == (None, "Paris", 0)


def test_an_answer_that_goes_on_with_a_message_is_within_its_thought() -> None:
    for content, expected in (("<think>Hm", ("Hm.", "Paris", 0)), ("<think>a</think>b", (None, "Hm.</think>Paris", 0))):
        turns = (USER, {"role": "assistant", "content": content})
        assert (
            parts(read("Hm.</think>Paris", messages=turns, continues_message=True, splits_reasoning=True)) == expected
        )


def test_the_tokens_of_a_thought_go_up_to_the_answer() -> None:
    assert read("<think>Hm</think>Paris", splits_reasoning=True).num_reasoning_tokens == len("<think>Hm</think>")
    assert read("Paris", splits_reasoning=True).num_reasoning_tokens == 0


def test_an_answer_of_a_given_form_has_no_thought() -> None:
    """Even behind a template that opened one: else all of it would be that."""
    form = Grammar(GrammarKind.CHOICE, '["yes"]', "guided_choice")
    assert parts(read("yes", "<think>", grammar=form, splits_reasoning=True)) == (None, "yes", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, (None, "", 1)),
        (f"Let me see.\n{CALL}\n{CALL}\n", (None, "Let me see.\n", 2)),
        (f"<think>I could {CALL}</think>\n\n{CALL}", ("I could " + CALL, "", 1)),
        (f"<think>{CALL}", (CALL, "", 0)),
        ("Paris \n", (None, "Paris \n", 0)),
    ],
)
def test_calls_are_told_apart_and_a_thought_calls_nothing(text: str, expected: tuple[str | None, str, int]) -> None:
    assert parts(read(text, tools=TOOLS, splits_reasoning=True)) == expected


def test_a_thought_stays_in_the_text_where_it_is_not_split_off() -> None:
    choice = read(f"<think>{CALL}</think>Now:{CALL}", tools=TOOLS)
    assert parts(choice) == (None, f"<think>{CALL}</think>Now:", 1)
    assert choice.tool_calls == (ToolCall("f", '{"x": 1}'),)


def test_a_required_call_of_mistral_comes_without_its_mark() -> None:
    """A grammar cannot ask for a control token; one that was cut is text as it is."""
    asked: dict[str, Any] = {"tools": ToolUse(TOOLS.definitions, must_call=True), "tool_format": ToolFormat.MISTRAL}
    assert parts(read('[{"name": "f", "arguments": {}}]', **asked)) == (None, "", 1)
    assert parts(read('[{"name": "f"', **asked)) == (None, '[{"name": "f"', 0)


def test_nothing_is_taken_apart_where_nothing_asks_for_it() -> None:
    assert reader() is None
    assert reader(tools=ToolUse()) is None
    assert reader(tools=TOOLS, tool_format=ToolFormat.TEXT) is None
    assert reader(messages=None, text="x", splits_reasoning=True) is None


marks = st.sampled_from(["<think>", "</think>", CALL, "<tool_call>", " ", "\n", "a", "<"])


@given(st.lists(marks, max_size=8).map("".join), st.booleans(), st.booleans())
def test_nothing_but_blanks_and_tags_is_lost(text: str, is_open: bool, splits: bool) -> None:
    """Thought, text and calls in their order are the answer."""
    prompt = "<think>" if is_open else "Hi"
    choice = read(text, prompt, tools=TOOLS, splits_reasoning=splits)
    thought = find_thought(text, is_open=is_open)
    begin = thought.answer if thought else 0
    num_calls = len(choice.tool_calls)
    said = text[begin:]
    assert num_calls == said.count(CALL)
    kept = (choice.reasoning or "") + choice.text
    if thought and splits:
        expected = text[thought.start : thought.end] + said.replace(CALL, "")
    else:
        expected = text[:begin] + said.replace(CALL, "")
    assert "".join(kept.split()) == "".join(expected.split())
