"""Compressed request files: the same requests in flat memory, and one message for each way to be broken."""

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from daemon.content_file import MAX_WINDOW_LOG
from daemon.errors import FileError, FileFormatError, InputModifiedError
from daemon.line_reader import MAX_REQUEST_BYTES
from daemon.request_file import RequestPass, RequestReader, RequestSource
from daemon.request_record import BadLine, ParsedRequest
from daemon.survey import survey

LINES = b"".join(b'{"id": "r%d", "prompt": "Say %d"}\n' % (n, n) for n in range(1000))
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd.compress}
KINDS = pytest.mark.parametrize("kind", COMPRESS)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read(path: Path) -> list[ParsedRequest | BadLine]:
    return list(RequestReader(path, survey(path)))


@KINDS
def test_compressed_file_is_the_same_file(tmp_path: Path, kind: str) -> None:
    """Requests and fingerprint are those of the content, so that seeds and ids do not depend on the compression."""
    plain = written(tmp_path / "in.jsonl", LINES)
    packed = written(tmp_path / f"in.jsonl.{kind}", COMPRESS[kind](LINES))
    assert read(packed) == read(plain)
    assert survey(packed) == survey(plain)


@KINDS
def test_several_streams_in_one_file_are_one_content(tmp_path: Path, kind: str) -> None:
    """As parallel compressors and `cat` make them; a request may lie across the seam."""
    half = len(LINES) // 2
    packed = COMPRESS[kind](LINES[:half]) + COMPRESS[kind](LINES[half:])
    assert len(read(written(tmp_path / f"in.jsonl.{kind}", packed))) == 1000


@KINDS
@pytest.mark.parametrize("keep", [0, 1, 3, 10, 0.5, -1])
def test_file_that_is_cut_off_is_refused(tmp_path: Path, kind: str, keep: float) -> None:
    """Wherever a copy stopped, it is not taken for the whole."""
    packed = COMPRESS[kind](LINES)
    end = int(keep * len(packed)) if isinstance(keep, float) else keep
    path = written(tmp_path / f"in.jsonl.{kind}", packed[:end])
    with pytest.raises(FileFormatError, match=rf"^in\.jsonl\.{kind}: found (the end of the file within its|damaged) "):
        survey(path)


@KINDS
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"plain text, no archive\n",
        lambda packed: packed[:40] + bytes(40) + packed[80:],
        lambda packed: packed + b"something behind it",
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]) -> None:
    """In one line that names the file, whatever the library says."""
    path = written(tmp_path / f"in.jsonl.{kind}", damage(COMPRESS[kind](LINES)))
    with pytest.raises(FileFormatError, match=rf"^in\.jsonl\.{kind}: found damaged compressed data") as caught:
        survey(path)
    assert str(caught.value).isprintable()


@KINDS
def test_missing_file_cannot_be_opened(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FileError, match=rf"in\.jsonl\.{kind} cannot be opened: No such file"):
        survey(tmp_path / f"in.jsonl.{kind}")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "txt", "json", "parquet"])
@pytest.mark.timeout(20)
def test_named_pipe_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / f"in.{kind}")
    with pytest.raises(FileError, match=rf"in\.{kind} cannot be opened: it is not an ordinary file"):
        survey(tmp_path / f"in.{kind}", template="{{ a }}")


@KINDS
def test_where_data_ends_is_said_as_far_as_it_is_known(tmp_path: Path, kind: str) -> None:
    """What is read in one go and not finished is not counted: nothing is said rather than that it was nothing."""
    path = written(tmp_path / f"in.jsonl.{kind}", COMPRESS[kind](LINES)[:-20])
    with pytest.raises(
        FileFormatError, match=r"within its compressed data(, behind [1-9]\d* bytes of content or more)?, exp"
    ):
        survey(path)


@KINDS
def test_file_that_is_cut_off_after_its_survey_gives_what_was_there_first(tmp_path: Path, kind: str) -> None:
    """The requests before the end are there, then it is known as changed."""
    packed = COMPRESS[kind](LINES) * 10
    path = written(tmp_path / f"in.jsonl.{kind}", packed)
    found = survey(path)
    path.write_bytes(packed[:-1])
    reader = iter(RequestReader(path, found))
    assert [next(reader).index for _ in range(5000)] == list(range(5000))
    with pytest.raises(InputModifiedError, match="was changed while it was being run"):
        list(reader)


@KINDS
def test_line_that_expands_without_end_is_one_bad_line_in_flat_memory(tmp_path: Path, kind: str) -> None:
    """A megabyte or less of file stands for one line of 200 MB; it is read, refused and never held."""
    path = tmp_path / f"in.jsonl.{kind}"
    piece = COMPRESS[kind](bytes(1_000_000))
    path.write_bytes(piece * 200 + COMPRESS[kind](b'\n{"prompt": "x"}\n'))
    tracemalloc.start()
    bad, good = RequestPass(RequestSource.of(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(bad, BadLine)
    assert f"found 200000001 bytes, expected at most {MAX_REQUEST_BYTES}" in bad.message
    assert isinstance(good, ParsedRequest)
    assert peak < 3 * MAX_REQUEST_BYTES


def test_window_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """The memory that a file may ask for is not the file's to say."""
    options = {zstd.CompressionParameter.window_log: MAX_WINDOW_LOG + 1}
    path = tmp_path / "in.jsonl.zst"
    with zstd.open(path, "wb", options=options) as file:
        file.write(LINES)
    with pytest.raises(FileFormatError, match=r"found damaged compressed data \(.*memory"):
        survey(path)
