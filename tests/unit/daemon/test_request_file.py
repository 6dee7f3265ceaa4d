"""Reading whole request files: kinds, text files, changes underfoot."""

import gzip
import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from backports import zstd

from daemon import durable
from daemon.errors import FileError, FileFormatError, InputModifiedError, ReadCancelledError
from daemon.file_kinds import FileKind
from daemon.line_reader import CHUNK_BYTES, MAX_REQUEST_BYTES, QUIET
from daemon.request_file import RequestPass, RequestReader, RequestSource, kind_of
from daemon.request_record import BadLine, ParsedRequest
from daemon.survey import survey


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read(path: Path) -> list[ParsedRequest | BadLine]:
    return list(RequestReader(path, survey(path)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", FileKind.LINES),
        ("a.b.JSONL", FileKind.LINES),
        ("a.json", FileKind.JSON),
        ("a.txt", FileKind.TEXT),
        ("a.md", FileKind.TEXT),
        ("a.jsonl.gz", FileKind.LINES),
        ("a.JSONL.zst", FileKind.LINES),
        ("a.json.gz", None),
        ("a.gz", None),
        (".jsonl.gz", None),
        ("jsonl", None),
        (".jsonl", None),
        ("", None),
    ],
)
def test_kind_is_told_by_the_extension(name: str, kind: FileKind | None) -> None:
    assert kind_of(name) is kind


def test_file_of_another_extension_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"in\.xls: found extension '\.xls', expected one of \.jsonl, "):
        survey(written(tmp_path / "in.xls", b"x"))


def test_line_of_50_megabytes_is_a_request(tmp_path: Path) -> None:
    """In memory it is there a few times at once, as bytes, as text and as values, and no more."""
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'{"id": "big", "prompt": "')
        file.writelines(b"x" * 1_000_000 for _ in range(50))
        file.write(b'"}\n{"id": "small", "prompt": "y"}\n')
    tracemalloc.start()
    big, small = RequestPass(RequestSource.of(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 50_000_000
    assert (big.custom_id, len(big.text)) == ("big", 50_000_000)
    assert (small.custom_id, small.line) == ("small", 2)


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        (b"Hi", "Hi"),
        (b"Hi\n", "Hi"),
        (b"\xef\xbb\xbfHi\r\n", "Hi"),
        (b"\n Hi\n\n", "\n Hi\n"),
        ('{"prompt": "\u00e4"}\n'.encode(), '{"prompt": "\u00e4"}'),
    ],
)
def test_text_file_is_one_prompt_without_the_end_of_its_last_line(tmp_path: Path, content: bytes, prompt: str) -> None:
    for name in ("in.txt", "in.md"):
        path = written(tmp_path / name, content)
        (request,) = read(path)
        assert request.messages == ({"role": "user", "content": prompt},)
        assert (survey(path).num_lines, survey(path).num_requests) == (1, 1)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "found 0 bytes"),
        (b"\n \n", "found 3 bytes without a word"),
        (b"ab\xe9", "found 0xe9 at byte 3"),
        (b"\xff\xfeH", "found 0xff at byte 1"),
    ],
)
def test_text_file_that_is_no_prompt_fails_as_a_whole(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(FileFormatError, match=r"^in\.txt: ") as caught:
        survey(written(tmp_path / "in.txt", content))
    assert text in str(caught.value)


def test_messages_name_the_file_as_it_was_dropped(tmp_path: Path) -> None:
    """A claim may have renamed the file; what cannot be shown in its name is escaped."""
    path = written(tmp_path / "in~2.jsonl", b"null\n")
    found = survey(path, name="in\n.jsonl")
    (bad,) = RequestReader(path, found, name="in\n.jsonl")
    assert found.bad_lines == (bad,)
    assert bad.message.startswith("in\\n.jsonl line 1: ")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("in.jsonl", b'{"prompt": "a"}\n', b'{"prompt": "b"}\n'),
        ("in.jsonl", b'{"prompt": "a"}\n', b'{"prompt": "a"}\n\n'),
        ("in.json", b'[{"prompt": "a"}]', b'[{"prompt": "a"}] '),
        ("in.json", b'[{"prompt": "a"}]', b"oops"),
        ("in.txt", b"a", b"b"),
        ("in.txt", b"a", b"\xff"),
    ],
)
def test_change_after_the_survey_is_noticed_at_the_end(tmp_path: Path, name: str, before: bytes, after: bytes) -> None:
    path = written(tmp_path / name, before)
    found = survey(path)
    path.write_bytes(after)
    with pytest.raises(InputModifiedError, match="was changed"):
        list(RequestReader(path, found))


def test_broken_array_is_read_up_to_its_break_and_to_its_end(tmp_path: Path) -> None:
    """The fingerprint covers the bytes behind the break too."""
    path = written(tmp_path / "in.json", b'[{"prompt": "a"},\n{"prompt": "b"}}\n{"prompt": "c"}]')
    found = survey(path)
    first, second, broken = RequestReader(path, found)
    assert (first.text, second.text) == ("a", "b")
    assert isinstance(broken, BadLine)
    assert (broken.index, broken.line, broken.code) == (2, 2, "invalid_json_line")
    assert broken.message == "in.json element 3 (line 2): found } at the end of the array, expected ]"
    assert (found.num_requests, found.num_bad, found.num_lines) == (3, 1, 3)
    path.write_bytes(path.read_bytes()[:-1] + b"}")
    with pytest.raises(InputModifiedError):
        list(RequestReader(path, found))


def test_missing_file_stays_a_file_error(tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", b'{"prompt": "a"}\n')
    found = survey(path)
    path.unlink()
    with pytest.raises(FileError, match="cannot be opened"):
        list(RequestReader(path, found))


def test_reading_can_be_cancelled(tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", (b'{"prompt": "' + b"a" * 1000 + b'"}\n') * 1000)
    found = survey(path)
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    reader = RequestReader(path, found, is_cancelled=is_cancelled)
    with pytest.raises(ReadCancelledError):
        list(reader)


def test_reader_is_lazy_and_can_be_left(tmp_path: Path) -> None:
    """Nothing behind what is asked for is parsed, and leaving early says nothing of the rest."""
    path = written(tmp_path / "in.jsonl", b'{"prompt": "a"}\n' * 3)
    found = survey(path)
    path.write_bytes(b'{"prompt": "z"}\n')
    requests = iter(RequestReader(path, found))
    assert next(requests).text == "z"
    requests.close()


def test_array_without_ids_has_one_each(tmp_path: Path) -> None:
    path = written(tmp_path / "in.json", json.dumps([{"prompt": "a"}] * 3).encode())
    assert [item.custom_id for item in read(path)] == ["line-1", "line-2", "line-3"]
    assert survey(path).num_bad == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be-with-mark", "utf-32"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("f.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n'),
        ("f.json", '[{"prompt": "a"}]'),
        ("f.csv", "text,other\r\na,b\r\n"),
        ("f.tsv", "\u6587\t\u672c\r\na\tb\r\n"),
        ("f.txt", "Say a word."),
    ],
)
def test_utf_16_is_called_so_whatever_holds_it(tmp_path: Path, name: str, content: str, encoding: str) -> None:
    """What Excel and PowerShell write: one fault that says what it is, not one a line that says something else."""
    path = tmp_path / name
    raw = b"\xfe\xff" + content.encode("utf-16-be") if encoding.endswith("mark") else content.encode(encoding)
    path.write_bytes(raw)
    with pytest.raises(
        FileFormatError, match=rf"{name}: found text in UTF-16 \(it begins with 0x\w{{4}}\), expected UTF-8"
    ):
        survey(path, template="{{ text }}")


@pytest.mark.parametrize("name", ["f.jsonl", "f.json", "f.csv", "f.txt"])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        (gzip.compress(b'{"prompt": "a"}\n'), "gzip data, which .jsonl.gz is called"),
        (zstd.compress(b'{"prompt": "a"}\n'), "zstd data, which .jsonl.zst is called"),
        (b"PK\x03\x04\x14\x00\x06\x00\x08\x00", "a zip archive, as .xlsx and .docx are"),
    ],
    ids=["gzip", "zstd", "zip"],
)
def test_what_is_no_text_is_called_what_it_is(tmp_path: Path, name: str, content: bytes, found: str) -> None:
    """A name that lost its ending makes no thousand bad lines that are no UTF-8."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"{name}: found {found}, expected text in UTF-8"):
        survey(path, template="{{ text }}")


def test_a_damaged_first_line_is_not_taken_for_utf_16(tmp_path: Path) -> None:
    """It is a bad line like another; the rest is read."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'\xff\xfe{"prompt": "a"}\n{"prompt": "b"}\n')
    found = survey(path)
    assert (found.num_requests, found.num_bad) == (2, 1)


NUM_QUIET = 20


@pytest.mark.parametrize(
    ("name", "content", "num_skipped"),
    [
        ("blank.jsonl", b'{"prompt": "a"}\n' + b"\n" * (NUM_QUIET * QUIET) + b'{"prompt": "b"}\n', 0),
        ("done.jsonl", b'{"prompt": "a"}\n' * (NUM_QUIET * QUIET + 1), NUM_QUIET * QUIET),
        ("large.jsonl", b"x" * (MAX_REQUEST_BYTES + NUM_QUIET * CHUNK_BYTES) + b'\n{"prompt": "b"}\n', 0),
        ("blank.csv", b"\n" * QUIET + b"a\nb\n" + b"\n" * (NUM_QUIET * QUIET) + b"c\n", 0),
        ("done.csv", b"a\n" + b"b\n" * (NUM_QUIET * QUIET + 1), NUM_QUIET * QUIET),
        ("large.csv", b"a\n" + b"x" * (MAX_REQUEST_BYTES + NUM_QUIET * CHUNK_BYTES) + b"\nc\n", 0),
    ],
)
def test_whoever_feeds_is_told_where_no_request_comes_for_a_while(
    tmp_path: Path, name: str, content: bytes, num_skipped: int
) -> None:
    """The next one may be minutes away, behind what is blank, too large or done already, and others are to be fed meanwhile."""
    path = written(tmp_path / name, content)
    reader = RequestReader(
        path, survey(path, template="{{ a }}"), lambda index: index < num_skipped, template="{{ a }}"
    )
    pieces = list(reader.in_pieces())
    assert [piece for piece in pieces if piece is not None] == list(reader)
    assert NUM_QUIET <= pieces.count(None) <= NUM_QUIET + 1


def test_a_parquet_file_is_hashed_in_pieces(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"a": [str(number) * 400 for number in range(4000)]}), path, compression="none")
    pieces = list(RequestReader(path, survey(path, template="{{ a }}"), template="{{ a }}").in_pieces())
    assert pieces.count(None) >= path.stat().st_size // CHUNK_BYTES > 1


def test_a_files_name_is_written_as_everywhere_else(tmp_path: Path) -> None:
    """In error lines, in reasons and in the log alike, so that one can be found by the other."""
    path = tmp_path / os.fsdecode(b"in\xff\n.jsonl")
    path.write_bytes(b"{\n")
    (bad,) = RequestPass(RequestSource.of(path))
    assert isinstance(bad, BadLine)
    assert bad.message.startswith(f"{durable.printable(path.name)} line 1: ")
    path.write_bytes("Hi".encode("utf-16"))
    with pytest.raises(FileFormatError, match=re.escape(durable.printable(path.name))):
        list(RequestPass(RequestSource.of(path)))
