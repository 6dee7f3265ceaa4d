"""Files take turns, priorities go first, and no more goes out than credits allow."""

import asyncio

from daemon.credits import Credits
from daemon.engine_client import Submission
from daemon.feeder import CHUNK, Feeder
from pipelines.core.request import SamplingParams, TextRequest


class Source:
    def __init__(self, name, count, priority=0):
        self.name, self.left, self.priority = name, count, priority
        self.is_exhausted = self.is_held_back = False

    def take(self, max_requests):
        number = min(max_requests, self.left)
        self.left -= number
        self.is_exhausted = self.left == 0
        request = TextRequest(0, 0, 0, SamplingParams(), text=self.name)
        return [Submission(request, 10, lambda _answer: None) for _ in range(number)]


class Engine:
    def __init__(self, max_requests):
        self.credits = Credits(max_requests, 1 << 30)
        self.order = []

    def submit_all(self, submissions):
        for submission in submissions:
            self.credits.take(submission.num_bytes)
            self.order.append(submission.request.text)


def feed(engine, sources, turns=200):
    async def run():
        feeder = Feeder(engine)
        for source in sources:
            feeder.add(source)
        task = asyncio.create_task(feeder.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        return feeder

    return asyncio.run(run())


def test_a_small_file_behind_a_huge_one_has_its_turn_soon():
    engine = Engine(400)
    feed(engine, [Source("huge", 10_000), Source("small", 3)])
    assert engine.order.index("small") <= CHUNK, "after one turn of the huge one"


def test_no_more_goes_out_than_credits_allow():
    engine = Engine(37)
    feed(engine, [Source("a", 100), Source("b", 100)])
    assert len(engine.order) == 37


def test_a_higher_priority_goes_first():
    engine = Engine(60)
    feed(engine, [Source("low", 50), Source("high", 50, priority=3)])
    assert engine.order[:50] == ["high"] * 50


def test_a_file_without_more_requests_is_forgotten():
    engine = Engine(1000)
    assert not feed(engine, [Source("a", 5), Source("b", 16)]).has_sources


def test_a_file_that_is_held_back_is_left_out_until_it_adds_itself_again():
    engine = Engine(1000)
    source = Source("a", 1000)
    source.is_held_back = True
    feed(engine, [source, Source("b", 64)])
    assert engine.order.count("a") <= CHUNK
    assert engine.order.count("b") == 64


def test_credits_count_bytes_and_let_one_large_request_go_alone():
    limits = Credits(10, 100)
    limits.take(5000)
    assert limits.num_left == 0
    limits.give_back(5000)
    assert limits.num_left == 10
