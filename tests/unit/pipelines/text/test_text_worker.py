"""The text process says one thing about each request, whatever comes in whatever order: text, ends, cancels, faults."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from text_records import EOS, new_processor, output, request

from pipelines.core.request import (
    Cancel,
    Choice,
    FinishReason,
    Grammar,
    GrammarKind,
    RequestOutput,
    RequestRefused,
    SamplingParams,
    TextRequest,
    TokenDelta,
    TokenOutput,
    TokenRequest,
    Vocabulary,
)
from pipelines.models.facts import SamplingDefaults
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.prepare import Preparer
from pipelines.text.text_worker import TextProcessor


def test_a_request_goes_to_the_engine_and_its_answer_to_the_daemon() -> None:
    processor = new_processor()
    for_engine, for_daemon = processor.handle([request(1, max_tokens=3)])
    assert [record.key for record in for_engine if isinstance(record, TokenRequest)] == [1]
    assert for_daemon == []
    for_engine, for_daemon = processor.handle([output(1, b"ab", ended=True)])
    assert for_engine == []
    assert for_daemon == [RequestOutput(1, (Choice("ab", FinishReason.STOP, 3),), 5, 0)]
    assert processor.num_live == 0


def test_an_answer_that_goes_on_with_a_message_keeps_its_first_blank() -> None:
    """What opens a chat answer loses the blank that a tokenizer writes before a first word; this is no first word."""
    pieces = [bytes([byte]) for byte in range(256)] + [b"", b""]
    tokenizer = ByteTokenizer(128)
    turns = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})
    texts = []
    for continues in (False, True):
        tokenizer.detokenizer = Detokenizer(pieces, drops_first_space=True)
        preparer = Preparer(tokenizer, tokenizer.vocab_size, 128, SamplingDefaults())
        processor = TextProcessor(preparer, tokenizer)
        given = TextRequest(1, 0, 0, SamplingParams(temperature=0.0), turns, continues_message=continues)
        processor.handle([given])
        (_, [answer]) = processor.handle([output(1, b" z", ended=True)])
        assert isinstance(answer, RequestOutput)
        texts.append(answer.choices[0].text)
    assert texts == ["z", " z"]


def test_the_engine_is_told_the_vocabulary_once_and_before_the_first_grammar() -> None:
    processor = new_processor()
    as_choice = {"grammar": Grammar(GrammarKind.CHOICE, '["a", "b"]', "guided_choice")}
    requests = [request(1), replace(request(2), **as_choice), replace(request(3), **as_choice)]
    for_engine, _ = processor.handle(requests)
    assert [type(record) for record in for_engine] == [TokenRequest, Vocabulary, TokenRequest, TokenRequest]
    assert for_engine[1] == Vocabulary(tuple(ByteTokenizer().detokenizer.pieces), (EOS,), "")
    for_engine, _ = processor.handle([replace(request(4), **as_choice)])
    assert [type(record) for record in for_engine] == [TokenRequest]


def test_a_grammar_that_failed_makes_a_refusal_and_the_request_is_forgotten() -> None:
    processor = new_processor()
    processor.handle([request(1, n=2)])
    failed = TokenOutput(1, 1, (EOS,), FinishReason.STOP, ended_by_token=True, failure="too costly")
    for_engine, for_daemon = processor.handle([output(1, b"a"), failed])
    assert for_engine == [Cancel((1,))]
    (refusal,) = for_daemon
    assert isinstance(refusal, RequestRefused)
    assert (refusal.code, refusal.message.rpartition(": ")[2]) == ("grammar_failed", "too costly")
    assert processor.num_live == 0


def test_a_stop_token_is_no_text_and_a_last_token_is() -> None:
    """Only where the sequence ended by its last token is that token left out."""
    processor = new_processor()
    processor.handle([request(1, stop_token_ids=(ord("b"),)), request(2)])
    stopped = TokenOutput(1, 0, tuple(b"ab"), FinishReason.STOP, ended_by_token=True)
    (first, second) = processor.handle([stopped, output(2, b"ab")])[1]
    assert first == RequestOutput(1, (Choice("a", FinishReason.STOP, 2),), 5, 0)
    assert second == RequestOutput(2, (Choice("ab", FinishReason.LENGTH, 2),), 5, 0)


def test_half_a_character_at_the_end_is_dropped() -> None:
    processor = new_processor()
    processor.handle([request(1)])
    (found,) = processor.handle([output(1, "\u00e9\u00e9".encode()[:3])])[1]
    assert found == RequestOutput(1, (Choice("\u00e9", FinishReason.LENGTH, 3),), 5, 0)


def test_choices_come_together_in_order() -> None:
    processor = new_processor()
    processor.handle([request(1, n=3)])
    assert processor.handle([output(1, b"c", 2), output(1, b"a", 0, ended=True)])[1] == []
    (found,) = processor.handle([output(1, b"b", 1)])[1]
    assert isinstance(found, RequestOutput)
    assert [choice.text for choice in found.choices] == ["a", "b", "c"]


def test_cancelled_requests_are_forgotten_everywhere() -> None:
    """The engine is told again, behind the request; what it still says is dropped, and so are keys nobody knows."""
    processor = new_processor()
    processor.handle([request(1), request(2)])
    assert processor.handle([Cancel((1, 99))]) == ([Cancel((1,))], [])
    cancelled = [output(key, b"a", reason=FinishReason.CANCELLED) for key in (1, 99)]
    assert processor.handle([*cancelled, TokenDelta(1, 0, (65,))]) == ([], [])
    assert processor.num_live == 1


def test_a_request_that_is_cancelled_in_the_same_breath_never_reaches_the_engine() -> None:
    processor = new_processor()
    assert processor.handle([request(1), Cancel((1,))]) == ([], [])
    assert processor.num_live == 0


def test_a_refused_request_is_not_remembered() -> None:
    processor = new_processor()
    for_engine, (refused,) = processor.handle([request(1, max_tokens=1000)])
    assert isinstance(refused, RequestRefused)
    assert (for_engine, refused.code, processor.num_live) == ([], "context_length_exceeded", 0)


def test_a_fault_with_one_answer_ends_that_request_alone() -> None:
    """An id that no token has is the engine's fault; the request is refused, the engine told, the next one answered."""
    processor = new_processor()
    processor.handle([request(1), request(2)])
    wrong = TokenOutput(1, 0, (999,), FinishReason.LENGTH, ended_by_token=False)
    for_engine, (refused, good) = processor.handle([wrong, output(2, b"fine")])
    assert for_engine == [Cancel((1,))]
    assert isinstance(refused, RequestRefused)
    assert (refused.key, refused.code) == (1, "internal_error")
    assert isinstance(good, RequestOutput)
    assert processor.num_live == 0


answers = st.text(st.sampled_from("ab\u00e9\U0001f600"), max_size=12)


@given(
    st.lists(st.tuples(answers, st.sampled_from([(), ("ab",), ("\U0001f600b", "aa")]), st.integers(1, 2)), max_size=4),
    st.data(),
)
def test_every_request_gets_one_answer_however_records_are_interleaved(
    requests: list[Any], data: st.DataObject
) -> None:
    """Any interleaving of the engine's records, cut into any rounds, gives the same outputs as one by one in order."""
    streams: list[list[Any]] = []
    opened = [request(key, stop=stops, n=n) for key, (_, stops, n) in enumerate(requests)]
    for key, (text, stops, n) in enumerate(requests):
        ids = text.encode()
        for choice in range(n):
            cut = data.draw(st.integers(0, len(ids)))
            deltas = [TokenDelta(key, choice, tuple(part)) for part in (ids[:cut], ids[cut:])] if stops else []
            streams.append([*deltas, output(key, ids, choice, ended=True)])
    expected = new_processor()
    expected.handle(opened)
    wanted = {record.key: record for stream in streams for record in expected.handle(stream)[1]}
    assert wanted.keys() == set(range(len(requests)))
    processor = new_processor()
    processor.handle(opened)
    found: list[Any] = []
    while any(streams):
        index = data.draw(st.sampled_from([index for index, stream in enumerate(streams) if stream]))
        count = data.draw(st.integers(1, 3))
        round_of_records, streams[index] = streams[index][:count], streams[index][count:]
        found += processor.handle(round_of_records)[1]
    assert sorted(found, key=lambda record: record.key) == [wanted[key] for key in sorted(wanted)]
    assert processor.num_live == 0
