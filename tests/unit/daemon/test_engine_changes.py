"""How engines are brought to other settings; the plant is stood in for by what the test says of its files and starts."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine_changes import EngineChanges
from daemon.settings_engine import EngineSettings
from daemon.status import EngineState


def engine(path="a", **keys):
    return EngineSettings.model_validate({"model": {"path": path}} | keys)


class Engine:
    """Starts when the test says so."""

    def __init__(self, config):
        self.config, self.state = config, EngineState.READY
        self.is_closed, self.is_changing = False, False
        self.notice = self.failed_change = ""
        self.max_restarts, self.stall_s, self.idle_unload_s = 5, 120.0, None
        self.good = config

    def adjust(self, config):
        assert not self.is_changing
        self.config = config

    def restart(self, config, *, falls_back):
        self.good = self.config if not self.is_changing else self.good
        self.config, self.is_changing, self.failed_change = config, falls_back, ""

    def come_up(self):
        self.is_changing = False

    def fail(self):
        self.config, self.is_changing, self.failed_change = self.good, False, "no such model"


class World:
    """One engine `e` with one pipeline that runs so many files on it."""

    def __init__(self):
        self.num_files = 0
        self.num_left = 0
        pipeline = SimpleNamespace(
            settings=SimpleNamespace(engine="e"), num_runs_on=lambda _: self.num_files, look_soon=lambda: None,
            leave_runs=self.leave_runs,
        )  # fmt: skip
        self.plant = SimpleNamespace(
            engines={"e": Engine(engine().to_engine_config("e"))}, pipelines={"p": pipeline},
            add_engine=self.add_engine, remove_engine=self.remove_engine,
        )  # fmt: skip
        self.changes = EngineChanges(self.plant, {"e": engine()})

    @property
    def engine(self):
        return self.plant.engines["e"]

    @property
    def path(self):
        return self.engine.config.model.path

    def leave_runs(self):
        self.num_left, self.num_files = self.num_files, 0

    def add_engine(self, name, settings, *, is_vital):
        assert not is_vital
        self.plant.engines[name] = Engine(settings.to_engine_config(name))

    async def remove_engine(self, name):
        del self.plant.engines[name]

    def want(self, *, tries_again=False, **engines):
        self.changes.want(engines, tries_again=tries_again)

    def cut_over(self):
        return self.changes.cut_over()

    def advance(self):
        return asyncio.run(self.changes.advance())


@pytest.fixture
def world():
    return World()


def test_a_cut_over_waits_for_no_file_and_only_hastens_what_waits(world):
    world.num_files = 2
    assert world.cut_over() == []
    world.want(e=engine("b"))
    assert (world.advance(), world.path) == ([], "a")
    assert world.cut_over() == ["e"]
    assert (world.advance(), world.path, world.engine.is_changing) == ([], "b", True)
    assert world.cut_over() == [], "it is loading already"
    world.engine.fail()
    assert (world.advance(), world.path) == (["e"], "a")
    world.want(e=engine("c"))
    assert (world.advance(), world.path) == ([], "a"), "the next edit drains again"
    assert world.num_left == 0


def test_what_is_allocated_suffices_for_a_change_at_once(world):
    world.num_files = 3
    wanted = engine(schedule="sync", batch={"max_num_seqs": 8}, max_restarts=1, stall_s=7.0)
    world.want(e=wanted)
    assert world.engine.config == wanted.to_engine_config("e")
    assert (world.engine.max_restarts, world.engine.stall_s, world.engine.is_closed) == (1, 7.0, False)
    assert world.changes.effective["e"] == wanted


def test_other_allocations_wait_for_the_files_and_then_for_the_start(world):
    world.num_files = 2
    world.want(e=engine("b", schedule="sync"))
    world.advance()
    assert (world.path, world.engine.is_closed, world.engine.config.schedule) == ("a", True, "async")
    assert "wait for the 2 that it runs to end" in world.engine.notice
    world.num_files = 0
    assert world.advance() == []
    assert (world.path, world.engine.is_closed) == ("b", True)
    assert world.changes.effective["e"] == engine()
    world.engine.come_up()
    assert world.advance() == ["e"]
    assert (world.engine.is_closed, world.engine.notice) == (False, "")
    assert world.changes.effective["e"] == engine("b", schedule="sync")


def test_edits_meanwhile_are_taken_together_and_one_that_takes_all_back_ends_the_drain(world):
    world.num_files = 1
    world.want(e=engine("b"))
    world.want(e=engine("c"))
    world.advance()
    world.want(e=engine(schedule="sync"))
    assert (world.path, world.engine.is_closed, world.engine.config.schedule) == ("a", False, "sync")
    world.num_files = 0
    assert world.advance() == []
    assert world.path == "a"


def test_a_start_that_fails_leads_back_and_is_not_tried_again_unasked(world):
    world.want(e=engine("bad"))
    world.advance()
    world.engine.fail()
    assert world.advance() == ["e"]
    assert "no such model" in world.changes.failures["e"]
    assert (world.path, world.changes.effective["e"], world.engine.is_closed) == ("a", engine(), False)
    world.want(e=engine("bad"))
    assert not world.engine.is_closed
    world.want(e=engine("bad"), tries_again=True)
    assert (world.engine.is_closed, world.changes.failures) == (True, {})
    world.want(e=engine())
    assert (world.engine.is_closed, world.changes.failures) == (False, {})


def test_an_edit_while_others_are_loaded_starts_once_more(world):
    """Also one that goes back to what ran before."""
    world.want(e=engine("b"))
    world.advance()
    world.want(e=engine())
    world.advance()
    assert (world.path, world.engine.is_changing) == ("a", True)
    world.engine.come_up()
    assert world.advance() == ["e"]
    assert not world.engine.is_closed


def test_an_engine_that_is_given_up_is_not_waited_for(world):
    world.num_files, world.engine.state = 4, EngineState.DOWN
    world.want(e=engine("b"))
    world.advance()
    assert world.num_left == 4
    world.advance()
    assert (world.path, world.engine.is_changing) == ("b", False)
    assert world.advance() == ["e"]
    assert not world.engine.is_closed


def test_an_engine_leaves_when_nothing_needs_it_and_stays_if_it_is_wanted_again(world):
    world.num_files = 1
    world.want(x=engine("b"))
    assert world.advance() == []
    world.plant.pipelines["p"].settings.engine = "x"
    world.want(x=engine("b"), e=engine())
    world.num_files = 0
    assert world.advance() == []
    world.want(x=engine("b"))
    assert world.advance() == ["e"]
    assert list(world.plant.engines) == ["x"]
    assert list(world.changes.effective) == ["x"]


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("want"), st.sampled_from(["a", "b", "bad"]), st.sampled_from(["sync", "async"]), st.booleans()
        ),
        st.tuples(st.just("files"), st.integers(0, 2)),
        st.tuples(st.just("advance")),
        st.tuples(st.just("start ends")),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_comes_meanwhile_the_engine_ends_where_the_last_edit_wants_it(story):
    """Or, if that cannot be loaded, at settings that could; and it takes files again."""
    world, wanted, good = World(), engine(), {"a", "b"}

    def end_start():
        if world.engine.is_changing:
            world.engine.come_up() if world.path in good else world.engine.fail()

    for step in story:
        match step:
            case ("want", path, schedule, tries_again):
                wanted = engine(path, schedule=schedule)
                world.want(e=wanted, tries_again=tries_again)
            case ("files", number):
                world.num_files = number if not world.engine.is_closed else min(number, world.num_files)
            case ("advance",):
                world.advance()
            case _:
                end_start()
    world.num_files = 0
    for _ in range(4):
        world.advance()
        end_start()
    world.advance()
    assert (world.engine.is_closed, world.engine.is_changing) == (False, False)
    effective = world.changes.effective["e"]
    assert world.engine.config == effective.to_engine_config("e")
    assert effective == wanted if wanted.model.path in good else effective.model.path in good
    assert bool(world.changes.failures) is (wanted.model.path not in good)
