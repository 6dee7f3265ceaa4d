"""The search for a request that ends the engine: it finds it by name, answers all others, and takes few deaths."""

import itertools
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.outstanding import MAX_DEATHS, MIN_DEATHS, Outstanding
from daemon.submission import Submission
from pipelines.core.request import SamplingParams, TextRequest


class Engine:
    """Runs what `Outstanding` lets through: it dies of poison, otherwise answers everything in flight."""

    def __init__(self, poison=(), crowd=None):
        self.poison = set(poison)
        self.crowd = crowd  # dies of more requests than this at once
        self.outstanding = Outstanding("main", itertools.count(1).__next__)
        self.num_deaths = 0
        self.answered = []
        self.failed = []
        self.deaths_of = {}
        self.in_flight = {}  # key -> name

    def add(self, name, file=1, num_deaths=0, timeout_s=None):
        request = TextRequest(0, file, 0, SamplingParams(), text=str(name))

        def on_death(count):
            self.deaths_of[str(name)] = count

        submission = Submission(
            request, 1, lambda _: None, num_deaths=num_deaths, on_death=on_death, timeout_s=timeout_s
        )
        self.outstanding.add(submission)

    def send(self, now_s=0.0):
        self.in_flight |= {request.key: request.text for request in self.outstanding.take(now_s)}
        self.outstanding.check_integrity()

    def die(self, may_be_accident=False):
        self.num_deaths += 1
        self.in_flight = {}
        count = self.outstanding.note_death(may_be_accident=may_be_accident)
        self._fail(self.outstanding.give_up_the_last())
        return count

    def answer(self, key):
        submission = self.outstanding.answer(key)
        assert submission is not None
        self.answered.append(self.in_flight.pop(key))
        self._fail(self.outstanding.give_up())

    def run(self):
        """Until nothing is left."""
        while len(self.outstanding):
            self.send()
            assert self.in_flight, "requests are left and none may go"
            too_many = self.crowd is not None and len(self.in_flight) > self.crowd
            if too_many or self.poison.intersection(self.in_flight.values()):
                self.die()
            else:
                for key in list(self.in_flight):
                    self.answer(key)
            self.outstanding.check_integrity()
        return self

    def _fail(self, submissions):
        self.failed += [submission.request.text for submission in submissions]


def run(num_requests, poison, crowd=None):
    engine = Engine(poison, crowd)
    for number in range(num_requests):
        engine.add(number)
    return engine.run()


def test_without_a_death_everything_goes_out_at_once():
    engine = Engine()
    for number in range(5):
        engine.add(number)
    engine.send()
    assert sorted(engine.in_flight.values()) == ["0", "1", "2", "3", "4"]
    assert engine.outstanding.num_suspects == 0


def test_one_poison_among_two_hundred_fails_alone_after_few_deaths():
    engine = run(200, {"77"})
    assert engine.failed == ["77"]
    assert sorted(engine.answered, key=int) == [str(number) for number in range(200) if number != 77]
    assert engine.num_deaths <= 2 + ceil(log2(200))


def test_a_poison_that_is_alone_from_the_start_fails_by_its_third_death():
    """Two accidents, such as a kill by hand, are not taken for its fault."""
    engine = run(1, {"0"})
    assert (engine.failed, engine.num_deaths) == (["0"], MIN_DEATHS)


def test_an_accident_that_meets_an_innocent_while_it_is_alone_is_not_taken_for_its_fault():
    """It was in flight with poison twice by then, and the engine is killed by hand at its third attempt."""
    engine = Engine({"poison"})
    engine.add("innocent")
    engine.add("poison")
    for _ in range(2):
        engine.send()
        engine.die()
    engine.send()
    assert [*engine.in_flight.values()] == ["innocent"]
    engine.die(may_be_accident=True)
    assert engine.outstanding.num_doomed == 0
    engine.run()
    assert (engine.answered, engine.failed) == (["innocent"], ["poison"])


def test_a_poison_that_ends_the_engine_as_accidents_do_takes_one_death_more_among_others():
    """It takes so much memory that the kernel kills the engine. Alone from the start it takes three, as it always does."""
    for num_others, expected in ((0, MIN_DEATHS), (1, MIN_DEATHS + 1)):
        engine = Engine()
        for number in range(num_others):
            engine.add(number)
        engine.add("poison")
        while len(engine.outstanding):
            engine.send()
            if "poison" in engine.in_flight.values():
                engine.die(may_be_accident=True)
            else:
                for key in list(engine.in_flight):
                    engine.answer(key)
        assert (engine.failed, engine.num_deaths) == (["poison"], expected)


@given(st.integers(1, 300), st.data())
def test_whatever_is_poison_it_alone_fails_and_deaths_are_few(num_requests, data):
    """At most about log2 of the suspects for each poison."""
    poison = data.draw(st.sets(st.integers(0, num_requests - 1).map(str), max_size=4))
    engine = run(num_requests, poison)
    assert sorted(engine.failed) == sorted(poison)
    assert sorted([*engine.answered, *engine.failed], key=int) == [str(number) for number in range(num_requests)]
    assert engine.num_deaths <= len(poison) * (MIN_DEATHS + ceil(log2(num_requests)))


@given(st.integers(2, 200), st.integers(1, 199))
def test_requests_that_end_the_engine_only_in_a_crowd_are_all_answered(num_requests, crowd):
    """Memory runs out with too many at once: halving them is enough, and none of them is at fault."""
    engine = run(num_requests, (), crowd)
    assert engine.failed == []
    assert len(engine.answered) == num_requests


def test_what_comes_later_waits_until_the_suspects_are_cleared():
    engine = Engine()
    for number in range(4):
        engine.add(number)
    engine.send()
    engine.die()
    engine.add("late")
    engine.send()
    assert sorted(engine.in_flight.values()) == ["0", "1", "2", "3"], "first all of them again, apart"
    engine.die()
    engine.send()
    assert sorted(engine.in_flight.values()) == ["0", "1"], "then halves"
    for key in list(engine.in_flight):
        engine.answer(key)
        engine.send()
    assert sorted(engine.in_flight.values()) == ["2", "3"]
    for key in list(engine.in_flight):
        engine.answer(key)
        engine.send()
    assert [*engine.in_flight.values()] == ["late"]


def test_suspects_of_an_earlier_run_of_the_daemon_run_apart_too():
    """They wait for what is in flight, nothing new is sent meanwhile, and those of the smallest group come first."""
    engine = Engine({"x"})
    engine.add("fresh")
    engine.send()
    for name, num_deaths in (("a", 2), ("b", 2), ("c", 1), ("d", 1), ("x", 4), ("y", 4)):
        engine.add(name, num_deaths=num_deaths)
    engine.add("new")
    engine.send()
    assert [*engine.in_flight.values()] == ["fresh"]
    engine.answer(next(iter(engine.in_flight)))
    engine.send()
    assert [*engine.in_flight.values()] == ["x"], "the smallest group, halved as its last death had it"
    engine.die()
    assert engine.deaths_of["x"] == 5
    engine.run()
    assert engine.failed == ["x"]
    assert sorted(engine.answered) == ["a", "b", "c", "d", "fresh", "new", "y"]
    assert engine.num_deaths == 1


def test_a_kill_of_the_daemon_at_any_death_does_not_lose_the_search():
    """Each time the daemon starts anew it knows but the numbers of deaths, and the search still takes few."""
    names, deaths, num_deaths, failed, answered = [str(n) for n in range(200)], {}, 0, [], []
    while names:
        engine = Engine({"123"})
        for name in names:
            engine.add(name, num_deaths=deaths.get(name, 0))
        while len(engine.outstanding) and not (engine.num_deaths and not engine.outstanding.num_doomed):
            engine.send()
            if engine.poison.intersection(engine.in_flight.values()):
                engine.die()
            else:
                for key in list(engine.in_flight):
                    engine.answer(key)
        deaths |= engine.deaths_of
        num_deaths += engine.num_deaths
        failed += engine.failed
        answered += engine.answered
        names = [name for name in names if name not in engine.answered + engine.failed]
    assert failed == ["123"]
    assert len(answered) == len(set(answered)) == 199
    assert num_deaths <= 2 + ceil(log2(200))


def test_an_engine_that_dies_of_everything_is_told_from_a_poison_request():
    """Several die alone in a row and none is answered: they are kept, and tried again when the engine is mended."""
    names = {str(number) for number in range(50)}
    engine = Engine(names)
    for name in names:
        engine.add(name)
    while engine.outstanding.num_doomed < 4:
        engine.send()
        engine.die()
    assert engine.failed == []
    engine.poison = set()
    engine.outstanding.pardon()
    engine.run()
    assert sorted(engine.answered) == sorted(names)
    assert engine.failed == []


def test_a_request_that_takes_the_whole_machine_down_is_given_up_in_the_end():
    """The daemon dies with it each time, and so never sees a proof that the engine works."""
    num_deaths, failed = 0, []
    while not failed:
        engine = Engine({"x"})
        engine.add("x", num_deaths=num_deaths)
        engine.add("other")
        engine.send()
        engine.die()
        num_deaths, failed = engine.deaths_of["x"], engine.failed
    assert num_deaths == MAX_DEATHS


def test_what_a_process_still_says_under_an_old_key_is_nobodys():
    engine = Engine()
    engine.add("a")
    engine.send()
    (old,) = engine.in_flight
    engine.die()
    engine.send()
    assert engine.outstanding.answer(old) is None
    assert old not in engine.in_flight


def test_a_death_without_requests_in_flight_says_so():
    engine = Engine()
    engine.add("a")
    assert engine.die() == 0
    assert engine.outstanding.num_suspects == 0


def test_a_file_is_withdrawn_from_wherever_its_requests_are():
    engine = Engine()
    for number in range(8):
        engine.add(number, file=number % 2)
    engine.send()
    engine.die()
    engine.send()
    engine.die()
    engine.send()
    engine.add("fresh", file=1)
    engine.add("old", file=1, num_deaths=3)
    submissions, keys = engine.outstanding.withdraw(1)
    assert {submission.request.text for submission in submissions} == {"1", "3", "5", "7", "fresh", "old"}
    assert {engine.in_flight.pop(key) for key in keys} == {"1", "3"}
    engine.outstanding.check_integrity()
    engine.run()
    assert sorted(engine.answered) == ["0", "2", "4", "6"]


@pytest.mark.parametrize(("now_s", "expected"), [(14.9, []), (15.0, ["slow"])])
def test_time_counts_from_the_moment_a_request_is_sent(now_s, expected):
    engine = Engine()
    engine.add("slow", timeout_s=5.0)
    engine.add("patient", timeout_s=50.0)
    engine.add("eternal")
    engine.send(10.0)
    assert [engine.in_flight[key] for key in engine.outstanding.overdue(now_s)] == expected


def test_each_attempt_has_its_own_time():
    engine = Engine()
    engine.add("slow", timeout_s=5.0)
    engine.send(10.0)
    engine.die()
    assert engine.outstanding.overdue(100.0) == []
    engine.send(100.0)
    assert engine.outstanding.overdue(104.0) == []
    assert len(engine.outstanding.overdue(105.0)) == 1


@given(st.integers(0, 12), st.integers(0, 3), st.sampled_from([(), ("3",)]))
def test_what_is_taken_back_is_sent_again_and_nothing_is_suspected_for_it(num_requests, num_deaths, poison):
    """Before any death and in the middle of a search: no death is counted, suspects stay apart, the search comes to its end."""
    engine = Engine(poison)
    for number in range(num_requests):
        engine.add(number)
    for _ in range(num_deaths):
        engine.send()
        if engine.in_flight:
            engine.die()
    engine.send()
    deaths = dict(engine.deaths_of)
    sent = sorted(engine.in_flight.values())
    engine.outstanding.recall()
    engine.in_flight = {}
    assert engine.outstanding.keys_in_flight == ()
    engine.send()
    assert sorted(engine.in_flight.values()) == sent
    assert engine.deaths_of == deaths
    engine.run()
    assert sorted(engine.answered + engine.failed) == sorted(map(str, range(num_requests)))
