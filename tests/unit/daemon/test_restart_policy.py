"""When an engine that died is started again, and when no more."""

import asyncio

import pytest

from daemon import restart_policy
from daemon.errors import EngineConfigError, EngineEnvironmentError
from daemon.restart_policy import RestartPolicy
from pipelines.core.request import Failed


def delays(policy: RestartPolicy, monkeypatch: pytest.MonkeyPatch, num_deaths: int) -> list[float]:
    """The waits behind so many deaths that led nowhere; 0.0 is none."""
    waited: list[float] = []

    async def note(_: asyncio.Event, seconds: float) -> bool:
        waited.append(seconds)
        return False

    monkeypatch.setattr(restart_policy, "wait_for_event", note)
    found = []
    for _ in range(num_deaths):
        policy.note_in_flight(0)
        waited.clear()
        asyncio.run(policy.wait_for_turn())
        found.append(sum(waited))
    return found


def test_each_death_that_leads_nowhere_is_followed_by_a_longer_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """None behind the first, twice as long each time, a minute at most; an answer begins anew."""
    policy = RestartPolicy("e", 100, is_vital=True)
    expected = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert delays(policy, monkeypatch, 10) == expected
    policy.note_answer()
    assert delays(policy, monkeypatch, 2) == expected[:2]


def test_deaths_with_requests_in_flight_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end by themselves: each takes the search on."""
    policy = RestartPolicy("e", 0, is_vital=False)
    for _ in range(20):
        policy.note_in_flight(3)
    assert policy.why_paused(num_doomed=0) == ""
    assert delays(policy, monkeypatch, 1) == [0.0]


def test_one_that_was_up_is_paused_where_a_vital_one_that_never_was_ends_the_daemon() -> None:
    policy = RestartPolicy("e", 0, is_vital=True)
    policy.note_death("engine", 7, "exited with code 1")
    policy.note_in_flight(0)
    with pytest.raises(EngineEnvironmentError, match=r"^engine e: it died 1 time .*pid 7. exited with code 1$"):
        policy.why_paused(num_doomed=0)
    policy.note_ready()
    assert policy.why_paused(num_doomed=0).startswith("it died 1 time without an answer in between; last the engine")
    policy.start_over()
    assert policy.why_paused(num_doomed=0) == ""


def test_what_a_process_says_of_its_failure_counts_until_the_next_start() -> None:
    """Of a vital engine it ends the daemon; of another one it is why that is paused; after the next start nobody knows it."""
    policy = RestartPolicy("e", 5, is_vital=True)
    policy.note_failure(Failed("no such model", is_config=True))
    with pytest.raises(EngineConfigError, match=r"^engine e: no such model$"):
        policy.note_death("engine", 7, "exited with code 1")
    policy.begin_anew()
    policy.note_death("engine", 7, "exited with code 1")
    assert policy.last_death == "the engine process (pid 7) failed: engine e: no such model"
    assert policy.why_paused(num_doomed=0) == "engine e: no such model"
    policy.note_start()
    assert policy.why_paused(num_doomed=0) == ""
    assert policy.take_failure() is None
