"""What a template knows of tools is read from its code, and how its model calls where it says so for sure."""

from typing import Any

import pytest

from pipelines.core.request import ToolFormat
from pipelines.text.refusal import RefusalError
from pipelines.text.template import check_tools, find_tool_format, read_template, with_short_ids

# After the templates that models of these families bring, as far as it matters here.
QWEN = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n\n<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    '{{- "</tools>\n\nreturn a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{\\"name\\": <function-name>, '
    '\\"arguments\\": <args-json-object>}\n</tool_call><|im_end|>\n" }}{%- endif %}'
    '{%- for message in messages %}{%- if message.tool_calls %}{{ message.tool_calls }}{%- elif message.role == "tool" %}'
    "<tool_response>{{ message.content }}</tool_response>{%- else %}{{ message.content }}{%- endif %}{%- endfor %}"
)
LLAMA = (
    '{%- if tools is not none %}{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument name '
    "and its value}.' }}{%- endif %}{%- for message in messages %}{%- if 'tool_calls' in message %}x"
    '{%- elif message.role == "tool" or message.role == "ipython" %}{{- "<|start_header_id|>ipython<|end_header_id|>" }}'
    "{%- endif %}{%- endfor %}"
)
MISTRAL = (
    '{%- if tools is defined %}[AVAILABLE_TOOLS]{{ tools | tojson }}{%- endif %}{%- for message in messages %}'
    '{%- if message.tool_calls is defined %}{{- "[TOOL_CALLS][" }}{%- for tool_call in message.tool_calls %}'
    '{%- if tool_call.id | length != 9 %}{{- raise_exception("length 9!") }}{%- endif %}{%- endfor %}'
    '{%- elif message["role"] == "tool" %}{{ message["content"] }}{%- endif %}{%- endfor %}'
)  # fmt: skip
CODER = QWEN.replace('{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}', "<function=arguments>")
PLAIN = "{# tools #}{% for m in messages %}You know no tools: {{ m.role }} {{ m['content'] }} {{ m.tools }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (QWEN, ToolFormat.HERMES),
        (LLAMA, ToolFormat.LLAMA3_JSON),
        (MISTRAL, ToolFormat.MISTRAL),
        (CODER, None),
        (PLAIN, None),
        (PLAIN + " <tool_call> arguments", None),
        ("{{ tools }}", None),
        ("{% if", None),
    ],
)
def test_how_a_model_calls(source: str, expected: ToolFormat | None) -> None:
    assert find_tool_format(source) is expected


def test_names_are_what_the_code_uses() -> None:
    """Neither prose nor a comment, and a variable is no attribute of that name."""
    assert "tools" not in read_template(PLAIN).names
    assert {"tools"} <= read_template(QWEN).names


CALLS: Any = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {}}]}
]
RESULT: Any = [{"role": "tool", "content": "x", "tool_call_id": "call_1"}]


@pytest.mark.parametrize("source", [QWEN, LLAMA, MISTRAL])
def test_what_a_template_knows_may_be_said(source: str) -> None:
    check_tools(source, [*CALLS, *RESULT], has_tools=True)


@pytest.mark.parametrize(
    ("messages", "has_tools", "param"),
    [([], True, "tools"), (CALLS, False, "messages[0].tool_calls"), (RESULT, False, "messages[0].role")],
)
def test_what_it_does_not_know_is_refused(messages: Any, has_tools: bool, param: str) -> None:
    """It would pass over it in silence."""
    with pytest.raises(RefusalError) as caught:
        check_tools(PLAIN, messages, has_tools=has_tools)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)
    assert str(caught.value).startswith(f"{param}: this model's chat template does not know ")


def test_ids_are_short_where_the_template_raises_at_others() -> None:
    """Call and result keep belonging together, ids of another call stay others, and what is short already stays."""
    other = [
        {"role": "tool", "content": "x", "tool_call_id": "call_2"},
        {"role": "tool", "content": "x", "tool_call_id": "abcDEF123"},
    ]
    call, result, second, kept = with_short_ids(MISTRAL, [*CALLS, *RESULT, *other])
    short = call["tool_calls"][0]["id"]
    assert (len(short), short.isalnum()) == (9, True)
    assert result["tool_call_id"] == short != second["tool_call_id"]
    assert kept["tool_call_id"] == "abcDEF123"
    assert with_short_ids(QWEN, CALLS) == CALLS
