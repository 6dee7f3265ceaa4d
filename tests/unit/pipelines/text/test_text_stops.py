"""Stop strings in the text process: where an answer ends, what of it is kept, and who is told."""

from dataclasses import replace

from text_records import EOS, new_processor, output, request

from pipelines.core.request import (
    Choice,
    FinishReason,
    RequestOutput,
    StopSequence,
    TokenDelta,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
)


def test_a_stop_string_ends_a_choice_at_once_and_the_overrun_is_dropped() -> None:
    processor = new_processor()
    (sent,) = processor.handle([request(1, stop=("lo w",))])[0]
    assert isinstance(sent, TokenRequest)
    assert sent.wants_deltas
    assert processor.handle([TokenDelta(1, 0, tuple(b"hello"))]) == ([], [])
    for_engine, for_daemon = processor.handle([TokenDelta(1, 0, tuple(b" world"))])
    assert for_engine == [StopSequence(1, 0)]
    assert for_daemon == [RequestOutput(1, (Choice("hel", FinishReason.STOP, 7),), 5, 0)]
    assert processor.handle([TokenDelta(1, 0, tuple(b"!")), output(1, b"hello world!")]) == ([], [])


def test_a_stop_string_in_the_last_tokens_is_found_without_a_delta() -> None:
    """The engine has finished by itself: it need not be told, but the text ends before the stop string."""
    processor = new_processor()
    processor.handle([request(1, stop=("lo",))])
    processor.handle([TokenDelta(1, 0, tuple(b"he"))])
    found = processor.handle([output(1, b"hello")])
    assert found == ([], [RequestOutput(1, (Choice("hel", FinishReason.STOP, 5),), 5, 0)])


def test_tokens_that_came_in_deltas_are_not_looked_at_again() -> None:
    processor = new_processor()
    processor.handle([request(1, stop=("hehe",))])
    processor.handle([TokenDelta(1, 0, tuple(b"he"))])
    (found,) = processor.handle([output(1, b"hex")])[1]
    assert found == RequestOutput(1, (Choice("hex", FinishReason.LENGTH, 3),), 5, 0)


def test_without_its_stop_string_a_request_ends_as_the_engine_says() -> None:
    processor = new_processor()
    processor.handle([request(1, stop=("zz",))])
    processor.handle([TokenDelta(1, 0, (*b"he", EOS))])
    (found,) = processor.handle([output(1, b"he", ended=True)])[1]
    assert found == RequestOutput(1, (Choice("he", FinishReason.STOP, 3),), 5, 0)


def test_a_stop_token_is_no_part_of_a_stop_string() -> None:
    """Its text is not in the answer, so it completes nothing, whether it comes in a delta or in the output."""
    processor = new_processor()
    processor.handle([request(key, stop=("ab",), stop_token_ids=(ord("b"),)) for key in (1, 2)])
    ended = [TokenOutput(key, 0, tuple(b"xab"), FinishReason.STOP, ended_by_token=True) for key in (1, 2)]
    found = processor.handle([TokenDelta(1, 0, tuple(b"xab")), *ended])[1]
    assert [(item.key, item.choices) for item in found if isinstance(item, RequestOutput)] == [
        (key, (Choice("xa", FinishReason.STOP, 3),)) for key in (1, 2)
    ]


def test_each_choice_watches_for_itself() -> None:
    processor = new_processor()
    processor.handle([request(1, n=2, stop=("ab",))])
    deltas = [TokenDelta(1, 0, tuple(b"a")), TokenDelta(1, 1, tuple(b"b")), TokenDelta(1, 1, tuple(b"xab"))]
    assert processor.handle(deltas) == ([StopSequence(1, 1)], [])
    overrun = [TokenDelta(1, 1, tuple(b"xx")), output(1, b"bxabxx", 1)]
    assert processor.handle(overrun) == ([], [])  # while the other choice goes on
    (found,) = processor.handle([output(1, b"ax")])[1]
    assert isinstance(found, RequestOutput)
    assert found.choices == (Choice("ax", FinishReason.LENGTH, 2), Choice("bx", FinishReason.STOP, 4))


def test_an_answer_that_a_stop_string_ends_has_an_entry_for_each_of_its_tokens() -> None:
    """Though the engine's last word never comes: the deltas had them."""
    processor = new_processor()
    processor.handle([replace(request(1, stop=("cd",), num_logprobs=1), wants_token_ids=True)])
    answers = []
    for token in b"abcdef":
        delta = TokenDelta(1, 0, (token,), (TokenLogprobs(-float(token), ((token, 0.0),)),))
        answers += processor.handle([delta])[1]
    (answer,) = answers
    (choice,) = answer.choices
    assert (choice.text, choice.num_tokens, choice.token_ids) == ("ab", 4, tuple(b"abcd"))
    assert [one.token.logprob for one in choice.logprobs] == [-97.0, -98.0, -99.0, -100.0]
