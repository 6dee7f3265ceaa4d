"""The Batch object: OpenAI's own model reads it in every state, and it goes only where it may."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Batch

from daemon.batch_object import MAX_ERRORS, BatchError, BatchInfo, BatchObject, BatchStatus, batch_id
from daemon.errors import InvariantError
from daemon.journal_records import LineNumbers, Outcome
from daemon.journal_state import Tally
from pipelines.counted import counted

INFO = BatchInfo("in", "in.jsonl", "chat", "SmolLM2", "/v1/chat/completions", created_at=1000)
S = BatchStatus
MAY_FOLLOW = {
    (S.VALIDATING, S.IN_PROGRESS),
    (S.VALIDATING, S.FAILED),
    (S.VALIDATING, S.CANCELLING),
    (S.IN_PROGRESS, S.FINALIZING),
    (S.IN_PROGRESS, S.FAILED),
    (S.IN_PROGRESS, S.CANCELLING),
    (S.FINALIZING, S.COMPLETED),
    (S.FINALIZING, S.EXPIRED),
    (S.FINALIZING, S.FAILED),
    (S.CANCELLING, S.CANCELLED),
    (S.CANCELLING, S.FINALIZING),
    (S.CANCELLING, S.FAILED),
}
PATHS = {
    S.VALIDATING: [],
    S.IN_PROGRESS: [S.IN_PROGRESS],
    S.FINALIZING: [S.IN_PROGRESS, S.FINALIZING],
    S.COMPLETED: [S.IN_PROGRESS, S.FINALIZING, S.COMPLETED],
    S.EXPIRED: [S.IN_PROGRESS, S.FINALIZING, S.EXPIRED],
    S.FAILED: [S.FAILED],
    S.CANCELLING: [S.IN_PROGRESS, S.CANCELLING],
    S.CANCELLED: [S.CANCELLING, S.CANCELLED],
}


def ticking() -> Iterator[float]:
    """A clock that goes on by ten seconds at each look."""
    seconds = 1000.0
    while True:
        seconds += 10.5
        yield seconds


def at(status: BatchStatus) -> BatchObject:
    """Return an object that has come to a status."""
    clock = ticking()
    batch = BatchObject(INFO, lambda: next(clock))
    for step in PATHS[status]:
        batch.advance(step)
    return batch


@pytest.mark.parametrize("status", BatchStatus)
def test_openais_model_reads_every_state(status: BatchStatus) -> None:
    """Strictly: right types and words, and each key is one that OpenAI has."""
    document = at(status).as_dict()
    batch = Batch.model_validate(document, strict=True)
    assert batch.status == status.value
    assert set(document) <= set(Batch.model_fields)
    assert (batch.id, batch.created_at, batch.model) == (batch_id("in", 1000), 1000, "SmolLM2")
    assert (batch.input_file_id, batch.endpoint) == ("in.jsonl", "/v1/chat/completions")
    assert batch.metadata == {"source": "in.jsonl", "pipeline": "chat"}


@pytest.mark.parametrize("target", BatchStatus)
@pytest.mark.parametrize("source", BatchStatus)
def test_only_the_drawn_transitions_are_possible(source: BatchStatus, target: BatchStatus) -> None:
    """All 64 pairs; a refused one changes nothing."""
    batch = at(source)
    before = batch.as_json()
    if (source, target) in MAY_FOLLOW:
        batch.advance(target)
        assert batch.status is target
    else:
        with pytest.raises(InvariantError, match=f"from {source} to {target}"):
            batch.advance(target)
        assert batch.as_json() == before


def test_final_states_are_those_that_nothing_follows() -> None:
    """A caller asks this to know whether to go on."""
    assert {status for status in S if status.is_final} == {S.FAILED, S.COMPLETED, S.EXPIRED, S.CANCELLED}


def test_each_state_is_stamped_with_its_time() -> None:
    """Whole Unix seconds of the injected clock; times known from before (after a restart) are taken as they are."""
    batch = at(S.COMPLETED)
    document = batch.as_dict()
    assert [document[f"{status}_at"] for status in PATHS[S.COMPLETED]] == [1010, 1021, 1031]
    assert document["failed_at"] is document["cancelled_at"] is document["expired_at"] is None
    again = BatchObject(INFO, lambda: 0.0)
    for status, time in zip(PATHS[S.COMPLETED], (1010, 1021, 1031), strict=True):
        again.advance(status, at=time)
    assert again.as_json() == batch.as_json()


def test_counts_and_usage_are_the_journals() -> None:
    """The tally is live: what is recorded later shows up by itself."""
    batch = at(S.IN_PROGRESS)
    tally = Tally()
    batch.count(5, tally)
    numbers = LineNumbers(prompt_tokens=7, cached_tokens=2, completion_tokens=3, reasoning_tokens=1)
    tally.add(Outcome.COMPLETED, 10, numbers)
    tally.add(Outcome.REFUSED, 10, LineNumbers())
    tally.add(Outcome.ENGINE_ERROR, 10, LineNumbers())
    read = Batch.model_validate(batch.as_dict())
    assert read.request_counts is not None
    assert (read.request_counts.total, read.request_counts.completed, read.request_counts.failed) == (5, 1, 2)
    assert read.usage is not None
    assert (read.usage.input_tokens, read.usage.output_tokens, read.usage.total_tokens) == (7, 3, 10)
    assert read.usage.input_tokens_details.cached_tokens == 2
    assert read.usage.output_tokens_details.reasoning_tokens == 1


def test_files_are_named_when_they_are_known() -> None:
    """No names before, and null for a file that will not be."""
    batch = at(S.FINALIZING)
    assert batch.as_dict()["output_file_id"] is None
    batch.name_files("in.output.jsonl", None)
    document = batch.as_dict()
    assert (document["output_file_id"], document["error_file_id"]) == ("in.output.jsonl", None)


def test_the_endpoint_is_told_once_it_is_known() -> None:
    """A file's first request decides what is shown."""
    batch = at(S.IN_PROGRESS)
    batch.name_endpoint("/v1/responses")
    assert batch.as_dict()["endpoint"] == "/v1/responses"


@pytest.mark.parametrize("num_errors", [0, 1, MAX_ERRORS, MAX_ERRORS + 1, MAX_ERRORS + 900])
def test_errors_are_listed_up_to_a_limit_and_the_rest_counted(num_errors: int) -> None:
    """A million bad lines do not make a Batch object of a million entries, and the note says how many are missing."""
    batch = at(S.VALIDATING)
    for line in range(1, num_errors + 1):
        batch.add_error(BatchError("invalid_json", "found nothing", "body", line))
    errors = Batch.model_validate(batch.as_dict()).errors
    if not num_errors:
        assert errors is None
        return
    assert errors is not None
    assert errors.data is not None
    assert errors.object == "list"
    assert [error.line for error in errors.data[:MAX_ERRORS]] == list(range(1, min(num_errors, MAX_ERRORS) + 1))
    assert (errors.data[0].code, errors.data[0].message, errors.data[0].param) == (
        "invalid_json",
        "found nothing",
        "body",
    )
    notes = [error.message for error in errors.data[MAX_ERRORS:]]
    assert notes == (
        [f"not listed here: {counted(num_errors - MAX_ERRORS, 'more error')}"] if num_errors > MAX_ERRORS else []
    )


def test_ids_tell_files_apart() -> None:
    """The same content dropped twice is two Batch objects; the id of one never changes."""
    assert len({batch_id("a", 1), batch_id("a", 2), batch_id("a~2", 1)}) == 3
    assert batch_id("a", 1) == batch_id("a", 1)


@given(st.binary(min_size=1, max_size=200))
def test_any_name_gives_valid_json(raw: bytes) -> None:
    """Names that are no UTF-8 stand with escapes; metadata stays within OpenAI's limit."""
    name = raw.decode("utf-8", "surrogateescape")
    info = BatchInfo(name, name, "p" * 600, None, "/v1/completions", 1)
    document = json.loads(BatchObject(info, lambda: 1.0).as_json().encode("utf-8"))
    assert Batch.model_validate(document).model is None
    assert all(len(value) <= 512 for value in document["metadata"].values())
    assert document["input_file_id"] == raw.decode("utf-8", "backslashreplace")
