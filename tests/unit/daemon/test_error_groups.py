"""Errors put together by code, whichever form their lines have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.error_groups import UNKNOWN_CODE, failed_lines, group_errors, read_error_line
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Outcome
from daemon.made_with import MadeWith
from daemon.result_line import LineBuilder, LineError, LineFormat, Refusal


@pytest.mark.parametrize("line_format", [LineFormat.BATCH, LineFormat.PLAIN])
def test_lines_as_we_write_them_are_read(line_format):
    """A refusal and a failure of each form give code, id and message."""
    lines = LineBuilder("f", 1, MadeWith("m", "1"), line_format)
    refused = read_error_line(lines.refused(0, "a", Refusal("invalid_value", "line 1: x")))
    failed = read_error_line(lines.failed(1, "b", LineError.EXPIRED, "too late"))
    assert (refused.code, refused.custom_id, refused.message) == ("invalid_value", "a", "line 1: x")
    assert (failed.code, failed.custom_id, failed.message) == ("batch_expired", "b", "too late")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["error", "response", "body", "code", "message", "id", "custom_id"]), inner)))  # fmt: skip
def test_what_is_no_error_line_has_the_code_unknown_and_never_raises(value):
    """A person may have edited the file."""
    read_error_line(json.dumps(value))


def test_torn_text_is_unknown():
    """Neither is JSON a must."""
    assert read_error_line(b'{"id": ').code == UNKNOWN_CODE


def test_the_largest_group_comes_first_with_the_first_of_its_lines(tmp_path):
    """From the journal itself: only error lines are read back, in the order of the input."""
    journal = Journal.create(tmp_path / "f.journal", Header("f", 1, "f.jsonl", 1, 1, "m", {}))
    journal.append_started(1, 5)
    lines = LineBuilder("f", 1, MadeWith("m", "1"), LineFormat.BATCH)
    journal.append_refused(4, Outcome.REFUSED, lines.refused(4, "e", Refusal("b", "late")))
    journal.append_result(0, b"{}\n", LineNumbers())
    journal.append_refused(1, Outcome.REFUSED, lines.refused(1, "b", Refusal("a", "one")))
    journal.append_refused(2, Outcome.REFUSED, lines.refused(2, "c", Refusal("b", "early")))
    journal.sync()
    journal.append_refused(3, Outcome.REFUSED, lines.refused(3, "d", Refusal("b", "not durable yet")))
    groups = group_errors(failed_lines(journal))
    journal.close()
    assert [(group.code, group.count, group.first.message) for group in groups] == [("b", 2, "early"), ("a", 1, "one")]
