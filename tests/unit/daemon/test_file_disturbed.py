"""One file and all that may come in between, in any order: each request has one line, and it is the right one."""

import asyncio
import json
import logging
from collections import Counter

import pytest
from file_world import Engine, World
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon import file_work
from pipelines.core.request import Choice, FinishReason, RequestOutput

IDS = "abcdefgh"
LINES = st.one_of(
    st.sampled_from(["", "oops", '{"prompt": "x", "n": 0}']),
    st.builds(
        lambda name, length: json.dumps({"id": name, "prompt": f"of {name}", "max_tokens": length}),
        st.sampled_from(IDS),
        st.integers(1, 9),
    ),
    st.integers(0, 99).map(lambda number: json.dumps({"prompt": f"number {number}"})),
)
EVENTS = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 50)),
    st.tuples(st.sampled_from(["wait", "come up", "cancel", "change"]), st.just(0)),
    st.tuples(st.just("die"), st.integers(0, 50)),
    st.tuples(st.just("restart"), st.booleans()),
)


class EchoingEngine(Engine):
    """Answers any of its requests with what its prompt is."""

    def answer_any(self, number):
        if self.submissions:
            submission = self.submissions.pop(number % len(self.submissions))
            choice = Choice(f"re: {submission.request.text}", FinishReason.STOP, 1)
            self._finish(submission, RequestOutput(1, (choice,), 5, 0))

    def die(self, number):
        if self.submissions:
            submission = self.submissions[number % len(self.submissions)]
            submission.on_death(submission.num_deaths + 1)


class Story:
    """Runs a file through events; what is left is answered at the end."""

    def __init__(self, folder, lines, events, **settings):
        self.world = World(folder, output={"format": "plain", **settings})
        self.lines = lines
        self.world.path.write_text("".join(f"{line}\n" for line in lines))
        self.claim()
        self.events = iter(events)
        self.is_changed = False
        self.is_ready = True

    def run(self):
        while not asyncio.run(self._life()):
            if not self.world.path.with_name("f.journal").exists():  # nobody knows any more what was claimed
                self.lines, self.is_changed = self.world.path.read_text().splitlines(), False
                self.claim()

    def claim(self):
        status = self.world.path.stat()
        self.world.content = status.st_size, status.st_mtime_ns

    async def _life(self):
        """One run of the daemon; return whether it came to the file's end."""
        engine, world = EchoingEngine(is_ready=self.is_ready), self.world
        world.start(engine)
        for event, value in self.events:
            await asyncio.sleep(0.002 if event == "wait" else 0)
            if world.task.done():
                break
            match event:
                case "answer":
                    engine.answer_any(value)
                case "come up":
                    engine.is_ready.set()
                case "cancel":
                    world.run.cancel()
                case "die":
                    engine.die(value)
                case "change":
                    self.change()
                case "restart":
                    self.is_ready = value
                    await world.kill()
                    return not (world.path.exists() or world.path.with_name("f.journal").exists())
        engine.is_ready.set()
        while not world.task.done():
            engine.answer_any(0)
            await asyncio.sleep(0)
        await world.end()
        return True

    def change(self):
        if self.world.path.exists():
            with self.world.path.open("a") as file:
                file.write('{"prompt": "more"}\n')
            self.is_changed = True


def expected_of(lines):
    """Each request's place in order: its id, and the text of its answer, None where it cannot have one."""
    expected, seen = [], set()
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        body = {} if line == "oops" else json.loads(line)
        name = body.get("id", f"line-{number}")
        is_good = body and body.get("n") != 0 and name not in seen
        seen.add(name)
        expected.append((name, f"re: {body['prompt']}" if is_good else None))
    return expected


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(file_work, "GROUP_S", 0.001)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=60)
@given(
    lines=st.lists(LINES, max_size=30),
    events=st.lists(EVENTS, max_size=25),
    order=st.sampled_from(["input", "completion"]),
)
def test_each_request_has_one_line_and_the_right_one(tmp_path_factory, lines, events, order):
    """Answers in any order, deaths, restarts, a cancel, an engine that comes late, and somebody who writes into work/."""
    story = Story(tmp_path_factory.mktemp("story"), lines, events, order=order)
    story.run()
    world, expected = story.world, expected_of(story.lines)
    output, errors, batch = world.read("output"), world.read("errors"), world.batch
    counts = batch["request_counts"]
    assert (counts["completed"], counts["failed"]) == (len(output), len(errors))
    assert [path.name for path in world.folders.work.iterdir()] == []
    texts = {name: text for name, text in expected if text is not None}
    assert all(line["text"] == texts[line["id"]] for line in output)
    assert len({line["id"] for line in output}) == len(output)
    wanted, found = (
        Counter(names) for names in ([name for name, _ in expected], [line["id"] for line in output + errors])
    )
    if batch["status"] == "failed":
        assert story.is_changed
        assert found <= wanted
    else:
        assert found == wanted
        assert counts["total"] == len(expected)
    if batch["status"] == "completed":
        assert [line["id"] for line in errors] == [name for name, text in expected if text is None]
    if order == "input":
        places = [name for name, text in expected if text is not None]
        assert [line["id"] for line in output] == [name for name in places if name in {line["id"] for line in output}]
