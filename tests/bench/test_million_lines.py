"""A million requests with answers of 4 KB through the whole daemon: memory, disk, requests a second, and a restart in the middle.

GAPLESS_BENCH_LINES takes another number of requests.
"""

import json
import os
import resource
import time

import pytest
from daemon_process import Daemon

from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers
from daemon.made_with import MadeWith
from daemon.request_record import Url
from daemon.result_line import LineBuilder, LineFormat
from daemon.settings import load_settings
from daemon.survey import survey
from daemon.survey_record import survey_to_record
from pipelines.core.request import Choice, FinishReason, RequestOutput

pytestmark = [pytest.mark.bench, pytest.mark.timeout(4 * 3600)]

COUNT = int(os.environ.get("GAPLESS_BENCH_LINES", "1000000"))
ANSWER_BYTES = 4096
FAKE = f"fake:token_bytes={ANSWER_BYTES // 4}"
MAX_RESIDENT_BYTES = 200 << 20
MAX_RESTART_S = 10.0
MAX_DISK_BYTES = 32  # a request, beside journal and outputs


def test_a_million_lines(tmp_path):
    daemon = _daemon(tmp_path)
    hidden = daemon.inbox / ".f.jsonl.tmp"
    _write_requests(hidden)
    daemon.start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    hidden.rename(daemon.inbox / "f.jsonl")
    dropped_s = time.monotonic()
    peak = _watch(daemon, lambda: _done(daemon) >= COUNT // 2)
    extra = _extra_bytes(daemon)
    peak = max(peak, _watch(daemon, lambda: daemon.batch("f")["status"] == "completed"))
    seconds = time.monotonic() - dropped_s
    assert daemon.stop() == 0
    print(
        f"\n{COUNT:,} requests with answers of {ANSWER_BYTES} bytes: {COUNT / seconds:,.0f} requests/s from drop to publication; "
        f"daemon at most {peak / 2**20:.0f} MiB; {extra / COUNT:.1f} bytes a request on the disk beside journal and outputs; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    assert daemon.batch("f")["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0}
    assert _count_lines(daemon.outbox / "f.output.jsonl") == COUNT
    assert peak < MAX_RESIDENT_BYTES
    assert extra / COUNT < MAX_DISK_BYTES


def test_a_restart_in_the_middle_of_a_million_lines(tmp_path):
    """The journal of a daemon that was killed at half is made by hand; what is measured is the daemon that finds it."""
    daemon = _daemon(tmp_path)
    work = daemon.root / "work"
    work.mkdir(parents=True)
    _write_requests(work / "f.jsonl")
    journal = _write_half_a_journal(daemon, work / "f.jsonl")
    size = journal.stat().st_size
    started_s = time.monotonic()
    daemon.start()
    _watch(daemon, lambda: "is ready" in daemon.log.read_text())
    ready_s = time.monotonic() - started_s
    peak = _watch(daemon, lambda: journal.stat().st_size > size)
    restart_s = time.monotonic() - started_s
    partial = daemon.outbox / "f.output.jsonl.partial"
    peak = max(peak, _watch(daemon, lambda: partial.exists() and partial.stat().st_size > 0.95 * size))
    copied_s = time.monotonic() - started_s
    daemon.kill()
    print(
        f"\n{COUNT:,} lines, half of them answered ({size / 2**30:.1f} GiB of journal): new answers are durable "
        f"{restart_s:.1f} s after the start of the daemon ({ready_s:.1f} s until the engine was ready); the copy is there "
        f"again after {copied_s:.1f} s; daemon at most {peak / 2**20:.0f} MiB; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    assert peak < MAX_RESIDENT_BYTES
    assert restart_s < MAX_RESTART_S


def _daemon(folder):
    daemon = Daemon(folder, FAKE)
    daemon.config.write_text(daemon.config.read_text().replace("max_num_seqs: 16", "max_num_seqs: 256"))
    daemon.inbox.mkdir(parents=True)
    return daemon


def _write_requests(path):
    with path.open("w") as file:
        for number in range(COUNT):
            body = {"model": "m", "messages": [{"role": "user", "content": f"Is {number} prime?"}], "max_tokens": 4}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def _write_half_a_journal(daemon, source):
    found = survey(source)
    settings = load_settings([daemon.config]).pipelines["p"]
    status = source.stat()
    header = Header(found.fingerprint, 1, source.name, status.st_size, status.st_mtime_ns, "m", settings.to_record())
    journal = Journal.create(source.with_name("f.journal"), header)
    journal.append_started(1, found.num_requests, survey_to_record(found))
    lines = LineBuilder(found.fingerprint, 1, MadeWith("fake", "1"), LineFormat.BATCH)
    output = RequestOutput(1, (Choice("x" * ANSWER_BYTES, FinishReason.LENGTH, 4),), 30, 0)
    for index in range(COUNT // 2):
        journal.append_result(index, lines.result(index, f"r{index}", Url.CHAT, output), LineNumbers.of_output(output))
        if index % 1000 == 0:
            journal.sync()
    journal.sync()
    journal.close()
    return journal.path


def _watch(daemon, condition):
    """Wait, and return the most memory that the daemon had meanwhile."""
    peak = 0
    while not condition():
        assert daemon.process.poll() is None, daemon.log.read_text()
        peak = max(peak, _resident_bytes(daemon.process.pid))
        time.sleep(0.2)
    return peak


def _done(daemon):
    return (daemon.batch("f") or {}).get("request_counts", {}).get("completed", 0)


def _extra_bytes(daemon):
    """What lies in the spool beside the input, the journal and the outputs."""
    known = ("f.jsonl", "f.journal", "f.output.jsonl.partial", "f.errors.jsonl.partial")
    files = (path for path in daemon.root.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if path.name not in known)


def _count_lines(path):
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123  the kernel's file
        return int(file.read().split()[1]) * resource.getpagesize()
