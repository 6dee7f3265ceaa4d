"""How many tokens a request is expected to take, for the turns between files."""

import pytest

from daemon.request_record import ParsedRequest, Url
from daemon.settings_pipeline import PipelineSettings, Reasoning
from daemon.text_request import num_tokens_of, to_text_request
from pipelines.core.request import SamplingParams, ToolFormat, ToolUse

CHAT = ({"role": "user", "content": "x" * 400},)


def num_tokens(context=1000, system=None, max_tokens=None, n=1, **prompt):
    settings = PipelineSettings(engine="e", system=system)
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    parsed = ParsedRequest(0, 1, "line-1", Url.CHAT, True, None, sampling, None, **prompt)
    return num_tokens_of(parsed, to_text_request(parsed, settings, "f", file=1), context)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (100 + 16, {"messages": CHAT, "max_tokens": 16}),
        (100 + 3 * 16, {"messages": CHAT, "max_tokens": 16, "n": 3}),
        (200 + 16, {"messages": CHAT, "max_tokens": 16, "system": "y" * 400}),
        (50 + 16, {"text": "z" * 200, "max_tokens": 16}),
        (75 + 16, {"text": "\u65e5" * 100, "max_tokens": 16}),  # three bytes each
        (7 + 16, {"token_ids": (1,) * 7, "max_tokens": 16}),
        (1000, {"messages": CHAT}),  # no end is given: all of the context
        (100 + 1, {"messages": CHAT, "context": 0}),  # which is not known yet
        (1000, {"messages": CHAT, "max_tokens": 10**12}),  # more than the context: it will be refused
        (100 + 16, {"messages": CHAT, "max_tokens": 16, "context": 0}),
        (5000 + 1, {"text": "z" * 20_000}),  # longer than the context: it will be refused
    ],
)
def test_a_request_takes_its_prompt_and_its_answers(expected, given):
    assert num_tokens(**given) == expected


def template_kwargs(of_pipeline, of_request, **prompt):
    settings = PipelineSettings(engine="e", chat_template_kwargs=of_pipeline)
    prompt = prompt or {"messages": CHAT}
    parsed = ParsedRequest(
        0, 1, "line-1", Url.CHAT, True, None, SamplingParams(), None, template_kwargs=of_request, **prompt
    )
    return to_text_request(parsed, settings, "f", file=1).template_kwargs


def test_what_the_template_is_told_comes_from_the_request_then_from_the_pipeline():
    assert template_kwargs({}, None) is None
    assert template_kwargs({}, {"a": 1}) == {"a": 1}
    assert template_kwargs({"a": 0, "b": "x"}, {"a": 1}) == {"a": 1, "b": "x"}
    assert template_kwargs({"enable_thinking": False}, None) == {"enable_thinking": False}
    assert template_kwargs({"enable_thinking": False}, None, text="no chat") is None


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"text": "x" * 4000}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "y" * 4000}}


def test_tools_and_calls_count_as_the_rest_of_a_prompt():
    """Else a file of them would get more than its share."""
    turns = ({"role": "assistant", "content": None, "tool_calls": [CALL]},)
    tools = ToolUse((TOOL,))
    plain = num_tokens(messages=CHAT, max_tokens=16, context=8000)
    assert num_tokens(messages=(*CHAT, *turns), tools=tools, max_tokens=16, context=8000) == pytest.approx(
        plain + 2000, abs=100
    )


def test_how_answers_are_taken_apart_is_the_pipelines():
    parsed = ParsedRequest(0, 1, "line-1", Url.CHAT, True, None, SamplingParams(), None, messages=CHAT, tools=ToolUse())
    usual = to_text_request(parsed, PipelineSettings(engine="e"), "f", file=1)
    assert (usual.tools, usual.tool_format, usual.splits_reasoning) == (ToolUse(), ToolFormat.AUTO, False)
    settings = PipelineSettings(engine="e", tool_calls=ToolFormat.MISTRAL, reasoning=Reasoning.SPLIT)
    asked = to_text_request(parsed, settings, "f", file=1)
    assert (asked.tool_format, asked.splits_reasoning) == (ToolFormat.MISTRAL, True)
