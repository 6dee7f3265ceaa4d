"""A thousand files of one request each through claim, journal and publication with the fake engine: files a second, and syncs.

`GAPLESS_BENCH_FILES` says how many (1000), `--basetemp` on which disk. A second run has a disk whose every sync takes 20 ms.
"""

import os
import resource
import time
from pathlib import Path

import pytest
from daemon_process import Daemon, request_lines

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SLOW_DISK = Path(__file__).parents[1] / "support" / "slow_disk.py"
COUNT = int(os.environ.get("GAPLESS_BENCH_FILES", "1000"))


@pytest.mark.parametrize("sync_ms", [0, 20])
def test_a_thousand_files_of_one_request(tmp_path, monkeypatch, sync_ms):
    monkeypatch.setenv("GAPLESS_SYNC_MS", str(sync_ms))
    daemon = Daemon(tmp_path, "fake:", program=(str(SLOW_DISK),))
    daemon.start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    content = request_lines(1, max_tokens=4)
    started_s = time.monotonic()
    for number in range(COUNT):
        daemon.drop(f"f{number}.jsonl", content)
    dropped_s = time.monotonic() - started_s
    done = daemon.root / "done"
    work = daemon.root / "work"
    while len(os.listdir(done)) < COUNT or os.listdir(work):  # noqa: PTH208  fast
        assert daemon.process.poll() is None
        time.sleep(0.1)
    seconds = time.monotonic() - started_s
    assert daemon.stop() == 0
    assert all(daemon.batch(f"f{number}")["status"] == "completed" for number in range(COUNT))
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"\n{COUNT} files of one request, syncs {sync_ms} ms slower: {seconds:.1f} s, {COUNT / seconds:.0f} files/s from the "
        f"first drop (all dropped after {dropped_s:.1f} s) to the last publication; "
        f"{cpu_s.ru_utime + cpu_s.ru_stime:.1f} s of processor time so far"
    )
