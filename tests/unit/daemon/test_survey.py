"""The validating pass: totals, fingerprint, and ids that stand twice."""

import hashlib
import json
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.errors import InputModifiedError, ReadCancelledError
from daemon.request_file import RequestReader
from daemon.request_record import BadLine, ParsedRequest, Place
from daemon.survey import IdHashes, survey


def plain(custom_id: str | None, **fields: object) -> str:
    return json.dumps({"id": custom_id, "prompt": "x"} | fields)


def file_of(folder: Path, *lines: str) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_totals_and_fingerprint(tmp_path: Path) -> None:
    path = file_of(tmp_path, plain("a"), "", "oops", "  ", plain("b"), plain("c", n=0))
    found = survey(path)
    assert found.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.num_bytes == path.stat().st_size
    assert (found.num_lines, found.num_blank, found.num_requests, found.num_bad) == (6, 2, 4, 2)
    assert [(bad.index, bad.line, bad.custom_id) for bad in found.bad_lines] == [(1, 3, "line-3"), (3, 6, "c")]
    assert found.duplicates == {}


def test_empty_file_has_no_requests(tmp_path: Path) -> None:
    found = survey(file_of(tmp_path))
    assert (found.num_lines, found.num_requests, found.num_bad) == (0, 0, 0)
    assert list(RequestReader(tmp_path / "in.jsonl", found)) == []


def test_only_the_first_bad_lines_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    found = survey(file_of(tmp_path, plain("a"), *["oops"] * 5, plain("a")), max_bad_lines=3)
    assert [bad.line for bad in found.bad_lines] == [2, 3, 4]
    assert found.num_bad == 6


def test_bad_lines_with_long_ids_take_up_little(tmp_path: Path) -> None:
    """A thousand of them could take up all memory, and the journal writes them down."""
    long = "x" * (1 << 18)
    found = survey(file_of(tmp_path, *[plain(f"{number}{long}", n=0) for number in range(20)], "oops"))
    assert [bad.line for bad in found.bad_lines] == [1, 2, 3, 4]
    assert found.num_bad == 21


def test_duplicates_name_the_first_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, plain("a"), plain("b"), "", plain("a"), plain("a"))
    found = survey(path)
    assert found.duplicates == {2: Place(0, 1), 3: Place(0, 1)}
    items = list(RequestReader(path, found))
    assert [type(item) for item in items] == [ParsedRequest, ParsedRequest, BadLine, BadLine]
    assert items[2:] == list(found.bad_lines)
    assert items[2] == BadLine(
        index=2,
        line=4,
        custom_id="a",
        code="duplicate_custom_id",
        message='in.jsonl line 4: id: found "a", which line 1 has already, expected an id of its own',
        param="id",
    )


def test_requests_that_cannot_be_read_have_ids_of_their_own(tmp_path: Path) -> None:
    """Elements of an array on one line are told apart, and no other request may be called as an error line is."""
    path = tmp_path / "in.json"
    path.write_text('[{"prompt": "a"}, 5, 6, {"id": "line-3", "prompt": "b"}]')
    found = survey(path)
    items = list(RequestReader(path, found))
    assert [item.custom_id for item in items] == ["line-1", "line-2", "line-3", "line-3"]
    assert [bad.code for bad in found.bad_lines] == ["invalid_json_line", "invalid_json_line", "duplicate_custom_id"]


def test_bad_line_takes_its_id_and_keeps_its_own_fault(tmp_path: Path) -> None:
    """An error line carries its id too, so no other request may have it; one fault a line is said."""
    path = file_of(tmp_path, plain("a", n=0), plain("a"), plain("a", n=0))
    found = survey(path)
    assert [bad.code for bad in found.bad_lines] == ["invalid_value", "duplicate_custom_id", "invalid_value"]
    assert found.num_bad == 3


def test_given_id_meets_the_id_of_a_line_without_one(tmp_path: Path) -> None:
    found = survey(file_of(tmp_path, plain("line-2"), plain(None)))
    assert found.duplicates == {1: Place(0, 1)}


def test_duplicates_on_one_line_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(f"[{plain('a')}, {plain('a')}]", encoding="utf-8")
    found = survey(path)
    assert found.duplicates == {1: Place(0, 1)}
    assert 'found "a", which element 1 (line 1) has already' in found.bad_lines[0].message


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.sampled_from("abcdefgh"), max_size=12), num_hashes=st.sampled_from([1, 3, 2**63]))
def test_verdict_is_exact_whatever_the_hashes(tmp_path: Path, ids: list[str], num_hashes: int) -> None:
    """Even where all ids share one hash, exactly the later ones of equal ids are bad, and reading agrees with counting."""
    path = file_of(tmp_path, *map(plain, ids))
    found = survey(path, hash_of=lambda text: ord(text) * 0x9E3779B97F4A7C15 % num_hashes)
    expected = {i: Place(ids.index(one), ids.index(one) + 1) for i, one in enumerate(ids) if ids.index(one) < i}
    assert found.duplicates == expected
    assert found.num_bad == len(expected)
    bad = [item.index for item in RequestReader(path, found) if isinstance(item, BadLine)]
    assert bad == list(expected)


def test_equal_hashes_are_found_in_every_partition() -> None:
    hashes = IdHashes(hash_of=int)
    for value in range(-1000, 1000):
        hashes.add(str(value))
    assert hashes.repeated() == frozenset()
    again = {-1000, -257, -1, 0, 255, 256, 999}
    for value in again:
        hashes.add(str(value))
    assert hashes.repeated() == again


def test_whole_range_of_hashes_is_taken() -> None:
    hashes = IdHashes(hash_of=int)
    for value in (-(2**63), 2**63 - 1, -(2**63)):
        hashes.add(str(value))
    assert hashes.repeated() == {-(2**63)}


def test_file_that_changes_between_the_two_passes_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, plain("a"), plain("a"))

    def change(num_bytes: int) -> None:
        if num_bytes == path.stat().st_size:
            path.write_text(path.read_text("utf-8").replace("x", "y"), "utf-8")

    with pytest.raises(InputModifiedError, match=r"in\.jsonl was changed while it was being surveyed"):
        survey(path, on_progress=change)


def test_survey_runs_in_a_thread_and_can_be_cancelled_there(tmp_path: Path) -> None:
    path = file_of(tmp_path, *[plain(str(i), user="u" * 1000) for i in range(1000)])
    begun, cancelled, raised = threading.Event(), threading.Event(), threading.Event()

    def progress(_: int) -> None:
        begun.set()
        cancelled.wait(10)

    def run() -> None:
        try:
            survey(path, on_progress=progress, is_cancelled=cancelled.is_set)
        except ReadCancelledError:
            raised.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    cancelled.set()
    thread.join(10)
    assert raised.is_set()
