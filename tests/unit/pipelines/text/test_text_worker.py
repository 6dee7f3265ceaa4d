"""The text process says one thing about each request, whatever comes in whatever order."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.channel import ChildChannel, FrameSplitter, Peer, decode_records, encode_frame
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import (
    Cancel,
    Choice,
    FinishReason,
    Ready,
    RequestOutput,
    RequestRefused,
    SamplingParams,
    StopSequence,
    TextRequest,
    TokenDelta,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
    ToolCall,
    ToolFormat,
    ToolUse,
)
from pipelines.errors import ModelError
from pipelines.models.facts import SamplingDefaults
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.detokenizer import Detokenizer
from pipelines.text.prepare import Preparer
from pipelines.text.text_worker import TextProcessor, in_rounds, run_text_process

EOS = ByteTokenizer().eos_id


def new_processor() -> TextProcessor:
    tokenizer = ByteTokenizer(128)
    return TextProcessor(Preparer(tokenizer, tokenizer.vocab_size, 128, SamplingDefaults()), tokenizer)


def request(key: int, **sampling: Any) -> TextRequest:
    """A greedy request, unless told otherwise."""
    return TextRequest(
        key, file=0, priority=0, sampling=SamplingParams(**{"temperature": 0.0} | sampling), text="hello"
    )


def output(
    key: int, text: bytes, choice: int = 0, *, ended: bool = False, reason: FinishReason | None = None
) -> TokenOutput:
    ids = (*text, EOS) if ended else tuple(text)
    return TokenOutput(
        key, choice, ids, reason or (FinishReason.STOP if ended else FinishReason.LENGTH), ended_by_token=ended
    )


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


class Daemon:
    """The other end of a text process that runs in a thread."""

    def __init__(self, model: str) -> None:
        self._sock, theirs = socket.socketpair()
        self._sock.settimeout(20)
        self._splitter = FrameSplitter()
        self._frames: list[tuple[Peer, list[Any]]] = []
        self.errors: list[Exception] = []
        config = EngineConfig("main", ModelConfig(model), max_context=64)
        self.thread = threading.Thread(target=self._run, args=(ChildChannel(theirs), config))
        self.thread.start()

    def _run(self, channel: ChildChannel, config: EngineConfig) -> None:
        try:
            run_text_process(channel, config)
        except Exception as error:  # noqa: BLE001  the test looks at it
            self.errors.append(error)
        channel.close()

    def send(self, *records: Any) -> None:
        self._sock.sendall(encode_frame(Peer.TEXT, records))

    def take(self) -> tuple[Peer, list[Any]]:
        while not self._frames:
            self._frames += [
                (peer, decode_records(payload)) for peer, payload in self._splitter.feed(self._sock.recv(1 << 16))
            ]
        return self._frames.pop(0)

    def close(self) -> None:
        self._sock.close()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    running = Daemon("fake:context=4096")
    yield running
    running.close()


def test_the_process_says_ready_serves_and_ends_with_its_channel(daemon: Daemon) -> None:
    """Records go to the peer they are for; the context is the smaller of the model's and the configured one."""
    assert daemon.take() == (Peer.DAEMON, [Ready("fake", 64, 258, detail="context 64 tokens")])
    daemon.send(request(1, max_tokens=2), request(2, max_tokens=100))
    (peer, (sent,)), (other_peer, (refused,)) = daemon.take(), daemon.take()
    assert (peer, sent.key, other_peer, refused.key) == (Peer.ENGINE, 1, Peer.DAEMON, 2)
    daemon.send(output(1, b"ok"))
    assert daemon.take() == (Peer.DAEMON, [RequestOutput(1, (Choice("ok", FinishReason.LENGTH, 2),), 5, 0)])
    daemon.close()
    assert daemon.errors == []


def test_the_first_requests_go_on_before_the_last_are_tokenised(daemon: Daemon) -> None:
    """However many came at once: each round goes to the engine by itself, in order, the first ones being short."""
    assert daemon.take()[0] is Peer.DAEMON
    daemon.send(*(request(key, max_tokens=2) for key in range(80)))
    rounds: list[list[int]] = []
    while sum(map(len, rounds)) < 80:
        peer, records = daemon.take()
        assert peer is Peer.ENGINE
        rounds.append([record.key for record in records])
    assert [len(keys) for keys in rounds] == [4, 8, 16, 32, 20]
    assert [key for keys in rounds for key in keys] == list(range(80))


@given(st.lists(st.integers(0, 1 << 16) | st.none(), max_size=200))
def test_rounds_hold_what_came_in_its_order(lengths: list[int | None]) -> None:
    """A long prompt ends its round; what is no prompt makes none longer."""
    records = [
        Cancel((key,)) if length is None else replace(request(key), text="x" * length)
        for key, length in enumerate(lengths)
    ]
    rounds = list(in_rounds(records))
    assert [record for one in rounds for record in one] == records
    assert all(rounds)
    for one in rounds:
        prompts = [len(record.text or "") for record in one if isinstance(record, TextRequest)]
        assert sum(prompts[:-1]) < 1 << 15


def test_a_cancel_reaches_the_engine_that_was_sent_its_request_a_round_before() -> None:
    processor = new_processor()
    long = replace(request(1), text=None, messages=({"role": "user", "content": "x" * 10},) * 4000)
    records: list[Any] = [request(0), long, Cancel((0,))]
    first, second = in_rounds(records)
    assert [type(record) for record in processor.handle(first)[0]] == [TokenRequest]
    assert processor.handle(second)[0] == [Cancel((0,))]


def test_a_model_that_is_not_there_ends_the_process_with_the_reason() -> None:
    running = Daemon("/nowhere/model")
    running.thread.join(20)
    (error,) = running.errors
    assert isinstance(error, ModelError)
    running.close()


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
