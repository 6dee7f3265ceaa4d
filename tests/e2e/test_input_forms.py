"""Request files of each form, through the whole daemon with the fake engine."""

import gzip
import json

import pytest
from backports import zstd
from daemon_process import request_lines

COMPRESS = {"gz": gzip.compress, "zst": zstd.compress}


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_gives_the_output_of_the_plain_one(make_daemon, kind):
    """Under the stem before both extensions, not compressed; `created` alone tells the two apart."""
    daemon = make_daemon("fake:")
    content = request_lines(40, temperature=1.0)
    daemon.drop("a.jsonl", content)
    daemon.drop(f"b.jsonl.{kind}", COMPRESS[kind](content.encode()))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    plain, packed = daemon.lines("a.output.jsonl"), daemon.lines("b.output.jsonl")
    for line in plain + packed:
        line["response"]["body"].pop("created")
    assert len(packed) == 40
    assert packed == plain
    assert sorted(path.name for path in (daemon.root / "done").iterdir()) == ["a.jsonl", f"b.jsonl.{kind}"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_that_is_cut_off_fails_and_nothing_of_it_is_run(make_daemon, kind):
    daemon = make_daemon()
    daemon.drop(f"f.jsonl.{kind}", COMPRESS[kind](request_lines(40).encode())[:-9])
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    reason = json.loads((daemon.root / "failed" / "f.reason.json").read_text())
    assert reason["code"] == "invalid_file"
    assert f"f.jsonl.{kind}: found the end of the file within its compressed data" in reason["message"]
    assert (daemon.root / "failed" / f"f.jsonl.{kind}").exists()
    assert daemon.batch("f")["status"] == "failed"
    assert not (daemon.outbox / "f.output.jsonl").exists()


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_goes_on_after_a_kill(make_daemon, kind):
    """Also when only its journal is left to publish, its input is found under both extensions."""
    daemon = make_daemon()
    daemon.drop(f"f.jsonl.{kind}", COMPRESS[kind](request_lines(300).encode()))
    daemon.start()
    daemon.until(lambda: (daemon.batch("f") or {}).get("request_counts", {}).get("completed"), "some answers")
    daemon.kill()
    daemon.start("--once")
    assert daemon.process.wait(90) == 0
    assert len(daemon.results("f")) == 300
    assert (daemon.root / "done" / f"f.jsonl.{kind}").exists()
