"""A real engine (a small model, real arithmetic, real processes) that dies or hangs in mid-file answers as an undisturbed one."""

import os
import signal
from pathlib import Path

import pytest
from daemon_process import Daemon, request_lines
from live_config import edit
from small_model import save_small_model

COUNT = 60
SUPPORT = Path(__file__).parents[1] / "support"
ENGINE = ", stall_s: 100, num_threads: 1, kv_cache: {max_tokens: 2048}"
pytestmark = pytest.mark.timeout(300)  # a start of torch takes long on a busy machine
LINES = request_lines(COUNT, temperature=0.8, max_tokens=50)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("small") / "small")


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    """A fault that is written here happens in the next step."""
    return tmp_path_factory.mktemp("fault") / "order"


@pytest.fixture(scope="module")
def daemon(model, order, tmp_path_factory):
    """One for all tests here, since each start of a real engine takes seconds of two cores; so some are soak tests."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.environ.get("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("PYTHONPATH", f"{SUPPORT / 'faulty_engine'}{os.pathsep}{path}")
        patch.setenv("GAPLESS_TEST_FAULT", str(order))
        made = Daemon(tmp_path_factory.mktemp("faults"), model, engine=ENGINE)
        made.config.write_text(made.config.read_text().replace("max_num_seqs: 16", "max_num_seqs: 4"))
        yield made.start()
        if made.process.poll() is None:
            made.kill()


@pytest.fixture(scope="module")
def undisturbed(daemon):
    daemon.drop("undisturbed.jsonl", LINES)
    daemon.wait_done("undisturbed")
    assert daemon.children().keys() == {"engine", "text"}
    return texts(daemon, "undisturbed")


def texts(daemon, stem):
    found = {key: line["response"]["body"]["choices"] for key, line in daemon.results(stem).items()}
    assert len(found) == COUNT
    return found


def run_to_the_middle(daemon, stem):
    """Drop the file and wait until some of its answers are durable and most are not."""
    daemon.drop(f"{stem}.jsonl", LINES)
    partial = daemon.outbox / f"{stem}.output.jsonl.partial"
    daemon.until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= 10, "in mid-file")
    assert daemon.batch(stem)["status"] == "in_progress"


def says(daemon, text):
    return daemon.until(lambda: text in daemon.log.read_text(), text)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def assert_as_undisturbed(daemon, stem, undisturbed):
    batch = daemon.wait_done(stem)
    assert batch["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0}
    assert texts(daemon, stem) == undisturbed


def test_an_engine_that_is_killed_in_mid_file(daemon, undisturbed):
    run_to_the_middle(daemon, "killed")
    daemon.kill_child("engine")
    assert_as_undisturbed(daemon, "killed", undisturbed)
    says(daemon, "killed by SIGKILL")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("device", "CUDA error: an illegal memory access was encountered"),
        pytest.param("memory", "a step found no memory", marks=pytest.mark.soak),
    ],
)
def test_an_engine_whose_step_fails_in_mid_file(daemon, order, undisturbed, fault, reason):
    """The error comes from the compute stream's thread, long after the step's launch."""
    run_to_the_middle(daemon, fault)
    order.write_text(fault)
    assert_as_undisturbed(daemon, fault, undisturbed)
    says(daemon, reason)


@pytest.mark.parametrize("how", ["block", pytest.param("stopped", marks=pytest.mark.soak)])
def test_an_engine_that_makes_no_progress_in_mid_file(daemon, order, undisturbed, how):
    """The whole process stopped by a signal, or a step of it that never ends."""
    run_to_the_middle(daemon, how)
    num_kills = daemon.log.read_text().count("did not get on for 2 s")
    if how == "block":
        order.write_text("block")
        daemon.until(lambda: not order.exists(), "blocked")
    else:
        os.kill(daemon.children()["engine"], signal.SIGSTOP)
    before = edit(daemon, ("stall_s: 100", "stall_s: 2"))  # it is live, and the next start takes longer than that
    daemon.until(lambda: daemon.log.read_text().count("did not get on for 2 s") > num_kills, "killed")
    daemon.config.write_text(before)
    assert_as_undisturbed(daemon, how, undisturbed)


@pytest.mark.parametrize("is_stopped", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_daemon_that_is_killed_leaves_no_process_and_the_next_one_goes_on(daemon, undisturbed, is_stopped):
    """Not even an engine that cannot hear of it, since it was stopped before."""
    stem = f"daemon-{is_stopped}"
    run_to_the_middle(daemon, stem)
    children = daemon.children()
    if is_stopped:
        os.kill(children["engine"], signal.SIGSTOP)
    daemon.kill()
    daemon.until(lambda: all(map(is_gone, children.values())), "its processes ended with it")
    daemon.start()
    assert_as_undisturbed(daemon, stem, undisturbed)


def test_a_daemon_that_is_killed_while_its_engine_loads_leaves_no_process(daemon):
    daemon.kill_child("engine")
    children = daemon.until(lambda: len(daemon.children()) == 2 and daemon.children(), "loading")
    daemon.kill()
    daemon.until(lambda: all(map(is_gone, children.values())), "its processes ended with it")
