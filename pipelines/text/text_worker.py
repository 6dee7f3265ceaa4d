"""The text process: between the daemon, which knows words, and the engine, which knows tokens.

The life of a request here:

1. `TextRequest` comes; it is prepared, remembered, and goes to the engine as a `TokenRequest`, or back as a `RequestRefused`.
   Before the first one with a grammar the engine is told the `Vocabulary`.
2. With stop strings: each `TokenDelta` goes through the choice's watcher; when a stop string is complete, the engine is told
   by a `StopSequence` and the choice is finished here and now. What the engine still sends of it is dropped.
3. `TokenOutput` finishes a choice otherwise.
4. Where tools or reasoning are told apart from a finished choice's text (`pipelines.text.answer`), they are now.
5. When all its choices are finished a `RequestOutput` goes to the daemon and the request is forgotten.

A `Cancel` makes a request forgotten at once; the engine is told again from here, because the daemon's word may have overtaken
the `TokenRequest`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from pipelines.channel import ChildChannel, Peer
from pipelines.config import EngineConfig
from pipelines.core.request import (
    Cancel,
    Choice,
    FinishReason,
    Progress,
    Ready,
    RequestOutput,
    RequestRefused,
    StopSequence,
    TextRequest,
    TokenDelta,
    TokenOutput,
    TokenRequest,
    Vocabulary,
)
from pipelines.errors import ChannelClosedError
from pipelines.heap import set_aside
from pipelines.text.answer import AnswerReader, answer_reader
from pipelines.text.detokenizer import Detokenizer, StopWatcher
from pipelines.text.loading import load_text_model
from pipelines.text.logprobs import text_logprobs
from pipelines.text.prepare import Preparer
from pipelines.text.refusal import RefusalCode
from pipelines.text.tokenizer import Tokenizer

Incoming = TextRequest | TokenDelta | TokenOutput | Cancel
ForEngine = TokenRequest | Vocabulary | StopSequence | Cancel
ForDaemon = RequestOutput | RequestRefused

# Characters of the prompts that are prepared before any of them goes on: each round may have twice as many as the one before.
_FIRST_ROUND_CHARACTERS = 1 << 12
_ROUND_CHARACTERS = 1 << 15  # at most: about 10 ms on two cores
_LEAST_CHARACTERS = 1 << 10  # that a request counts as


@dataclass(slots=True)
class LiveRequest:
    """A request the engine is working on."""

    num_prompt_tokens: int
    num_choices: int
    opens_text: bool  # its answers begin a text of their own
    seed: int | None  # None: greedy
    detokenizer: Detokenizer
    reader: AnswerReader | None = None  # None: answers are text and nothing else
    watchers: tuple[StopWatcher, ...] = ()  # one a choice; none without stop strings
    wants_logprobs: bool = False
    prompt_token_ids: tuple[int, ...] | None = None  # None: ids are not asked for
    deltas: dict[int, TokenDelta] = field(default_factory=dict)  # by choice, all that came of it; see `keep`
    choices: dict[int, Choice] = field(default_factory=dict)  # those that are finished
    num_cached_tokens: int | None = None  # None: no output said so yet
    first_step_s: float = 0.0  # see `RequestOutput`, likewise the next
    first_token_s: float = 0.0

    def keep(self, record: TokenDelta) -> None:
        """Add to what came of a choice, where the request will want it of one that a stop string ends."""
        if self.wants_logprobs or self.prompt_token_ids is not None or self.reader is not None:
            old = self.deltas.get(record.choice)
            ids = (*old.token_ids, *record.token_ids) if old else record.token_ids
            logprobs = (*old.logprobs, *record.logprobs) if old else record.logprobs
            self.deltas[record.choice] = TokenDelta(record.key, record.choice, ids, logprobs)


class TextProcessor:
    """What the text process does with the records that come in; pure, without a channel."""

    def __init__(self, preparer: Preparer, tokenizer: Tokenizer) -> None:
        self._preparer = preparer
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer
        self._live: dict[int, LiveRequest] = {}  # by key
        self._has_told_vocabulary = False  # which the engine needs from the first grammar on

    @property
    def num_live(self) -> int:
        """Requests the engine is working on."""
        return len(self._live)

    def handle(self, records: Sequence[Incoming]) -> tuple[list[ForEngine], list[ForDaemon]]:
        """Take what came, in the order in which it came; return what goes to the engine and to the daemon."""
        for_engine: list[ForEngine] = []
        for_daemon: list[ForDaemon] = []
        requests: dict[int, TextRequest] = {}  # new ones, by key; prepared together at the end
        for record in records:
            match record:
                case TextRequest():
                    requests[record.key] = record
                case TokenOutput() | TokenDelta():
                    self._handle_tokens(record, for_engine, for_daemon)
                case Cancel():
                    self._cancel(record, requests, for_engine)
                case _:
                    assert_never(record)
        self._admit(list(requests.values()), for_engine, for_daemon)
        return for_engine, for_daemon

    def _admit(self, requests: list[TextRequest], for_engine: list[ForEngine], for_daemon: list[ForDaemon]) -> None:
        for request, prepared in zip(requests, self._preparer.prepare(requests), strict=True):
            if isinstance(prepared, RequestRefused):
                for_daemon.append(prepared)
                continue
            self._live[request.key] = self._new_live(request, prepared)
            if prepared.grammar and not self._has_told_vocabulary:
                for_engine.append(self._preparer.vocabulary())
                self._has_told_vocabulary = True
            for_engine.append(prepared)

    def _new_live(self, request: TextRequest, prepared: TokenRequest) -> LiveRequest:
        seed = prepared.seed if prepared.temperature > 0 else None
        opens_text = request.messages is not None and not request.continues_message
        live = LiveRequest(len(prepared.prompt_token_ids), prepared.n, opens_text, seed, self._detokenizer)
        if request.tools is not None or request.splits_reasoning:
            live.reader = answer_reader(request, prepared.prompt_token_ids, self._tokenizer)
            live.detokenizer = live.reader.detokenizer if live.reader else self._detokenizer
        live.wants_logprobs = prepared.num_logprobs is not None
        live.prompt_token_ids = prepared.prompt_token_ids if request.wants_token_ids else None
        if stops := request.sampling.stop:
            ends = frozenset(prepared.stop_token_ids)
            streams = (live.detokenizer.stream(opens_text=live.opens_text) for _ in range(prepared.n))
            live.watchers = tuple(StopWatcher(stream, stops, ends, request.sampling.min_tokens) for stream in streams)
        return live

    def _cancel(self, record: Cancel, requests: dict[int, TextRequest], for_engine: list[ForEngine]) -> None:
        """Forget the keys; those of this round never reach the engine."""
        sent = tuple(key for key in record.keys if self._live.pop(key, None) is not None)
        for key in record.keys:
            requests.pop(key, None)
        if sent:
            for_engine.append(Cancel(sent))

    def _handle_tokens(
        self, record: TokenDelta | TokenOutput, for_engine: list[ForEngine], for_daemon: list[ForDaemon]
    ) -> None:
        live = self._live.get(record.key)
        if live is None or record.choice in live.choices:
            return  # cancelled, or ended by a stop string
        if record.choice == 0:
            live.first_step_s, live.first_token_s = record.first_step_s, record.first_token_s
        try:
            match record:
                case TokenDelta():
                    live.keep(record)
                    choice = _watched(live.watchers[record.choice], record.token_ids)
                    if choice is not None:
                        for_engine.append(StopSequence(record.key, record.choice))
                case TokenOutput() if record.failure:
                    self._refuse(record, for_engine, for_daemon)
                    return
                case TokenOutput():
                    choice = self._finished_choice(live, record)
                    known, new = live.num_cached_tokens, record.num_cached_tokens
                    live.num_cached_tokens = new if known is None else min(known, new)
                case _:
                    assert_never(record)
            if choice is not None:
                self._finish(record, choice, live, for_daemon)
        except Exception as error:  # noqa: BLE001  this request fails by it, the others go on
            self._give_up(record.key, error, for_engine, for_daemon)

    def _finished_choice(self, live: LiveRequest, output: TokenOutput) -> Choice:
        ids = output.token_ids
        if live.watchers:
            watcher = live.watchers[output.choice]
            if choice := _watched(watcher, ids[watcher.num_seen :]):
                return choice
        visible = ids[:-1] if output.ended_by_token else ids
        text = live.detokenizer.text(visible, opens_text=live.opens_text)
        return Choice(text, output.finish_reason, len(ids))

    def _finish(
        self, record: TokenDelta | TokenOutput, choice: Choice, live: LiveRequest, for_daemon: list[ForDaemon]
    ) -> None:
        live.choices[record.choice] = self._in_full(choice, live, record)
        if len(live.choices) < live.num_choices:
            return
        del self._live[record.key]
        choices = tuple(live.choices[index] for index in range(live.num_choices))
        for_daemon.append(
            RequestOutput(
                record.key,
                choices,
                live.num_prompt_tokens,
                live.num_cached_tokens or 0,
                live.seed,
                live.prompt_token_ids,
                live.first_step_s,
                live.first_token_s,
            )
        )

    def _refuse(self, output: TokenOutput, for_engine: list[ForEngine], for_daemon: list[ForDaemon]) -> None:
        """End a request whose grammar could not be followed to its end; its other choices are of no use alone."""
        del self._live[output.key]
        for_engine.append(Cancel((output.key,)))
        reason = f"what the answer has to look like could not be followed to its end: {output.failure}"
        for_daemon.append(RequestRefused(output.key, RefusalCode.GRAMMAR_FAILED.value, None, reason))

    def _in_full(self, choice: Choice, live: LiveRequest, record: TokenDelta | TokenOutput) -> Choice:
        """Tell a finished choice's parts apart, and add what its request wants of its tokens."""
        source = record if isinstance(record, TokenOutput) else live.deltas.get(record.choice, record)
        ids = source.token_ids[: choice.num_tokens]
        if live.reader is not None:
            choice = live.reader.read(choice, ids, opens_text=live.opens_text)
        if live.wants_logprobs:
            choice = replace(choice, logprobs=text_logprobs(self._tokenizer, ids, source.logprobs))
        return choice if live.prompt_token_ids is None else replace(choice, token_ids=ids)

    def _give_up(self, key: int, error: Exception, for_engine: list[ForEngine], for_daemon: list[ForDaemon]) -> None:
        del self._live[key]
        for_engine.append(Cancel((key,)))
        reason = f"the answer could not be put into words: {type(error).__name__}: {error}"
        for_daemon.append(RequestRefused(key, RefusalCode.INTERNAL_ERROR.value, None, reason))


def run_text_process(channel: ChildChannel, config: EngineConfig) -> None:
    """Load the tokenizer, say so, and work until the channel closes.

    Raises:
        ModelError: the model cannot be found, or its tokenizer not be used.
    """
    model = load_text_model(config, _reporter(channel), may_hide_torch=True)
    processor = TextProcessor(model.preparer, model.tokenizer)
    set_aside()
    channel.send(Peer.DAEMON, [Ready(model.name, model.context, model.vocab_size, detail=model.detail)])
    try:
        while True:
            for records in in_rounds(channel.receive(None)):
                for_engine, for_daemon = processor.handle(records)
                channel.send(Peer.ENGINE, for_engine)
                channel.send(Peer.DAEMON, for_daemon)
    except ChannelClosedError:
        return


def in_rounds(records: Sequence[Incoming]) -> Iterator[Sequence[Incoming]]:
    """Cut what came into rounds, in order: the engine does not wait for the first requests until the last are tokenised."""
    start, num_characters, max_characters = 0, 0, _FIRST_ROUND_CHARACTERS
    for end, record in enumerate(records, 1):
        if isinstance(record, TextRequest):
            num_characters += max(_num_characters(record), _LEAST_CHARACTERS)
            if num_characters >= max_characters:
                yield records[start:end]
                start, num_characters = end, 0
                max_characters = min(2 * max_characters, _ROUND_CHARACTERS)
    if start < len(records):
        yield records[start:]


def _num_characters(request: TextRequest) -> int:
    return len(request.text or "") + sum(len(message.get("content") or "") for message in request.messages or ())


def _reporter(channel: ChildChannel) -> Callable[[Progress], None]:
    return lambda progress: channel.send(Peer.DAEMON, [progress])


def _watched(watcher: StopWatcher, token_ids: Sequence[int]) -> Choice | None:
    """Return the choice if one of these tokens completes a stop string."""
    if watcher.push(token_ids) and watcher.text is not None:
        return Choice(watcher.text, FinishReason.STOP, watcher.num_seen)
    return None
