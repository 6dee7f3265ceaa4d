"""The text process on its channel: it says that it is ready, works in rounds, and ends with its daemon."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_records import new_processor, output, request

from pipelines.channel import ChildChannel, FrameSplitter, Peer, decode_records, encode_frame
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import Cancel, Choice, FinishReason, Ready, RequestOutput, TextRequest, TokenRequest
from pipelines.errors import ModelError
from pipelines.text.text_worker import in_rounds, run_text_process


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
