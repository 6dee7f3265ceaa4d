"""Requests that a survey keeps for the feed: all of a small file, as reading it again would give them, or none."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.errors import ReadCancelledError
from daemon.kept_requests import MAX_KEPT_BYTES, MAX_KEPT_REQUESTS, KeptRequests, longest_first
from daemon.request_file import RequestReader
from daemon.survey import survey


def kept_of(folder: Path, *lines: str) -> tuple[KeptRequests, Path]:
    path = folder / "in.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    kept = KeptRequests()
    survey(path, keep=kept)
    return kept, path


def line(custom_id: str, **fields: object) -> str:
    return json.dumps({"id": custom_id, "prompt": "x"} | fields)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.sampled_from(["", "oops", line("a"), line("b"), line("a", n=0), line("c", prompt="y")])))
def test_what_is_kept_is_what_reading_again_would_give(tmp_path: Path, lines: list[str]) -> None:
    """Bad lines and ids that stand twice included."""
    kept, path = kept_of(tmp_path, *lines)
    assert kept.take() == list(RequestReader(path, survey(path)))


def test_what_was_handed_over_is_kept_no_more(tmp_path: Path) -> None:
    kept, _ = kept_of(tmp_path, line("a"))
    assert len(kept.take() or ()) == 1
    assert kept.take() is None


@pytest.mark.parametrize(
    ("num_lines", "prompt", "is_kept"),
    [
        (MAX_KEPT_REQUESTS, "x", True),
        (MAX_KEPT_REQUESTS + 1, "x", False),
        (2, "x" * (MAX_KEPT_BYTES // 3), True),
        (4, "x" * (MAX_KEPT_BYTES // 3), False),
    ],
)
def test_nothing_is_kept_of_a_larger_file(tmp_path: Path, num_lines: int, prompt: str, is_kept: bool) -> None:
    """In requests or in bytes: what is kept of many open files has to stay small."""
    kept, _ = kept_of(tmp_path, *[line(str(number), prompt=prompt) for number in range(num_lines)])
    assert (kept.take() is not None) is is_kept


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None, "messages": [{"role": "user", "content": ""}] * 100},
        {"logit_bias": {str(token): 1 for token in range(300)}},
        {"prompt": None, "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": [{}] * 300}},
        {"model": "x" * 20_000},
        {"prompt": 3, "model": "x" * 20_000},
    ],
    ids=["messages", "biases", "objects", "a name", "bad lines"],
)
def test_what_is_kept_is_bounded_whatever_takes_up_the_room(tmp_path: Path, fields: dict[str, object]) -> None:
    """128 files may be open, each with as many requests as are kept."""
    kept, _ = kept_of(tmp_path, *[line(str(number) + "x" * 1000, **fields) for number in range(MAX_KEPT_REQUESTS)])
    assert kept.take() is None


def test_nothing_is_kept_of_a_survey_that_did_not_come_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line('a')}\n" * 3)
    kept, answers = KeptRequests(), iter([False, True])  # asked before each read: the second one finds the end
    with pytest.raises(ReadCancelledError):
        survey(path, keep=kept, is_cancelled=lambda: next(answers))
    assert kept.take() is None


def test_longest_answers_go_first_and_equals_in_order(tmp_path: Path) -> None:
    """A pipeline's default counts where a request says nothing; without one it may be as long as the context."""
    kept, _ = kept_of(
        tmp_path, line("a", max_tokens=3), "oops", line("b"), line("c", max_tokens=9), line("d", max_tokens=3)
    )
    items = kept.take() or []
    assert [item.custom_id for item in longest_first(items, 5)] == ["c", "b", "a", "d", "line-2"]
    assert [item.custom_id for item in longest_first(items, None)] == ["b", "c", "a", "d", "line-2"]
