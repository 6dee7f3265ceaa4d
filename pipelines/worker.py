"""Entry point of the child processes: `python -m pipelines.worker text|engine|preflight FD`.

FD is the child's end of a socketpair. The first record on it is the `EngineConfig`; what is the same for all of them a child
imports before it waits for that, because the daemon may still be reading its settings. A child ends when its channel closes,
when it fails, or with its parent; it ignores the signals that a terminal or a service manager sends to the whole group,
because the daemon drains first.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from typing import Any

from pipelines.channel import ChildChannel, Peer
from pipelines.config import EngineConfig
from pipelines.core.request import EngineStats, Failed, Progress, Ready, TokenDelta, TokenOutput
from pipelines.errors import ChannelClosedError, EngineError, ModelError
from pipelines.heap import set_aside

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
_LAST_WORDS_S = 5.0
# OpenMP's threads spin while they wait for each other. By default so long that on a busy machine they eat the time slices of
# whom they wait for: 9 to 20 tokens/s instead of 86 (2 cores, load 4 to 7, 2026-11-29); on a quiet one it makes no difference.
_SPINS = "300"


class ChannelSource:
    """The engine's `Source` over the channel."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel

    def receive(self, timeout_s: float) -> list[Any]:
        """See `Source`."""
        return self._channel.receive(timeout_s)

    def send_outputs(self, records: list[TokenDelta | TokenOutput]) -> None:
        """See `Source`."""
        self._channel.send(Peer.TEXT, records)

    def send_stats(self, stats: EngineStats) -> None:
        """See `Source`."""
        self._channel.send(Peer.DAEMON, [stats])


def run_engine_process(channel: ChildChannel) -> None:
    """Load the model, say so, and run the loop until the channel closes."""
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # read when torch is imported
    _keep_freed_memory()
    from pipelines.engine_factory import build_engine  # noqa: PLC0415  each child imports its own part

    config = _receive_config(channel)

    def report(progress: Progress) -> None:
        channel.send(Peer.DAEMON, [progress])

    engine, ready = build_engine(config, ChannelSource(channel), report)
    set_aside()
    channel.send(Peer.DAEMON, [ready])
    engine.run()


def run_text(channel: ChildChannel) -> None:
    """See `run_text_process`."""
    from pipelines.text.text_worker import run_text_process  # noqa: PLC0415  each child imports its own part

    run_text_process(channel, _receive_config(channel))


def run_preflight(channel: ChildChannel) -> None:
    """Say what can be known of the settings without loading the model, and end."""
    config = _receive_config(channel)

    def report(progress: Progress) -> None:
        channel.send(Peer.DAEMON, [progress])

    if config.model.is_fake:
        from pipelines.text.loading import load_text_model  # noqa: PLC0415  without torch

        text = load_text_model(config, report)
        ready = Ready(text.name, text.context, text.vocab_size, detail=text.detail)
    else:
        from pipelines.models.source import refuse_absent  # noqa: PLC0415  each child imports its own part

        refuse_absent(config.model)
        from pipelines.preflight import preflight  # noqa: PLC0415  torch and transformers

        ready = preflight(config, report)
    channel.send(Peer.DAEMON, [ready])
    channel.drain(_LAST_WORDS_S)


def main(arguments: list[str]) -> int:
    """Run the child named by the first argument on the descriptor named by the second."""
    role, descriptor = arguments
    _tie_to_parent()
    channel = ChildChannel(socket.socket(fileno=int(descriptor)))
    try:
        match Peer[role.upper()]:
            case Peer.TEXT:
                run_text(channel)
            case Peer.PREFLIGHT:
                run_preflight(channel)
            case _:
                run_engine_process(channel)
    except ChannelClosedError:
        return 0
    except EngineError as error:
        _say_last_words(channel, Failed(str(error), is_config=isinstance(error, ModelError)))
        return 1
    except Exception as error:  # the process ends here; the daemon gets the reason as one line
        _say_last_words(channel, Failed(f"{role} process: {type(error).__name__}: {error}", is_config=False))
        if os.environ.get("GAPLESS_TRACEBACK"):
            raise
        return 1
    return 0


def _tie_to_parent() -> None:
    """Have the kernel kill this process when the daemon is gone, even if the channel should not tell."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        raise SystemExit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _keep_freed_memory() -> None:
    """Have malloc keep large buffers for the next step instead of giving them back to the kernel after each.

    On a CPU a step gathers keys and values into fresh tensors; mapping them anew took 607 ms a step instead of 275 (16
    sequences of context 800, 144,480 page faults, 2 cores, 2026-11-29).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _receive_config(channel: ChildChannel) -> EngineConfig:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for record in channel.receive(1.0):
            if isinstance(record, EngineConfig):
                return record
    raise EngineError("no configuration came within 60 s of the start")


def _say_last_words(channel: ChildChannel, record: Failed) -> None:
    try:
        channel.send(Peer.DAEMON, [record])
        channel.drain(_LAST_WORDS_S)
    except ChannelClosedError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
