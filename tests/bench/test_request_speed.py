"""How many request lines a second one core surveys and reads."""

import json
import time
from pathlib import Path

import pytest

from daemon.request_file import RequestReader
from daemon.survey import survey

NUM_REQUESTS = 100_000


def _write(path: Path, start: str, separator: str, end: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16, "temperature": 0}
    lines = (
        json.dumps({"custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body})
        for i in range(NUM_REQUESTS)
    )
    path.write_text(start + separator.join(lines) + end, encoding="utf-8")


@pytest.mark.bench
@pytest.mark.parametrize(
    ("name", "start", "separator", "end"), [("in.jsonl", "", "\n", "\n"), ("in.json", "[", ",\n", "]\n")]
)
def test_survey_and_read(tmp_path: Path, name: str, start: str, separator: str, end: str) -> None:
    """Prints requests a second of processor time; 100,000 Batch lines of about 180 bytes."""
    path = tmp_path / name
    _write(path, start, separator, end)
    began = time.process_time()
    found = survey(path)
    surveyed = time.process_time()
    assert sum(1 for _ in RequestReader(path, found)) == found.num_requests == NUM_REQUESTS
    ended = time.process_time()
    print(f"{name}: survey {NUM_REQUESTS / (surveyed - began):,.0f}/s, read {NUM_REQUESTS / (ended - surveyed):,.0f}/s")
