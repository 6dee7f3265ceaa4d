"""The quick way to read a body and the long one say the same of whatever stands there."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon import quick_body
from daemon.quick_body import read_body_quickly
from daemon.request_body import Body, read_body
from daemon.request_keys import BODY_RULES
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Url
from daemon.request_schema import ChatBody, CompletionBody, ResponseBody

FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *ResponseBody.model_fields, *BODY_RULES})
ODD = st.sampled_from(
    [None, True, False, 0, 1, 1.0, 0.0, -1, 2, 2.0, 2**63, -(2**63), 10**30, float("inf"), "", "m" * 65]
)
VALUES = ODD | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.lists(ODD, max_size=2)
TURNS = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant"]) | VALUES,
        "content": st.text(max_size=3) | VALUES,
    },
    optional={"name": VALUES, "tool_calls": VALUES},
)
USUAL_TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["developer", "user", "assistant"]), "content": st.text(max_size=3)}
)
PROMPTS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(USUAL_TURN, min_size=1, max_size=2) | st.lists(TURNS, max_size=2) | VALUES,
        "prompt": st.text(max_size=3) | VALUES,
        "input": st.text(max_size=3) | VALUES,
    },
)
LENGTHS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("max_tokens", "max_completion_tokens", "min_tokens", "n"), VALUES)
)
RESTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3) | LENGTHS


def outcome(read: Any, url: Url, body: dict[str, Any]) -> Any:
    """What comes of a body, its numbers told apart by their types, or what is said of it."""
    try:
        return repr(read(url, body))
    except InvalidRequestError as error:
        return error.code, error.param, error.text


@given(st.sampled_from(Url), RESTS, PROMPTS, st.booleans())
def test_both_ways_give_the_same_body_or_the_same_words(url: Url, rest: Any, prompts: Any, is_first: bool) -> None:
    """Whatever was read before: bodies of every example share what is kept of a rest."""
    body = {**prompts, **rest} if is_first else {**rest, **prompts}
    assert outcome(read_body_quickly, url, body) == outcome(read_body, url, body)


@pytest.mark.parametrize(
    ("url", "prompt"),
    [(Url.CHAT, {"messages": [{"role": "user", "content": "x"}]}), (Url.COMPLETIONS, {"prompt": "x"})],
)
def test_equal_numbers_of_different_types_are_not_taken_for_each_other(url: Url, prompt: dict[str, Any]) -> None:
    """A count is no float and no boolean, though 1, 1.0 and true are equal."""
    assert read_body_quickly(url, {**prompt, "n": 1}).sampling.n == 1
    for other in (1.0, True):
        with pytest.raises(InvalidRequestError, match="expected a whole number"):
            read_body_quickly(url, {**prompt, "n": other})


def test_the_rest_of_a_usual_chat_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; what cannot be kept is read each time."""
    num_read = 0

    def counted(url: Url, body: dict[str, Any]) -> Body:
        nonlocal num_read
        num_read += 1
        return read_body(url, body)

    monkeypatch.setattr(quick_body, "read_body", counted)
    for number in range(10):
        turn = {"role": "user", "content": f"{number}?"}
        body = {"model": "the rest of a usual chat", "messages": [turn], "max_tokens": 4 + number, "seed": number}
        read = read_body_quickly(Url.CHAT, body)
        assert (read.messages, read.seed, read.sampling.max_tokens) == ((turn,), number, 4 + number)
    assert num_read == 1
    for _ in range(2):
        read_body_quickly(Url.CHAT, {"messages": [turn], "stop": ["x"]})
    assert num_read == 3
