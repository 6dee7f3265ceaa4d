"""What a request says its answer must look like, under every name in use; what is wrong with it is named."""

import json
from typing import Any

import pytest

from daemon.request_body import read_body
from daemon.request_grammar import grammar_of_answer
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Url
from pipelines.core.request import Grammar, GrammarKind

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
TEXT = json.dumps(SCHEMA)
PROMPTS: dict[Url, dict[str, Any]] = {
    Url.CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    Url.COMPLETIONS: {"prompt": "Hi"},
    Url.RESPONSES: {"input": "Hi"},
}


def grammar(url: Url = Url.CHAT, **fields: Any) -> Grammar | None:
    return read_body(url, PROMPTS[url] | fields).grammar


def of_schema(param: str) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, TEXT, param)


def of_regex(param: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, "a", param)


@pytest.mark.parametrize("url", list(Url))
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}', "response_format")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
            of_schema("response_format.json_schema.schema"),
        ),
        ({"guided_json": SCHEMA}, of_schema("guided_json")),
        ({"guided_json": TEXT}, of_schema("guided_json")),
        ({"guided_regex": "[ab]+"}, Grammar(GrammarKind.REGEX, "[ab]+", "guided_regex")),
        ({"guided_choice": ["a", "\u00e9"]}, Grammar(GrammarKind.CHOICE, '["a", "\u00e9"]', "guided_choice")),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, of_schema("structured_outputs.json")),
        ({"structured_outputs": {"regex": "a", "json_object": False}}, of_regex("structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.CHOICE, '["a"]', "structured_outputs.choice")),
        (
            {"structured_outputs": {"json_object": True}},
            Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}', "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {}}, None),
    ],
)  # fmt: skip
def test_every_name_for_it(url: Url, fields: dict[str, Any], expected: Grammar | None) -> None:
    """The order of a schema's properties is kept: it is the order in which they are written."""
    assert grammar(url, **fields) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({}, None),
        ({"format": {"type": "text"}, "verbosity": "medium"}, None),
        ({"format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}}, of_schema("text.format.schema")),
        ({"format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}', "text.format")),
    ],
)  # fmt: skip
def test_the_text_of_a_response(text: dict[str, Any], expected: Grammar | None) -> None:
    assert grammar(Url.RESPONSES, text=text) == expected


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": "json"}, "invalid_type", "response_format"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"response_format": {"type": "grammar"}}, "unsupported_value", "response_format.type"),
        ({"response_format": {"type": 1}}, "invalid_type", "response_format.type"),
        ({"response_format": {"type": "text", "schema": {}}}, "unknown_parameter", "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "invalid_type",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": 3, "schema": {}}}},
            "invalid_type",
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": "yes", "schema": {}}}},
            "invalid_type",
            "response_format.json_schema.strict",
        ),
        ({"guided_json": "{"}, "invalid_value", "guided_json"),
        ({"guided_json": "[1]"}, "invalid_type", "guided_json"),
        ({"guided_json": "[" * 100_000}, "invalid_value", "guided_json"),
        ({"guided_json": '{"a":' * 200 + "1" + "}" * 200}, "invalid_value", "guided_json"),
        ({"guided_json": '{"type": "object", "type": "string"}'}, "invalid_value", "guided_json"),
        ({"guided_json": '{"minimum": NaN}'}, "invalid_value", "guided_json"),
        ({"guided_json": '{"const": "\\ud800"}'}, "invalid_value", "guided_json"),
        ({"guided_regex": ""}, "invalid_value", "guided_regex"),
        ({"guided_regex": ["a"]}, "invalid_type", "guided_regex"),
        ({"guided_choice": []}, "invalid_value", "guided_choice"),
        ({"guided_choice": ["a", ""]}, "invalid_value", "guided_choice"),
        ({"guided_choice": "a"}, "invalid_type", "guided_choice"),
        ({"structured_outputs": [1]}, "invalid_type", "structured_outputs"),
        ({"structured_outputs": {"grammar": "x"}}, "unsupported_parameter", "structured_outputs.grammar"),
        ({"structured_outputs": {"jason": {}}}, "unknown_parameter", "structured_outputs.jason"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"json_object": 1}}, "invalid_type", "structured_outputs.json_object"),
        ({"guided_grammar": "x"}, "unsupported_parameter", "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "invalid_value", "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "invalid_value", "guided_regex"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        grammar(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert "expected" in caught.value.text or "unknown key" in caught.value.text


def test_text_is_no_field_of_a_chat_and_a_format_no_empty_word() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        grammar(text={"format": {"type": "json_object"}})
    assert caught.value.param == "text"
    with pytest.raises(InvalidRequestError) as caught:
        grammar(Url.RESPONSES, text={"frmat": {}})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "text.frmat")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, None),
        ({"choice": ["a", "b"]}, Grammar(GrammarKind.CHOICE, '["a", "b"]', "answer.choice of the pipeline")),
        ({"regex": "a"}, Grammar(GrammarKind.REGEX, "a", "answer.regex of the pipeline")),
        ({"json_schema": SCHEMA}, Grammar(GrammarKind.JSON_SCHEMA, TEXT, "answer.json_schema of the pipeline")),
    ],
)
def test_what_a_pipeline_says(answer: dict[str, Any] | None, expected: Grammar | None) -> None:
    assert grammar_of_answer(answer) == expected
