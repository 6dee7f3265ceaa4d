"""Cutting a file into lines, hashed and counted, without holding what is too long."""

import hashlib
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import FileError, ReadCancelledError
from daemon.line_reader import LineReader, open_metered
from daemon.request_record import Unreadable


def reader(raw: bytes, max_bytes: int = 1 << 20) -> LineReader:
    return LineReader(io.BufferedReader(io.BytesIO(raw)), max_bytes)


@pytest.mark.parametrize(
    ("raw", "lines", "num_lines"),
    [
        (b"", [], 0),
        (b"a\nb\n", [(1, b"a"), (2, b"b")], 2),
        (b"a\nb", [(1, b"a"), (2, b"b")], 2),
        (b"a\r\n\r\nb\r\n", [(1, b"a"), (3, b"b")], 3),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [(1, b"a"), (2, b"\xef\xbb\xbfb")], 2),
        (b"\xef\xbb\xbf\na\n", [(2, b"a")], 2),
        (b"\n \t\r\n\na", [(4, b"a")], 4),
        (b"a\rb\n", [(1, b"a\rb")], 1),
        ("a\u2028\u0085\u2029b\x0b\x0c\n".encode(), [(1, "a\u2028\u0085\u2029b\x0b\x0c".encode())], 1),
    ],
)
def test_lines_end_at_line_feeds_alone(raw: bytes, lines: list[tuple[int, bytes]], num_lines: int) -> None:
    found = reader(raw)
    assert list(found) == lines
    assert (found.num_lines, found.num_blank) == (num_lines, num_lines - len(lines))


@given(st.binary(max_size=200) | st.text(alphabet="ab \r\n", max_size=200).map(str.encode), st.integers(3, 20))
def test_every_line_is_given_or_counted_blank(raw: bytes, max_bytes: int) -> None:
    """Whatever the bytes and the limit, the numbers are those of a plain split."""
    found = reader(raw, max_bytes)
    numbers = [number for number, _ in found]
    expected = raw.split(b"\n")
    assert found.num_lines == len(expected) - (not expected[-1])
    assert found.num_lines == found.num_blank + len(numbers)
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
@pytest.mark.parametrize("length", [9, 10, 11, 300_000])
def test_line_over_the_limit_is_refused_and_the_next_is_read(length: int, end: bytes) -> None:
    found = list(reader(b"x" * length + end, max_bytes=10))
    size = length + bool(end)
    if size > 10:
        assert found[0] == (1, Unreadable(f"found {size} bytes, expected at most 10"))
    else:
        assert found[0] == (1, b"x" * length)
    assert found[1:] == ([(2, b"next")] if end == b"\nnext\n" else [])


def test_byte_order_mark_does_not_hide_that_a_line_is_too_long() -> None:
    assert list(reader(b"\xef\xbb\xbf" + b"x" * 20, max_bytes=10)) == [
        (1, Unreadable("found 23 bytes, expected at most 10"))
    ]


def test_oversized_line_is_not_held(tmp_path: Path) -> None:
    """Memory stays at the buffer's size while 30 MB pass by."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"x" * 30_000_000 + b"\n{}\n")
    with open_metered(path).buffered() as file:
        tracemalloc.start()
        found = list(LineReader(file, max_bytes=1000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert [number for number, _ in found] == [1, 2]
    assert peak < 3_000_000


def test_reading_measures_and_hashes_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    content = b"a\n\nb\n" * 200_000
    path.write_bytes(content)
    seen: list[int] = []
    metered = open_metered(path, on_progress=seen.append)
    with metered.buffered() as file:
        assert sum(1 for _ in LineReader(file)) == 400_000
    assert metered.fingerprint == hashlib.sha256(content).hexdigest()
    assert metered.num_bytes == seen[-1] == len(content)
    assert len(seen) > 2
    assert seen == sorted(seen)


def test_reading_stops_within_a_chunk_of_being_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n" * 1_000_000)
    seen: list[int] = []
    metered = open_metered(path, seen.append, lambda: len(seen) >= 2)
    with metered.buffered() as file, pytest.raises(ReadCancelledError):
        list(LineReader(file))
    assert len(seen) == 2


def test_file_that_cannot_be_opened_or_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"missing\.jsonl cannot be opened: No such file"):
        open_metered(tmp_path / "missing.jsonl")
    with pytest.raises(FileError, match="cannot be opened: Is a directory"):
        open_metered(tmp_path)
