"""What an answer has beside its text: token ids, log probabilities, seed, times, calls of tools and thoughts."""

from dataclasses import replace
from typing import Any

from text_records import EOS, new_processor, output, request

from pipelines.core.request import (
    Choice,
    FinishReason,
    RequestOutput,
    SamplingParams,
    TextRequest,
    TokenDelta,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
    ToolCall,
    ToolFormat,
    ToolUse,
)
from pipelines.models.facts import SamplingDefaults
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.prepare import Preparer
from pipelines.text.text_worker import TextProcessor


def test_token_ids_go_up_to_the_token_that_ended_the_answer_however_it_ended() -> None:
    """By the end of a text, at a limit, by a stop string that is heard of token by token, and by one in the last tokens."""
    processor = new_processor()
    asked = [replace(request(key, n=2, **stop), wants_token_ids=True) for key, stop in ((1, {}), (2, {"stop": ("b",)}))]
    processor.handle(asked)
    _, [plain] = processor.handle([output(1, b"ab", ended=True), output(1, b"xyz", 1)])
    _, none = processor.handle([TokenDelta(2, 0, tuple(b"xa")), TokenDelta(2, 0, tuple(b"bc"))])
    assert none == []
    _, [watched] = processor.handle([output(2, b"yabc", 1)])
    for answer, expected in ((plain, [(*b"ab", EOS), tuple(b"xyz")]), (watched, [tuple(b"xab"), tuple(b"yab")])):
        assert isinstance(answer, RequestOutput)
        assert answer.prompt_token_ids == tuple(b"hello")
        assert [choice.token_ids for choice in answer.choices] == expected
        assert [choice.num_tokens for choice in answer.choices] == [len(ids) for ids in expected]
    processor.handle([request(3)])
    _, [unasked] = processor.handle([output(3, b"a")])
    assert isinstance(unasked, RequestOutput)
    assert (unasked.prompt_token_ids, unasked.choices[0].token_ids) == (None, None)


def test_the_seed_is_told_where_tokens_were_sampled() -> None:
    processor = new_processor()
    processor.handle([request(1, seed=7), request(2, seed=7, temperature=0.5)])
    greedy, sampled = processor.handle([output(1, b"a"), output(2, b"a")])[1]
    assert isinstance(greedy, RequestOutput)
    assert isinstance(sampled, RequestOutput)
    assert (greedy.seed, sampled.seed) == (None, 7)


def test_cached_tokens_are_those_of_the_choice_that_computed_the_prompt() -> None:
    """Choices that share its blocks find the whole prompt cached."""
    processor = new_processor()
    processor.handle([request(1, n=2)])
    outputs = [TokenOutput(1, choice, (65,), FinishReason.LENGTH, False, cached) for choice, cached in ((0, 2), (1, 5))]
    (found,) = processor.handle(outputs)[1]
    assert isinstance(found, RequestOutput)
    assert found.num_cached_tokens == 2


def test_the_times_of_the_first_choice_reach_the_daemon() -> None:
    """Whether the engine or a stop string ends it; they are no part of what makes two answers equal."""
    processor = new_processor()
    processor.handle([request(1, n=2), request(2, stop=("b",))])
    whole = [
        TokenOutput(
            1, choice, (65,), FinishReason.LENGTH, ended_by_token=False, first_step_s=step_s, first_token_s=step_s + 1
        )
        for choice, step_s in ((1, 3.0), (0, 10.0))
    ]
    found = processor.handle([*whole, TokenDelta(2, 0, (98,), first_step_s=10.0, first_token_s=11.0)])[1]
    times = [(answer.first_step_s, answer.first_token_s) for answer in found if isinstance(answer, RequestOutput)]
    assert times == [(10.0, 11.0)] * 2
    assert found[1] == RequestOutput(2, (Choice("", FinishReason.STOP, 1),), 5, 0)


def found(token: int, other: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, ((token, -0.5), (other, float("-inf"))))


def test_tokens_are_told_in_words_with_their_ids() -> None:
    """The token that ends an answer has an entry too; what has no share at all has the least that JSON can bear."""
    processor = new_processor()
    (sent,), _ = processor.handle([replace(request(1, num_logprobs=2), wants_token_ids=True)])
    assert isinstance(sent, TokenRequest)
    assert sent.num_logprobs == 2
    told = (found(ord("a"), 0xC3), found(EOS, ord("b")))
    _, (answer,) = processor.handle([replace(output(1, b"a", ended=True), logprobs=told)])
    assert isinstance(answer, RequestOutput)
    assert answer.prompt_token_ids == tuple(b"hello")
    (choice,) = answer.choices
    assert choice.token_ids == (ord("a"), EOS)
    assert choice.logprobs is not None
    assert [(one.token.text, one.token.data, one.token.logprob) for one in choice.logprobs] == [
        ("a", b"a", -0.5),
        ("<|end|>", b"", -0.5),
    ]
    assert [(other.text, other.data, other.logprob) for other in choice.logprobs[0].top] == [
        ("a", b"a", -0.5),
        ("\ufffd", b"\xc3", -9999.0),
    ]


def test_nothing_is_told_that_was_not_asked_for() -> None:
    processor = new_processor()
    processor.handle([request(1, stop=("z",))])
    _, (answer,) = processor.handle([output(1, b"ab", ended=True)])
    assert isinstance(answer, RequestOutput)
    assert answer == RequestOutput(1, (Choice("ab", FinishReason.STOP, 3),), 5, 0)


class MarkedTokenizer(ByteTokenizer):
    """Its byte 1 is a control token that marks calls, as Mistral's does."""

    def __init__(self) -> None:
        super().__init__(512)
        self.tool_format = ToolFormat.MISTRAL
        self.detokenizer = self.detokenizer.with_pieces({1: b""})

    def showing(self, names: frozenset[str]) -> Detokenizer:
        return self.detokenizer.with_pieces({1: b"[TOOL_CALLS]"} if "[TOOL_CALLS]" in names else {})


def marked_processor() -> TextProcessor:
    tokenizer = MarkedTokenizer()
    return TextProcessor(Preparer(tokenizer, tokenizer.vocab_size, 512, SamplingDefaults()), tokenizer)


TOOLS = ToolUse(({"type": "function", "function": {"name": "f"}},))
CALL = b'\x01[{"name": "f", "arguments": {"x": 1}}]'


def chat(key: int, *, tools: ToolUse | None = TOOLS, splits_reasoning: bool = False, **sampling: Any) -> TextRequest:
    turns = ({"role": "user", "content": "x"},)
    fields = SamplingParams(**{"temperature": 0.0} | sampling)
    return TextRequest(key, 0, 0, fields, turns, tools=tools, splits_reasoning=splits_reasoning)


def test_calls_behind_a_mark_that_is_a_control_token_are_found() -> None:
    """And the mark is no text for a request that has no tools, as before."""
    processor = marked_processor()
    processor.handle([chat(1), chat(2, tools=None)])
    _, [found, plain] = processor.handle([output(1, b"Hm. " + CALL, ended=True), output(2, CALL, ended=True)])
    assert isinstance(found, RequestOutput)
    expected = Choice("Hm. ", FinishReason.STOP, 5 + len(CALL), tool_calls=(ToolCall("f", '{"x": 1}'),))
    assert found.choices == (expected,)
    assert isinstance(plain, RequestOutput)
    assert plain.choices[0].text == CALL[1:].decode()


def test_a_stop_string_ends_an_answer_before_it_is_taken_apart() -> None:
    """Its tokens came one by one: a thought's are counted all the same."""
    processor = marked_processor()
    processor.handle([chat(1, splits_reasoning=True, stop=("END",))])
    deltas = [TokenDelta(1, 0, (byte,)) for byte in b"<think>a</think>b" + CALL + b"END"]
    _, [found] = processor.handle(deltas)
    assert isinstance(found, RequestOutput)
    (choice,) = found.choices
    assert (choice.reasoning, choice.text, choice.num_reasoning_tokens) == ("a", "b", len("<think>a</think>"))
    assert choice.tool_calls == (ToolCall("f", '{"x": 1}'),)


def test_token_ids_and_counts_are_of_the_whole_answer() -> None:
    processor = marked_processor()
    processor.handle([replace(chat(1), wants_token_ids=True)])
    _, [found] = processor.handle([output(1, CALL, ended=True)])
    assert isinstance(found, RequestOutput)
    assert found.choices[0].token_ids == (*CALL, EOS)
    assert found.choices[0].num_tokens == len(CALL) + 1
