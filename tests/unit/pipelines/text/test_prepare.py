"""A text request becomes a token request with nothing left open, or a refusal that names what is wrong."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.request import (
    Adjustments,
    Grammar,
    GrammarKind,
    RequestRefused,
    SamplingParams,
    TextRequest,
    TokenRequest,
    ToolFormat,
    ToolUse,
)
from pipelines.models.facts import SamplingDefaults
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.chat import RenderedChat
from pipelines.text.grammar import GrammarMasks
from pipelines.text.prepare import Preparer
from pipelines.text.refusal import RefusalCode, RefusalError
from pipelines.text.tool_calls import find_calls

CONTEXT = 32
EOS = ByteTokenizer().eos_id


def preparer(defaults: SamplingDefaults | None = None, tokenizer: ByteTokenizer | None = None) -> Preparer:
    tokenizer = tokenizer or ByteTokenizer(CONTEXT)
    return Preparer(tokenizer, tokenizer.vocab_size, CONTEXT, defaults or SamplingDefaults())


def request(key: int = 1, **fields: Any) -> TextRequest:
    """A request; sampling fields beside its own."""
    own = {name: fields.pop(name) for name in list(fields) if name in TextRequest.__slots__}
    if not own.keys() & {"text", "messages", "token_ids"}:
        own["text"] = "hello"
    return TextRequest(key=key, file=3, priority=4, sampling=SamplingParams(**fields), **own)


def prepared(text_request: TextRequest, defaults: SamplingDefaults | None = None) -> TokenRequest:
    (result,) = preparer(defaults).prepare([text_request])
    assert isinstance(result, TokenRequest), result
    return result


def refused(text_request: TextRequest, tokenizer: ByteTokenizer | None = None) -> RequestRefused:
    (result,) = preparer(tokenizer=tokenizer).prepare([text_request])
    assert isinstance(result, RequestRefused), result
    return result


def test_what_a_request_says_is_passed_on() -> None:
    sampling = {"max_tokens": 5, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "seed": 11, "n": 2}
    assert prepared(request(text="hi", stop=("x",), stop_token_ids=(65, 65), **sampling)) == TokenRequest(
        key=1,
        file=3,
        priority=4,
        prompt_token_ids=tuple(b"hi"),
        stop_token_ids=(65, EOS),
        wants_deltas=True,
        **sampling,
    )


def test_what_it_does_not_say_is_the_models_own() -> None:
    found = prepared(request(), SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, eos_ids=(7, EOS)))
    assert (found.temperature, found.top_k, found.top_p, found.stop_token_ids) == (0.6, 20, 0.95, (7, EOS))
    assert (found.max_tokens, found.wants_deltas) == (CONTEXT - 5, False)


def test_zero_is_a_value() -> None:
    found = prepared(request(temperature=0.0, top_k=0), SamplingDefaults(temperature=0.6, top_k=20))
    assert (found.temperature, found.top_k) == (0.0, 0)


@pytest.mark.parametrize("tiny", [5e-324, 1e-46, 1e-40])
def test_what_scores_are_divided_by_is_never_nothing_in_the_engines_arithmetic(tiny: float) -> None:
    """It computes in float32, in which these are 0 or make scores infinite; an engine that finds no score ends."""
    found = prepared(request(temperature=tiny, repetition_penalty=tiny))
    assert found.adjustments is not None
    for value in (found.temperature, found.adjustments.repetition_penalty):
        assert 0 < 1e4 / value < 1e38
    assert prepared(request(), SamplingDefaults(temperature=tiny)).temperature == found.temperature


def test_stop_tokens_leave_one_that_may_come_before_min_tokens() -> None:
    everything = tuple(range(ByteTokenizer().vocab_size))
    found = refused(request(stop_token_ids=everything, min_tokens=1))
    assert (found.code, found.param) == ("invalid_stop", "stop_token_ids")
    assert prepared(request(stop_token_ids=everything)).stop_token_ids == everything


def test_end_of_sequence_can_be_ignored_but_not_a_stop_token() -> None:
    assert prepared(request(ignore_eos=True)).stop_token_ids == ()
    assert prepared(request(ignore_eos=True, stop_token_ids=(65,))).stop_token_ids == (65,)


CHOICE = Grammar(GrammarKind.CHOICE, '["a", "b"]', "guided_choice")


def test_a_grammar_is_compiled_and_one_that_cannot_be_is_an_error_line() -> None:
    assert prepared(request()).grammar == ""
    assert "start: " in prepared(request(grammar=CHOICE)).grammar
    found = refused(request(grammar=Grammar(GrammarKind.REGEX, "(", "guided_regex")))
    assert (found.code, found.param) == ("invalid_grammar", "guided_regex")


PARAMETERS = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"], "additionalProperties": False}
TOOLS = (
    {"type": "function", "function": {"name": "a", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": 'b "\u00fc"\n'}},
)
USER = {"role": "user", "content": "x"}


def calling(tool_format: ToolFormat = ToolFormat.AUTO, grammar: Grammar | None = None, **tools: Any) -> TextRequest:
    fields: dict[str, Any] = {"tools": ToolUse(TOOLS, **tools), "tool_format": tool_format, "grammar": grammar}
    return replace(request(messages=(USER,)), **fields)


def roomy() -> ByteTokenizer:
    return ByteTokenizer(8192)


def with_room(text_request: TextRequest, tokenizer: ByteTokenizer | None = None) -> TokenRequest | RequestRefused:
    tokenizer = tokenizer or roomy()
    (result,) = Preparer(tokenizer, tokenizer.vocab_size, 8192, SamplingDefaults()).prepare([text_request])
    return result


def follows(grammar: str, text: str) -> bool:
    """Whether a text is what a grammar asks for, to its end."""
    masks = GrammarMasks(
        [bytes([byte]) for byte in range(256)] + [b"", b""], [EOS], lambda text: list(text.encode()), 258
    )
    mask = masks.mask(grammar)
    ids = list(text.encode())
    for end, token_id in enumerate([*ids, EOS]):
        bits = mask.allowed(ids[:end])
        if not bits[token_id // 8] >> token_id % 8 & 1:
            return False
    return True


ONE = '{"name": "a", "arguments": {"x": 1}}'
OTHER = json.dumps({"name": TOOLS[1]["function"]["name"], "arguments": {}}, ensure_ascii=False)


def tagged(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("form", "tools", "right", "wrong"),
    [
        ("hermes", {}, [tagged(ONE), f"{tagged(OTHER)}\n{tagged(ONE)}"], ["", ONE]),
        ("hermes", {"calls_once": True}, [tagged(ONE)], [f"{tagged(ONE)}\n{tagged(ONE)}"]),
        ("hermes", {"function": "a"}, [tagged(ONE)], [tagged(OTHER)]),
        ("mistral", {}, [f"[{ONE}]", f"[{ONE}, {OTHER}]"], ["[]", ONE, f"[TOOL_CALLS][{ONE}]"]),
        ("mistral", {"calls_once": True}, [f"[{ONE}]"], [f"[{ONE}, {OTHER}]"]),
        ("llama3_json", {}, [ONE.replace("arguments", "parameters")], [ONE, ONE.replace("1", "2")]),
    ],
)  # fmt: skip
def test_a_call_that_must_be_is_held_to_its_form_and_is_found_in_it(
    form: str, tools: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    found = with_room(calling(ToolFormat(form), must_call=True, **tools))
    assert isinstance(found, TokenRequest), found
    assert [follows(found.grammar, text) for text in right] == [True] * len(right)
    assert [follows(found.grammar, text) for text in wrong] == [False] * len(wrong)
    mark = "[TOOL_CALLS]" if form == "mistral" else ""
    for text in right:
        assert all(
            piece.calls or not piece.written.strip() for piece in find_calls(mark + text, ToolFormat(form), ["a", "b"])
        )


def test_a_model_is_told_of_tools_and_may_answer_freely() -> None:
    found = with_room(calling())
    assert isinstance(found, TokenRequest)
    assert found.grammar == ""
    assert b'"name": "a"' in bytes(token for token in found.prompt_token_ids if token < 256)


def silent() -> ByteTokenizer:
    tokenizer = roomy()
    tokenizer.tool_format = None
    return tokenizer


def test_calls_that_nobody_knows_how_to_find_are_refused_unless_the_pipeline_says() -> None:
    found = with_room(calling(), silent())
    assert isinstance(found, RequestRefused)
    assert (found.code, found.param) == ("unsupported_parameter", "tools")
    assert "tool_calls of the pipeline to be hermes, llama3_json or mistral, or text" in found.message
    for form in (ToolFormat.HERMES, ToolFormat.TEXT):
        assert isinstance(with_room(calling(form), silent()), TokenRequest)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (calling(grammar=CHOICE), "tools"),
        (calling(ToolFormat.TEXT, must_call=True), "tool_choice"),
        (replace(calling(must_call=True), sampling=SamplingParams(min_tokens=2)), "min_tokens"),
        (replace(calling(must_call=True), sampling=SamplingParams(ignore_eos=True)), "ignore_eos"),
    ],
)
def test_what_leaves_no_room_for_a_call_is_refused(asked: TextRequest, param: str) -> None:
    found = with_room(asked)
    assert isinstance(found, RequestRefused)
    assert (found.code, found.param) == ("unsupported_parameter", param)
    assert found.message.startswith(f"{param}: found ")


def test_a_schema_that_cannot_be_enforced_is_named_by_its_tool() -> None:
    tools = (
        *TOOLS,
        {"type": "function", "function": {"name": "c", "parameters": {"properties": {"x": {"uniqueItems": True}}}}},
    )
    found = with_room(replace(calling(), tools=ToolUse(tools, must_call=True)))
    assert isinstance(found, RequestRefused)
    assert (found.code, found.param) == ("invalid_grammar", "tools[2].function.parameters")
    assert isinstance(with_room(replace(calling(), tools=ToolUse(tools, must_call=True, function="a"))), TokenRequest)


def test_adjustments_of_scores_are_passed_on_where_they_change_something() -> None:
    assert prepared(request()).adjustments is None
    neutral = {
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
    }
    assert prepared(request(**neutral)).adjustments is None
    asked = {
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.2,
        "min_tokens": 3,
    }
    bias = ((5, 1.0), (257, -100.0))
    assert prepared(request(logit_bias=bias, **asked)).adjustments == Adjustments(logit_bias=bias, **asked)


def test_a_bias_for_a_token_that_is_not_there_is_named() -> None:
    found = refused(request(logit_bias=((258, 1.0),)))
    assert (found.code, found.param) == ("invalid_token_id", "logit_bias")


def test_what_says_where_an_answer_ends_and_how_long_it_is_at_least_do_not_go_together() -> None:
    """Else there could be a place where nothing may come: the grammar lets it end there alone, the other not there."""
    found = refused(request(grammar=CHOICE, min_tokens=2))
    assert (found.code, found.param) == ("unsupported_parameter", "min_tokens")


def test_what_says_where_an_answer_ends_cannot_be_told_to_go_on() -> None:
    found = refused(request(grammar=CHOICE, ignore_eos=True))
    assert (found.code, found.param) == ("unsupported_parameter", "ignore_eos")


@given(st.integers(0, CONTEXT + 5), st.none() | st.integers(1, CONTEXT + 5), st.booleans())
def test_prompt_and_answer_fit_the_context_or_the_numbers_are_named(
    length: int, max_tokens: int | None, clamp: bool
) -> None:
    """For every length: a prompt leaves room for a token; max_tokens fits, or is shortened where it was only a default."""
    (found,) = preparer().prepare([request(text="x" * length, max_tokens=max_tokens, clamp_max_tokens=clamp)])
    num_prompt_tokens = max(length, 1)  # an empty prompt starts from a token of the model
    room = CONTEXT - num_prompt_tokens
    if isinstance(found, TokenRequest):
        assert len(found.prompt_token_ids) == num_prompt_tokens
        wanted = room if max_tokens is None else max_tokens
        assert found.max_tokens == (min(wanted, room) if clamp else wanted)
        assert 1 <= found.max_tokens <= room
    else:
        assert found.code == "context_length_exceeded"
        assert str(CONTEXT) in found.message
        assert str(num_prompt_tokens) in found.message
        if room < 1:
            assert found.param == "prompt"
        else:
            assert max_tokens is not None
            assert max_tokens > room
            assert not clamp
            assert found.param == "max_tokens"
            assert str(max_tokens) in found.message


def test_a_long_chat_blames_its_messages() -> None:
    assert refused(request(messages=({"role": "user", "content": "x" * 99},))).param == "messages"


@pytest.mark.parametrize("ids", [(0, 1, 257), (257,)])
def test_token_ids_are_taken_as_they_are(ids: tuple[int, ...]) -> None:
    assert prepared(request(token_ids=ids)).prompt_token_ids == ids


@pytest.mark.parametrize(("ids", "at", "value"), [((1, 258), 1, 258), ((99999999,), 0, 99999999), ((-1,), 0, -1)])
def test_token_ids_outside_the_vocabulary_are_named(ids: tuple[int, ...], at: int, value: int) -> None:
    found = refused(request(token_ids=ids))
    assert (found.code, found.param) == ("invalid_token_id", "prompt")
    assert f"prompt[{at}]: found token id {value}, expected one from 0 to 257" in found.message
    assert refused(request(stop_token_ids=ids)).param == "stop_token_ids"


@pytest.mark.parametrize("empty", [{"text": ""}, {"token_ids": ()}])
def test_an_empty_prompt_starts_from_the_models_token(empty: dict[str, Any]) -> None:
    assert prepared(request(**empty)).prompt_token_ids == (257,)


def test_an_empty_prompt_is_refused_where_there_is_nothing_to_start_from() -> None:
    tokenizer = ByteTokenizer(CONTEXT)
    tokenizer.start_id = None
    assert refused(request(text=""), tokenizer).code == "empty_prompt"


def test_an_empty_stop_string_is_refused() -> None:
    assert (refused(request(stop=("a", ""))).code, refused(request(stop=("",))).param) == ("invalid_stop", "stop")


def test_what_is_wrong_with_one_is_said_of_that_one_alone() -> None:
    """Good requests beside bad ones of every kind come out as if they were alone, in order."""
    bad = [
        request(text="\ud83d"),
        request(messages=({"role": "user", "content": "\ude00"},)),
        request(messages=({"role": "user"},)),
        request(token_ids=(-1,)),
        request(text="x" * 99),
    ]
    good = [request(text="one"), request(messages=({"role": "user", "content": "two"},)), request(token_ids=(3,))]
    mixed = [item for pair in zip(bad, [*good, *good[:2]], strict=True) for item in pair]
    numbered = [replace(item, key=key) for key, item in enumerate(mixed)]
    results = preparer().prepare(numbered)
    assert [result.key for result in results] == list(range(len(numbered)))
    for item, result in zip(numbered, results, strict=True):
        assert [result] == preparer().prepare([item])
        assert isinstance(result, TokenRequest) is (item.key % 2 == 1)
    codes = [result.code for result in results if isinstance(result, RequestRefused)]
    assert codes[:2] == ["invalid_text", "invalid_text"]
    assert codes[3:] == ["invalid_token_id", "context_length_exceeded"]


def test_half_a_surrogate_pair_is_named() -> None:
    assert "U+D83D" in refused(request(text="ab\ud83d")).message


class RaisingTokenizer(ByteTokenizer):
    """Fails as a template does that refuses, and as a fault of ours would."""

    def render(self, *_: object, **__: object) -> RenderedChat:
        raise RefusalError(RefusalCode.CHAT_TEMPLATE_REFUSES, "messages", "System role not supported")

    def encode_texts(self, texts: Any) -> list[tuple[int, ...]]:  # noqa: ARG002  it fails with them all
        raise ZeroDivisionError("a fault")


def test_a_refusal_of_the_template_is_passed_on() -> None:
    found = refused(request(messages=({"role": "system", "content": "x"},)), RaisingTokenizer(CONTEXT))
    assert found == RequestRefused(1, "chat_template_refuses", "messages", "System role not supported")


def test_a_fault_of_ours_ends_the_request_and_no_more() -> None:
    found = refused(request(text="x"), RaisingTokenizer(CONTEXT))
    assert found.code == "internal_error"
    assert "ZeroDivisionError" in found.message
