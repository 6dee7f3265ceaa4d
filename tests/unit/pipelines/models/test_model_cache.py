"""The cache builds a folder once, whole or not at all, whoever is killed and whoever comes at the same time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.models.cache import build_once, cache_folder, content_digest

# Builds FOLDER: notes that it began, waits for the file `go`, then writes. Prints what it reports.
BUILDER = """
import os, sys, time
from pathlib import Path
from pipelines.models.cache import build_once

folder = Path(sys.argv[1])

def build(place, report):
    (folder.parent / "builds").open("a").write("build\\n")
    (place / f"half-{os.getpid()}").touch()
    report(0.5)
    while not (folder.parent / "go").exists():
        time.sleep(0.01)
    (place / "whole").write_text("whole")
    report(1.0)

build_once(folder, build, lambda done: print(done, flush=True))
"""


@pytest.fixture
def builders() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(builders: list[subprocess.Popen[str]], folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", BUILDER, str(folder)], stdout=subprocess.PIPE, text=True)
    builders.append(process)
    return process


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Read what the process reports until it says `line`."""
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == line:
            return
    pytest.fail(f"the builder ended without saying {line}")


def test_two_processes_build_once_and_the_second_shows_how_far_the_first_is(
    tmp_path: Path, builders: list[subprocess.Popen[str]]
) -> None:
    folder = tmp_path / "model"
    first = start(builders, folder)
    wait_for(first, "0.5")
    second = start(builders, folder)
    wait_for(second, "0.5")  # it builds nothing, so it can only have read that
    (tmp_path / "go").touch()
    assert first.wait(20) == second.wait(20) == 0
    assert (tmp_path / "builds").read_text() == "build\n"
    assert (folder / "whole").read_text() == "whole"


def test_a_kill_in_the_middle_leaves_nothing_that_looks_built(
    tmp_path: Path, builders: list[subprocess.Popen[str]]
) -> None:
    """After kill -9 the folder is not there; the next process clears what is left and builds anew, and a waiting one too."""
    folder = tmp_path / "model"
    first = start(builders, folder)
    wait_for(first, "0.5")
    waiting = start(builders, folder)
    wait_for(waiting, "0.5")
    first.send_signal(signal.SIGKILL)
    first.wait(20)
    assert not folder.exists()
    (tmp_path / "go").touch()
    assert waiting.wait(20) == 0
    assert (tmp_path / "builds").read_text() == "build\nbuild\n"
    assert sorted(file.name for file in folder.iterdir()) == [f"half-{waiting.pid}", "whole"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["builds", "go", "model", "model.lock"]


def test_a_failed_build_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    def fail(place: Path, _: object) -> None:
        (place / "half").touch()
        raise ValueError("damaged")

    folder = tmp_path / "model"
    with pytest.raises(ValueError, match="damaged"):
        build_once(folder, fail, lambda _: None)
    assert [file.name for file in tmp_path.iterdir()] == ["model.lock"]
    build_once(folder, lambda place, _: (place / "whole").touch(), lambda _: None)
    assert (folder / "whole").exists()


def test_a_built_folder_is_not_built_again(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    build_once(tmp_path / "model", lambda *_: pytest.fail("built again"), lambda _: None)


def test_the_digest_is_of_the_content_and_read_once(tmp_path: Path) -> None:
    """Copies share a digest; a second call reads nothing; a change of the file is seen."""
    first, copy = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(b"x" * 100)
    copy.write_bytes(b"x" * 100)
    reads: list[float] = []
    digest = content_digest(first, tmp_path / "cache", reads.append)
    assert digest == content_digest(copy, tmp_path / "cache", lambda _: None)
    assert reads == [1.0]
    assert digest == content_digest(first, tmp_path / "cache", lambda _: pytest.fail("read again"))
    first.write_bytes(b"y" * 100)
    os.utime(first, (time.time() + 10,) * 2)
    assert digest != content_digest(first, tmp_path / "cache", lambda _: None)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"GAPLESS_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/gapless"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/somebody/.cache/gapless"),
        ({}, "/home/somebody/.cache/gapless"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("GAPLESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/home/somebody"}).items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
