"""Files from drop to publication while the process dies, power fails and disks refuse: the end is as if nothing had happened.

Everything is real but the engine, the clock and the disk: claims, survey, runs, journal, publication, recovery, pauses.
"""

import errno
import io
import json
from collections import Counter
from dataclasses import replace
from itertools import count, groupby

import pyarrow as pa
import pytest
from crash_storage import CrashStorage, KilledError, chooser
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from whole_life import Life, answer_to, without_waiting

from daemon.pause import PauseCause


def _request(number, **fields):
    return json.dumps({"id": f"r{number}", "prompt": f"Question {number}", **fields}) + "\n"


BATCH = "".join(
    [*map(_request, range(5)), "{broken\n", "\n", _request(3), _request(7, temperature=0.7), _request(8, max_tokens=-1)]
).encode()
BATCH_FILES = {"f.jsonl": BATCH}
TEMPLATE = {"template": "{{ text }}"}
TABLE = b'id,text\n1,one\n2,\n3,"three\nlines"\n4,"broken"x\n5,five\n'


def _parquet_table():
    sink = io.BytesIO()
    parquet.write_table(pa.table({"id": [1, 2, 3], "text": ["one", None, "three"]}), sink)
    return sink.getvalue()


FILES = {
    "a batch with bad lines": (BATCH_FILES, {}),
    "answers as they come": ({"f.jsonl": BATCH}, {"output": {"order": "completion"}}),
    "a text beside a file that is none": ({"ask.txt": b"Why?\n", "word.json": b'"hello"'}, {}),
    "a bad line that fails the file": ({"f.jsonl": BATCH}, {"on_bad_line": "reject"}),
    "an empty file and a name that is too long": ({"f.jsonl": b"", "x" * 210 + ".md": b"Why?\n"}, {}),
    "options of its own": ({"f.options.yaml": b"output: {order: completion}\n", "f.jsonl": BATCH}, {}),
    "a table": ({"t.csv": TABLE}, TEMPLATE),
    "a table in columns": ({"t.parquet": _parquet_table()}, TEMPLATE),
    "one stem, two files": ({"f.jsonl": _request(1).encode(), "f.json": _request(2).encode()}, {}),
}
LOSSES = [None, lambda _: 0, lambda n: n, lambda n: n // 2]  # a mere kill; a power cut that keeps nothing, all, half
CODES = {
    errno.ENOSPC: PauseCause.DISK_FULL,
    errno.EDQUOT: PauseCause.DISK_FULL,
    errno.EROFS: PauseCause.READ_ONLY,
    errno.EIO: PauseCause.STORAGE,
}
LINES = (".output.jsonl", ".output.txt", ".output.csv", ".output.parquet", ".errors.jsonl")


@pytest.fixture(autouse=True)
def _hurry():
    with without_waiting():
        yield


@pytest.fixture
def new_life(tmp_path):
    """Make spools of their own, one after the other."""
    numbers = count()
    return lambda files, options=None: Life(tmp_path / str(next(numbers)) / "p", files, options or {})


def check_like(life, undisturbed):
    """What people find is what an undisturbed run left."""
    found, expected = life.listing(), undisturbed.listing()
    assert found["work"] == {}
    assert found["inbox"] == {}
    outbox = found["outbox"]
    assert outbox.keys() == expected["outbox"].keys()
    for name, content in expected["outbox"].items():
        if name.endswith(LINES):
            assert outbox[name] == content
        elif name.endswith(".batch.json"):
            assert _essence(outbox[name]) == _essence(content)
    for folder in ("done", "failed"):
        inputs = {content for name, content in expected[folder].items() if not name.endswith(".reason.json")}
        assert {content for name, content in found[folder].items() if not name.endswith(".reason.json")} == inputs
        assert expected[folder].keys() <= found[folder].keys()


def _essence(batch):
    """A Batch object without its times and without the inode of its input."""
    value = json.loads(batch)
    value["metadata"].pop("inode", None)
    return {key: found for key, found in value.items() if not key.endswith("_at")}


def published(life):
    """What a person can have seen of results: whole files, and the whole lines of those that grow."""
    outbox = life.storage.listing(life.folders.outbox)
    whole = {name: content for name, content in outbox.items() if name.endswith(LINES)}
    parts = {
        name.removesuffix(".partial"): content[: content.rfind(b"\n") + 1]
        for name, content in outbox.items()
        if name.endswith(".partial")
    }
    return whole, parts


@pytest.mark.parametrize(("files", "options"), FILES.values(), ids=FILES)
def test_a_death_at_any_operation_changes_nothing(new_life, files, options):
    """Each file operation of the whole life, before it, and in the middle of it where it is a write: kills and power cuts."""
    undisturbed = new_life(files, options)
    undisturbed.run()
    check_like(undisturbed, undisturbed)
    num_points = 0
    for lose in LOSSES if files is BATCH_FILES else LOSSES[:2]:
        for operation in count(1):
            life = new_life(files, options)
            if not life.kill_at(operation):
                break
            whole, parts = published(life)
            life.storage.end(lose)
            life.run()
            check_like(life, undisturbed)
            outbox = life.storage.listing(life.folders.outbox)
            assert whole.items() <= outbox.items()
            assert all(outbox[name].startswith(content) for name, content in parts.items())
            num_points += 1
    assert num_points > 2 * 25


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(1, 90), st.none() | st.lists(st.integers(0, 99), max_size=20)), max_size=5),
)
def test_many_deaths_in_a_row_change_nothing(tmp_path_factory, name, deaths):
    """Restarts die too, and power cuts keep any mixture of what was not synced."""
    files, options = FILES[name]
    folder = tmp_path_factory.mktemp("life")
    undisturbed, life = Life(folder / "u" / "p", files, options), Life(folder / "k" / "p", files, options)
    undisturbed.run()
    for operation, choices in deaths:
        life.kill_at(operation)
        life.storage.end(None if choices is None else chooser(choices))
    life.run()
    check_like(life, undisturbed)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("lasts", [1, 7])
def test_a_disk_that_refuses_any_operation_is_waited_for(new_life, code, lasts):
    """ENOSPC, EDQUOT, EROFS and EIO at each operation, once and for a while: a pause by its cause, and the same end.

    Only what nobody waits for does not pause: the sync of a claim, and the removal of what a failed write left.
    """
    undisturbed = new_life(*FILES["a batch with bad lines"])
    undisturbed.run()
    num_points = num_pauses = 0
    for operation in count(1):
        life = new_life(*FILES["a batch with bad lines"])
        first = life.storage.num_operations + operation
        life.storage.fail_at = {number: OSError(code, "refused") for number in range(first, first + lasts)}
        life.run()
        assert life.num_runs == 1
        if life.storage.num_operations < first:
            break
        check_like(life, undisturbed)
        assert life.pauses <= {CODES[code]}
        num_pauses += bool(life.pauses)
        num_points += 1
    assert num_points > 25
    assert num_pauses >= num_points - 3


def test_a_file_of_one_request_costs_few_syncs(new_life, monkeypatch):
    """Seven syncs of files and eight of folders; the latter are shared by all files that get there at one time."""
    counts = Counter()
    for name in ("sync", "sync_dir"):
        sync = getattr(CrashStorage, name)

        def counted(storage, what, name=name, sync=sync):
            counts[name] += 1
            sync(storage, what)

        monkeypatch.setattr(CrashStorage, name, counted)
    life = new_life({"f.jsonl": _request(1).encode()})
    life.run()
    assert counts["sync"] <= 7  # journal, its first group, seal with the answer, output, report, Batch object, mark
    assert counts["sync_dir"] <= 8


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (BATCH_FILES, {}, ["validating", "in_progress", "finalizing", "completed"]),
        (BATCH_FILES, {"on_bad_line": "reject"}, ["validating", "failed"]),
        ({"t.csv": TABLE}, TEMPLATE, ["validating", "in_progress", "finalizing", "completed"]),
        ({"f.jsonl": b""}, {}, ["validating", "finalizing", "completed"]),  # nothing to be in progress
    ],
)
def test_each_status_is_seen_in_the_outbox_in_its_order(new_life, monkeypatch, files, options, expected):
    """The Batch object is live: nothing between two states is left out, and counts never go down."""
    seen, rename = [], CrashStorage.rename

    def noted(storage, source, target):
        rename(storage, source, target)
        if target.name.endswith(".batch.json"):
            seen.append(json.loads(storage.read(target)))

    monkeypatch.setattr(CrashStorage, "rename", noted)
    new_life(files, options).run()
    assert [status for status, _ in groupby(batch["status"] for batch in seen)] == expected
    for key in ("total", "completed", "failed"):
        counts = [batch["request_counts"][key] for batch in seen]
        assert counts == sorted(counts)
    at_end = [batch for batch in seen if batch["status"] == "finalizing"]
    assert all(batch["request_counts"] == seen[-1]["request_counts"] for batch in at_end)


def test_these_tests_notice_an_answer_that_changes(new_life, monkeypatch):
    """Proof that a result which is not kept would be seen: from the second run on the engine answers otherwise."""
    undisturbed, life = new_life(*FILES["a batch with bad lines"]), new_life(*FILES["a batch with bad lines"])
    undisturbed.run()
    assert life.kill_at(12)
    life.storage.kill()
    monkeypatch.setattr("whole_life.answer_to", lambda request: replace(answer_to(request), num_prompt_tokens=6))
    life.run()
    with pytest.raises(AssertionError):
        check_like(life, undisturbed)


def test_a_killed_process_says_so(new_life):
    """The rig itself: a death reaches the test, and nothing is written behind it."""
    life = new_life(*FILES["a batch with bad lines"])
    life.storage.fail_at = {life.storage.num_operations + 20: KilledError()}
    with pytest.raises(KilledError):
        life.run()
    assert life.storage.is_dead
