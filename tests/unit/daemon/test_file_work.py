"""When a file's answers become durable, and when it ends."""

import asyncio
import json
import os

import pytest
from file_world import Engine, World

from daemon import file_work
from daemon.file_feed import FileFeed
from daemon.kept_requests import MAX_KEPT_BYTES, KeptRequests
from daemon.line_reader import QUIET

TOO_LARGE_TO_KEEP = b'{"prompt": "' + b"a" * MAX_KEPT_BYTES + b'"}\n'


def test_the_last_answer_is_not_kept_waiting_for_more(tmp_path, monkeypatch):
    """Answers wait for others to share a sync; behind the last one there are none."""
    monkeypatch.setattr(file_work, "GROUP_S", 3600.0)
    world = World(tmp_path, lines=3)

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not world.task.done()
        world.engine.answer(1)
        return await world.end()

    asyncio.run(story())
    assert len(world.lines("output")) == 3
    assert world.batch["status"] == "completed"


def test_the_answers_of_a_file_that_is_fed_in_one_go_share_a_sync_too(tmp_path, monkeypatch):
    """Its end is seen while it is fed, when none of its requests is answered: more answers will come."""
    monkeypatch.setattr(file_work, "GROUP_S", 3600.0)
    world = World(tmp_path, lines=3)

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        feed = world.run._work.feed
        assert feed.is_exhausted
        world.engine.answer(2)
        assert not feed.is_over.is_set()
        world.engine.answer(1)
        assert feed.is_over.is_set()
        return await world.end()

    assert asyncio.run(story()).num_completed == 3


@pytest.mark.parametrize("rest", [b"", b"no request\n" * 3], ids=["alone", "with bad lines"])
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "read again"])
def test_a_file_whose_requests_are_answered_ends_without_another_turn(tmp_path, monkeypatch, is_kept, rest):
    """Its request is longer than a turn, and other files have all credits: what needs no engine does not wait for one."""
    if not is_kept:
        monkeypatch.setattr(KeptRequests, "take", lambda _: None)
    world = World(tmp_path)
    world.path.write_bytes(b'{"prompt": "a", "max_tokens": 9000}\n' + rest)

    async def story():
        engine = Engine()
        engine.context = 10000
        engine.credits.resize(0)
        world.start(engine)
        await world.until(lambda: engine.submissions)
        engine.answer(1)
        return await world.end()

    assert asyncio.run(story()).num_completed == 1
    assert len(world.lines("errors")) == 3 * bool(rest)


def test_others_are_fed_while_a_file_has_nothing_for_a_while(tmp_path, monkeypatch):
    """Blank lines without end would hold up the daemon's only loop, and with it all other files."""
    world = World(tmp_path)
    world.path.write_bytes(TOO_LARGE_TO_KEEP + b"\n" * (20 * QUIET) + b'{"prompt": "b"}\n')
    taken, take = [], FileFeed.take

    def counted(self, max_requests, max_tokens):
        found = take(self, max_requests, max_tokens)
        taken.append(len(found))
        return found

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 2)
        world.engine.answer(2)
        return await world.end()

    monkeypatch.setattr(FileFeed, "take", counted)
    assert asyncio.run(story()).num_completed == 2
    assert sum(taken) == 2
    assert taken.count(0) >= 19


@pytest.mark.parametrize("last", [b'{"prompt": "b"}\n', TOO_LARGE_TO_KEEP], ids=["kept", "read again"])
def test_a_cancelled_file_comes_to_its_end_behind_what_is_blank(tmp_path, last):
    world = World(tmp_path)
    world.path.write_bytes(b'{"prompt": "a"}\n' * 100 + b"\n" * (20 * QUIET) + last)

    async def story():
        world.start(Engine())
        await world.until(lambda: world.engine.submissions)
        world.run.cancel()
        return await world.end()

    assert asyncio.run(story()).num_failed == 101
    assert world.batch["status"] == "cancelled"


def test_a_small_file_is_fed_longest_answer_first_and_put_out_in_its_order(tmp_path):
    """It ends when its longest answer does, so that one begins first; what a person reads does not depend on it."""
    world = World(tmp_path)
    lengths = [5, None, 9, 7, 9]
    lines = [
        json.dumps({"id": f"r{index}", "prompt": "a", "max_tokens": length}) for index, length in enumerate(lengths)
    ]
    world.path.write_text("\n".join([*lines[:2], "no request", *lines[2:]]))

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 5)
        fed = [submission.request.sampling.max_tokens for submission in world.engine.submissions]
        world.engine.answer(5)
        await world.end()
        return fed

    assert asyncio.run(story()) == [None, 9, 9, 7, 5]
    assert [line["custom_id"] for line in world.lines("output")] == ["r0", "r1", "r2", "r3", "r4"]
    assert [line["custom_id"] for line in world.lines("errors")] == ["line-3"]


def test_what_is_run_of_a_small_file_is_what_its_fingerprint_is_of(tmp_path):
    """Somebody who writes into work/ behind the survey, size and time kept, changes nothing of what is run."""
    world = World(tmp_path, lines=3)
    before = world.path.stat()

    async def story():
        engine = Engine(is_ready=False)  # the file is surveyed and its journal written when it waits for this
        world.start(engine)
        await world.until(lambda: world.run._file is not None)
        world.path.write_bytes(world.path.read_bytes().replace(b'"prompt": "1"', b'"prompt": "x"'))
        os.utime(world.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        engine.is_ready.set()
        await world.until(lambda: len(engine.submissions) == 3)
        prompts = [submission.request.text for submission in engine.submissions]
        engine.answer(3)
        await world.end()
        return prompts

    assert asyncio.run(story()) == ["0", "1", "2"]
    assert world.batch["status"] == "completed"
