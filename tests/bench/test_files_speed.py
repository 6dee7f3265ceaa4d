"""100,000 short requests through parse, journal and publish with the fake engine: requests a second, and memory."""

import json
import os
import resource
import time

import pytest
from daemon_process import Daemon

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

COUNT = 100_000


def test_a_hundred_thousand_short_requests(tmp_path):
    daemon = Daemon(tmp_path, "fake:", engine="")
    lines = []
    for number in range(COUNT):
        body = {"model": "m", "messages": [{"role": "user", "content": f"Is {number} prime?"}], "max_tokens": 4}
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    content = "\n".join(lines)
    daemon.config.write_text(daemon.config.read_text().replace("max_num_seqs: 16", "max_num_seqs: 256"))
    daemon.start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    started_s = time.monotonic()
    daemon.drop("f.jsonl", content)
    peak = 0
    while daemon.batch("f") is None or daemon.batch("f")["status"] != "completed":
        peak = max(peak, _resident_bytes(daemon.process.pid))
        time.sleep(0.1)
    seconds = time.monotonic() - started_s
    assert daemon.stop() == 0
    assert len(daemon.results("f")) == COUNT
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"\n{COUNT} requests: {seconds:.1f} s, {COUNT / seconds:,.0f} requests/s (aim 5,000) from drop to publication; "
        f"{cpu_s.ru_utime + cpu_s.ru_stime:.1f} s of processor time in three processes; "
        f"daemon at most {peak / 2**20:.0f} MiB on {os.cpu_count()} cores"
    )


def _resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123  the kernel's file
        return int(file.read().split()[1]) * resource.getpagesize()
