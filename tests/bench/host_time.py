"""The engine's own work for each step, in its own process, fed over its channel as a daemon feeds it.

Run as a program: `PYTHONPATH=. python tests/bench/host_time.py --help`. The requests are those of the `offline` workload, 256 at
once, of which a bounded number is on its way at any time; the times are those that the engine reports, waiting left out.
"""

import argparse
import json
import pstats
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipelines.benchmark.subject import random_model
from pipelines.benchmark.workload import WorkloadName, build_workload
from pipelines.channel import FrameSplitter, Peer, decode_records, encode_frame
from pipelines.config import BatchConfig, Dtype, EngineConfig, ModelConfig
from pipelines.core.request import EngineStats, Failed, Ready, TokenOutput

MAX_SEQS = 256
IN_FLIGHT = 2 * MAX_SEQS  # requests


class EngineProcess:
    """The engine's process, and this end of its channel."""

    def __init__(self, config, profile):
        self._ours, theirs = socket.socketpair()
        profiler = ["-m", "cProfile", "-o", str(profile)] if profile else []
        command = [sys.executable, *profiler, "-m", "pipelines.worker", "engine", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._splitter = FrameSplitter()
        self.send([config])

    def send(self, records):
        self._ours.sendall(encode_frame(Peer.ENGINE, records))

    def receive(self):
        select.select([self._ours], [], [])
        data = self._ours.recv(1 << 20)
        if not data:
            raise SystemExit("the engine's process ended")
        found = [record for _, payload in self._splitter.feed(data) for record in decode_records(payload)]
        for record in found:
            if isinstance(record, Failed):
                raise SystemExit(record.message)
        return found

    def close(self):
        self._ours.close()
        self.process.wait(30)


def feed(engine, requests):
    """Run all of them; return the seconds, the tokens, and what the engine said of its steps."""
    waiting, stats, num_tokens, open_requests = list(reversed(requests)), [], 0, 0
    started_s = time.perf_counter()
    while waiting or open_requests:
        given = [waiting.pop() for _ in range(min(IN_FLIGHT - open_requests, len(waiting)))]
        if given:
            engine.send(given)
            open_requests += len(given)
        for record in engine.receive():
            if isinstance(record, TokenOutput):
                open_requests -= 1
                num_tokens += len(record.token_ids)
            elif isinstance(record, EngineStats):
                stats.append(record)
    return time.perf_counter() - started_s, num_tokens, stats


def share(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="a model's config.json; its weights are made by chance")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", type=Dtype, choices=list(Dtype), default=Dtype.AUTO)
    parser.add_argument("--fake", default="step_ms=18", help="without --config: how the engine without a model behaves")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the new tokens")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--profile", type=Path, help="where the engine's process spends it, by cProfile, which slows it down"
    )
    options = parser.parse_args()
    workload = build_workload(WorkloadName.OFFLINE, options.scale)
    model = ModelConfig(f"fake:{options.fake}", dtype=options.dtype, device=options.device)
    config = EngineConfig("host", model, batch=BatchConfig(MAX_SEQS, 8192), max_context=workload.context)
    with tempfile.TemporaryDirectory() as place:
        if options.config:
            config = random_model(config, options.config, Path(place))
        engine = EngineProcess(config, options.profile)
        ready = None
        while ready is None:
            ready = next((record for record in engine.receive() if isinstance(record, Ready)), None)
        print(ready.detail, flush=True)
        seconds, num_tokens, stats = feed(engine, workload.requests(ready.vocab_size))
        engine.close()
    host_ms = [1e3 * value for record in stats for value in record.host_s]
    gap_ms = [1e3 * value for record in stats for value in record.gap_s]
    found = {
        "seconds": seconds,
        "tokens": num_tokens,
        "steps": len(host_ms),
        "host_ms": {
            name: share(host_ms, part) for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
        },
        "gap_ms": {name: share(gap_ms, part) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
        if gap_ms
        else {},
    }
    print(f"{num_tokens:,} tokens in {seconds:.2f} s, {len(host_ms):,} steps; the host's work a step, ms:", flush=True)
    print(", ".join(f"{name} {value:.2f}" for name, value in found["host_ms"].items()))
    if gap_ms:
        print("the device's gaps, ms: " + ", ".join(f"{name} {value:.2f}" for name, value in found["gap_ms"].items()))
    if options.profile:
        pstats.Stats(str(options.profile)).sort_stats("tottime").print_stats(40)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
