"""A hundred thousand mutated lines through reader and parser: each gives one request or one error line, never an exception.

The clever inputs are hypothesis' (`test_request_fuzz`); these are the many: lines that have broken other systems, cut, doubled,
spliced and sprinkled with what readers trip over, by a generator with a seed.
"""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.file_kinds import FileKind
from daemon.line_reader import BYTE_ORDER_MARK, JSON_SPACE, LineReader
from daemon.request_line import LineParser
from daemon.request_record import BadLine, ParsedRequest, Place

CASES = Path(__file__).parents[2] / "data" / "cases"
NUM_LINES = 120_000
NUM_FILES = 12
MAX_CORPUS_BYTES = 2000  # of a line: what is longer is slow, and no different
PARSER = LineParser("in.jsonl", FileKind.LINES)
PIECES = [
    *(
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"\r",
        b"\n",
        b"\t",
        b"\\",
        b'"',
        b"'",
    ),
    *(b"\\ud800", b"\\udc00", b"\\u0000", b"\\uD83D\\uDE00", b"NaN", b"-Infinity", b"1e999", b"-0", b"0.0", b"1E400"),
    *(b"9" * 30, b"9" * 5000, b"[" * 200, b'{"a":' * 150, b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"//"),
    *(
        b'"messages":',
        b'"prompt":',
        b'"body":',
        b'"custom_id":"x",',
        b'"role":"system",',
        b'"stream":true,',
        b'"n":129,',
    ),
    *(b'"max_tokens":0,', b'"temperature":-1,', b'"stop":[""],', b'"seed":18446744073709551616,', b'"logprobs":true,'),
]


def corpus() -> list[bytes]:
    """Return the lines of the hard cases that are not long, with some of each form beside them."""
    lines = [line for path in sorted(CASES.glob("*.jsonl")) for line in path.read_bytes().split(b"\n")]
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 1}
    for url, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": [1, 2, 3], "stop": ["x"], "n": 2}),
        ("/v1/responses", {"input": [{"role": "user", "content": "x"}], "instructions": "y"}),
    ):
        lines.append(json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body}).encode())
    lines += [b'{"id": 1, "prompt": "x", "stop_token_ids": [1]}', b'{"messages": [{"role": "user", "content": "x"}]}']
    return [line for line in lines if 0 < len(line) <= MAX_CORPUS_BYTES]


def mutated(lines: list[bytes], rng: random.Random) -> bytes:
    """Return a line of the corpus with up to three changes."""
    raw = bytearray(rng.choice(lines))
    for _ in range(rng.randint(0, 3)):
        start = rng.randint(0, len(raw))
        end = min(len(raw), start + rng.choice((0, 1, 2, 5, 30)))
        match rng.randrange(6):
            case 0:
                raw[start:end] = b""
            case 1:
                raw[start:end] = raw[start:end] * 2
            case 2:
                raw[start:end] = rng.choice(PIECES)
            case 3:
                other = rng.choice(lines)
                cut = rng.randint(0, len(other))
                raw[start:end] = other[cut : cut + 40]
            case 4:
                raw[start:end] = rng.randbytes(rng.randint(0, 4))
            case _:
                del raw[start:]
    return bytes(raw)


def files() -> Iterator[bytes]:
    lines, rng = corpus(), random.Random(20261130)
    assert len(lines) > 30
    for _ in range(NUM_FILES):
        yield b"\n".join(mutated(lines, rng) for _ in range(NUM_LINES // NUM_FILES))


def is_blank(number: int, line: bytes) -> bool:
    content = line.strip(JSON_SPACE)
    return not (content.removeprefix(BYTE_ORDER_MARK) if number == 0 else content)


@pytest.mark.timeout(300)  # under 20 s where nothing else runs
def test_each_of_many_lines_is_one_request_or_one_error() -> None:
    """As many outcomes as there are lines that are not blank, in their order, each in words that can be written down."""
    num_lines = num_good = 0
    for content in files():
        reader = LineReader(io.BufferedReader(io.BytesIO(content)))
        places = []
        for index, (line, raw) in enumerate(reader):
            item = PARSER.parse(raw, Place(index, line))
            places.append(line)
            assert (item.index, item.line) == (index, line)
            match item:
                case ParsedRequest():
                    num_good += 1
                    item.custom_id.encode()
                    for message in item.messages or ():
                        message["content"].encode()
                    (item.text or "").encode()
                case BadLine():
                    assert item.message.startswith(f"in.jsonl line {line}: ")
                    assert item.message.isprintable()
                    item.custom_id.encode()
                    assert item.custom_id
        expected = [n + 1 for n, line in enumerate(content.split(b"\n")) if not is_blank(n, line)]
        assert places == expected
        num_lines += len(places)
    assert num_lines > 100_000
    assert 0.1 < num_good / num_lines < 0.5, "the mutations neither spare everything nor break everything"
