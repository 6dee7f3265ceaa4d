"""Only what failed, in its order, under its ids: told exactly, whatever the ids are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.file_kinds import FileKind
from daemon.made_with import MadeWith
from daemon.request_file import RequestReader
from daemon.request_record import BadLine
from daemon.result_line import LineBuilder, LineError, LineFormat, Refusal
from daemon.retry import UNANSWERED, FailedLines, Selection, Unanswered, content_fingerprint
from daemon.retry_file import write_chosen
from daemon.survey import survey

BATCH = {"method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "x"}]}}


def errors_of(path, failing, line_format):
    """What a run's errors file holds: bad lines and duplicates, and of the others those whose index is in `failing`."""
    found = survey(path)
    builder = LineBuilder(found.fingerprint, 1, MadeWith("m", "1"), line_format)
    lines = []
    for item in RequestReader(path, found):
        if isinstance(item, BadLine):
            custom_id = f"line-{item.line}" if item.custom_id is None else item.custom_id
            lines.append(builder.refused(item.index, custom_id, Refusal(item.code, item.message)))
        elif item.index in failing:
            lines.append(builder.failed(item.index, item.custom_id, LineError.EXPIRED, "too late"))
    return lines, found.fingerprint


def retried(path, failing, line_format=LineFormat.BATCH, codes=None, kind=FileKind.LINES):
    lines, fingerprint = errors_of(path, failing, line_format)
    assert content_fingerprint(path) == fingerprint
    made = Selection(FailedLines.read(lines, fingerprint), codes)
    write_chosen(path, kind, path.with_name("new"), made.takes)
    return made, path.with_name("new").read_bytes()


@pytest.mark.parametrize("line_format", [LineFormat.BATCH, LineFormat.PLAIN])
def test_what_failed_is_kept_as_it_was_written(tmp_path, line_format):
    """Byte for byte where it names itself; bad lines, duplicates, plain and Batch lines; blank lines are gone."""
    path = tmp_path / "f.jsonl"
    good = [json.dumps({"custom_id": f"r{number}"} | BATCH) for number in range(4)]
    lines = [good[0], "", good[1], '{"id":  "p", "prompt":"x"}', "{broken", good[1], good[2], good[3]]
    path.write_text("\n".join(lines))
    made, content = retried(path, {1, 2, 6}, line_format)
    assert content.decode().splitlines() == [good[1], '{"id":  "p", "prompt":"x"}', "{broken", good[1], good[3]]
    assert made.counts == {"batch_expired": 3, "invalid_json_line": 1, "duplicate_custom_id": 1}


def test_a_request_without_an_id_keeps_the_one_its_place_gave_it(tmp_path):
    """Its place is another now. In the plain form and in the Batch form, with null as with nothing."""
    path = tmp_path / "f.jsonl"
    path.write_text(
        '{"prompt": "a"}\n\n{"prompt": "b", "id": null}\n'
        + json.dumps(BATCH)
        + '\n{"prompt": 5}\n{"id": 7, "prompt": "c"}\n'
    )
    _, content = retried(path, {1, 2, 4})
    values = [json.loads(line) for line in content.splitlines()]
    assert values[0] == {"id": "line-3", "prompt": "b"}
    assert values[1] == {"custom_id": "line-4"} | BATCH
    assert values[2] == {"id": "line-5", "prompt": 5}
    assert values[3] == {"id": 7, "prompt": "c"}


def test_a_line_that_cannot_be_written_again_is_kept_as_it_is(tmp_path):
    """No number of JSON is infinite; a line with one that is too large is a bad one, and retried as it is."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "max_tokens": 1e999}\n')
    made, content = retried(path, {0})
    assert content == b'{"id":"line-1","prompt":"a"}\n{"prompt": "b", "max_tokens": 1e999}\n'
    assert made.counts == {"batch_expired": 1, "invalid_json_line": 1}


def test_an_id_that_looks_like_a_place_is_not_taken_for_it(tmp_path):
    """Line 2 is broken and has the id line-2 in the errors file; another request of that name was answered."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"id": "line-2", "prompt": "x"}\n{broken\n')
    _, content = retried(path, set())
    assert content == b"{broken\n"


def test_an_array_stays_one(tmp_path):
    """Elements as they were written, over several lines too; ids by their count."""
    path = tmp_path / "f.json"
    path.write_text('[{"prompt": "a"}, {"id": "x",\n  "prompt": "b"},\n {"prompt": "c"}]')
    _, content = retried(path, {1, 2}, kind=FileKind.JSON)
    assert json.loads(content) == [{"id": "x", "prompt": "b"}, {"id": "line-3", "prompt": "c"}]
    assert b'{"id": "x",\n  "prompt": "b"}' in content


def test_codes_choose_among_what_failed(tmp_path):
    """A broken line is broken again; whoever knows that leaves it out."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n{broken\n')
    made, content = retried(path, {0}, codes=frozenset({"batch_expired"}))
    assert content == b'{"id": "a", "prompt": "x"}\n'
    assert made.counts == {"batch_expired": 1}


def test_of_a_file_that_was_stopped_all_without_an_answer_are_taken(tmp_path):
    """Requests that were not even begun have no line anywhere."""
    path = tmp_path / "f.jsonl"
    path.write_text("".join(f'{{"id": "{name}", "prompt": "x"}}\n' for name in ("a", "b", "a", "c")))
    output = [b'{"id":"a","text":"y"}\n', b'{"id":"z","custom_id":"c"}\n']
    made = Selection(Unanswered.read(output))
    write_chosen(path, FileKind.LINES, tmp_path / "new", made.takes)
    assert [json.loads(line)["id"] for line in (tmp_path / "new").read_bytes().splitlines()] == ["b", "a"]
    assert made.counts == {UNANSWERED: 2}


@given(st.data())
def test_what_is_retried_is_exactly_what_failed(tmp_path_factory, data):
    """Any mixture of ids, missing ones, equal ones and broken lines; the ids of the retry are those of the errors file."""
    path = tmp_path_factory.mktemp("retry") / "f.jsonl"
    ids = data.draw(st.lists(st.sampled_from([None, "a", "b", "line-1", "line-2", "broken"]), min_size=1, max_size=8))
    failing = data.draw(st.sets(st.integers(0, len(ids) - 1)))
    texts = [
        "{broken" if name == "broken" else json.dumps({"prompt": "x"} | ({"id": name} if name else {})) for name in ids
    ]
    path.write_text("".join(f"{text}\n" for text in texts))
    lines, _ = errors_of(path, failing, LineFormat.BATCH)
    made, content = retried(path, failing)
    assert made.counts.total() == len(content.splitlines()) == len(lines)
    expected = [json.loads(line)["custom_id"] for line in lines]
    found = [None if text == "{broken" else json.loads(text)["id"] for text in content.decode().splitlines()]
    assert [one for one, other in zip(expected, found, strict=True) if other is not None and one != other] == []
