"""Files take turns by tokens, priorities go first, new files enter at once, and no more goes out than credits allow."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from daemon.credits import Credits
from daemon.feeder import CHUNK, FIRST_TURN, QUANTUM, Feeder
from daemon.submission import Submission
from pipelines.core.request import SamplingParams, TextRequest


class Source:
    """A file of `count` requests of `num_tokens` each; `bad` of its lines are no requests and come first."""

    def __init__(self, name, count, priority=0, num_tokens=100, bad=0):
        self.name, self.left, self.priority, self.num_tokens, self.bad = name, count, priority, num_tokens, bad
        self.is_exhausted = self.is_held_back = False
        self.num_takes = 0

    def take(self, max_requests, max_tokens):
        assert max_requests > 0
        assert max_tokens > 0
        self.num_takes += 1
        taken = []
        for _ in range(max_requests):
            if self.bad:
                self.bad -= 1
                continue
            if not self.left:
                self.is_exhausted = True
                break
            self.left -= 1
            request = TextRequest(0, 0, 0, SamplingParams(), text=self.name)
            taken.append(Submission(request, 10, lambda _answer: None, num_tokens=self.num_tokens))
            if len(taken) * self.num_tokens >= max_tokens:
                break
        return taken


class Engine:
    def __init__(self, max_requests, max_bytes=1 << 30):
        self.credits = Credits(max_requests, max_bytes)
        self.order = []

    def submit_all(self, submissions):
        for submission in submissions:
            self.credits.take(submission.num_bytes)
            self.order.append(submission.request.text)


def feed(engine, sources, turns=400, during=lambda _feeder, _turn: None, until_fed=False):
    async def run():
        feeder = Feeder(engine)
        for source in sources:
            feeder.add(source)
        task = asyncio.create_task(feeder.run())
        for turn in range(turns):
            await asyncio.sleep(0)
            during(feeder, turn)
            if until_fed and not feeder.has_sources:
                break
        task.cancel()
        return feeder

    return asyncio.run(run())


def test_a_small_file_behind_a_huge_one_has_its_turn_soon():
    engine = Engine(400)
    feed(engine, [Source("huge", 10_000), Source("small", 3)])
    assert engine.order.index("small") <= FIRST_TURN


def test_a_small_file_that_comes_when_all_credits_are_taken_enters_at_once():
    """Without a single answer: it does not wait for the huge file's."""
    engine = Engine(64)

    def during(feeder, turn):
        if turn == 200:
            assert engine.order == ["huge"] * 64
            feeder.add(Source("small", 3))

    feed(engine, [Source("huge", 10_000, num_tokens=8192)], during=during)
    assert engine.order[64:] == ["small"] * 3


def test_a_new_file_gets_no_more_beside_the_credits_than_its_first_turn():
    engine = Engine(10)
    feed(engine, [Source("a", 1000), Source("b", 1000)])
    assert Counter(engine.order) == {"a": FIRST_TURN, "b": FIRST_TURN}


def test_large_requests_do_not_go_beyond_the_bytes_allowed():
    engine = Engine(10, max_bytes=10)
    feed(engine, [Source("a", 1), Source("b", 1)])
    assert engine.order == ["a"], "what is outstanding takes up all bytes already"


def test_files_share_the_engine_by_tokens_and_not_by_requests():
    """Credits come one at a time, as answers do; 20 short requests weigh as much as a long one."""
    engine = Engine(1)

    def during(_feeder, _turn):
        if len(engine.order) > 2 * FIRST_TURN:
            engine.credits.give_back(10)

    long, short = Source("long", 100_000, num_tokens=1000), Source("short", 100_000, num_tokens=50)
    engine.credits = Credits(40, 1 << 30)
    feed(engine, [long, short], turns=6000, during=during)
    counts = Counter(engine.order)
    assert counts["long"] > 50
    tokens = counts["long"] * 1000, counts["short"] * 50
    assert abs(tokens[0] - tokens[1]) <= 3 * QUANTUM + 2 * FIRST_TURN * 1000


def test_no_more_goes_out_than_credits_allow():
    engine = Engine(137)
    feed(engine, [Source("a", 1000), Source("b", 1000)])
    assert len(engine.order) == 137


def test_a_higher_priority_goes_first():
    engine = Engine(60)
    feed(engine, [Source("low", 50), Source("high", 50, priority=3)])
    assert engine.order[:50] == ["high"] * 50


def test_a_new_file_of_lower_priority_does_not_pass_those_that_wait():
    engine = Engine(30)

    def during(feeder, turn):
        if turn == 100:
            feeder.add(Source("low", 5))

    feed(engine, [Source("high", 1000, priority=3)], during=during)
    assert "low" not in engine.order


def test_a_file_without_more_requests_is_forgotten():
    engine = Engine(1000)
    feeder = feed(engine, [Source("a", 5), Source("b", 16)])
    assert not feeder.has_sources
    assert not feeder._deficits


def test_a_file_that_is_held_back_is_left_out_until_it_is_added_again():
    engine = Engine(1000)
    held = Source("a", 1000)
    held.is_held_back = True

    def during(feeder, turn):
        if turn == 300:
            assert engine.order.count("a") <= FIRST_TURN
            held.is_held_back = False
            feeder.add(held)

    feed(engine, [held, Source("b", 64)], turns=600, during=during)
    assert engine.order.count("b") == 64
    assert engine.order.count("a") > FIRST_TURN


def test_a_file_that_is_removed_is_fed_no_more():
    engine = Engine(100)
    sources = [Source("a", 1000), Source("b", 1000)]

    def during(feeder, turn):
        if turn == 0:
            feeder.remove(sources[0])

    feed(engine, sources, during=during)
    assert Counter(engine.order) == {"a": FIRST_TURN, "b": 100 - FIRST_TURN}


def test_a_request_that_is_expected_to_take_without_end_holds_nobody_up():
    """As one with `max_tokens: 1000000000000`: what its file owes is not paid off in turns in which nobody takes anything."""
    engine = Engine(100)
    feed(engine, [Source("huge", 40, num_tokens=10**12), Source("high", 40, priority=1, num_tokens=10**12)])
    assert Counter(engine.order) == {"huge": 40, "high": 40}


def test_a_file_that_owes_a_lot_waits_for_those_that_may_take():
    engine = Engine(200)
    feed(engine, [Source("huge", 40, num_tokens=10**9), Source("small", 150, num_tokens=100)])
    assert engine.order.count("small") == 150
    assert set(engine.order[-30:]) == {"huge"}


def test_a_file_of_bad_lines_does_not_keep_the_turn():
    """Its lines cost the engine nothing and still take time to read."""
    engine = Engine(10_000)
    bad, good = Source("bad", 1, bad=1_000_000), Source("good", 2000)
    feed(engine, [bad, good], turns=2 * (QUANTUM // CHUNK))
    assert engine.order.count("good") > FIRST_TURN
    assert bad.bad > 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20_000), st.integers(-1, 1)), max_size=5))
def test_every_request_goes_out_once_whatever_the_files(files):
    """No file is forgotten, whatever its sizes, its requests' sizes and priorities."""
    engine = Engine(100_000)
    sources = [Source(str(n), count, priority, tokens) for n, (count, tokens, priority) in enumerate(files)]
    feed(engine, sources, turns=20_000, until_fed=True)
    assert Counter(engine.order) == Counter({str(n): count for n, (count, _, _) in enumerate(files) if count})


def test_credits_count_bytes_and_let_one_large_request_go_alone():
    limits = Credits(10, 100)
    limits.take(5000)
    assert limits.num_left == 0
    limits.give_back(5000)
    assert limits.num_left == 10
