"""What `gapless run` sets up before the daemon runs."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import command_run, logs, service
from daemon.cli_parser import make_parser, parse
from daemon.errors import ExitCode


@pytest.fixture(autouse=True)
def _switch_interval() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before_s)


def test_files_are_named_with_or_without_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other commands take --config, and the message of a missing configuration names it."""
    configs_of_runs: list[object] = []

    class NotedService:
        def __init__(self, _: object, *, configs: object, **__: object) -> None:
            configs_of_runs.append(configs)

        async def run(self) -> ExitCode:
            return ExitCode.OK

    engines, pipelines = tmp_path / "engines.yaml", tmp_path / "pipelines.yaml"
    engines.write_text("engines: {e: {model: {path: 'fake:'}}}\n")
    pipelines.write_text("pipelines: {p: {engine: e}}\n")
    monkeypatch.setattr(service, "Service", NotedService)
    monkeypatch.setattr(logs, "set_up_logging", lambda _: None)
    both = [str(engines), str(pipelines)]
    for words in ([*both], ["--config", both[0], "--config", both[1]], ["--config", both[0], both[1]]):
        assert command_run.run(parse(make_parser(), ["run", "--once", *words])) == ExitCode.OK
    assert configs_of_runs == [[engines, pipelines]] * 3


def test_a_thread_that_reads_a_file_gives_way_to_the_loop_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python lets a thread go on for 5 ms, in which nothing that came from the engine's processes is passed on."""
    intervals_s = []

    class BriefService:
        def __init__(self, *_: object, **__: object) -> None:
            """It needs no settings."""

        async def run(self) -> ExitCode:
            intervals_s.append(sys.getswitchinterval())
            return ExitCode.OK

    config = tmp_path / "gapless.yaml"
    config.write_text("engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n")
    monkeypatch.setattr(service, "Service", BriefService)
    monkeypatch.setattr(logs, "set_up_logging", lambda _: None)
    assert command_run.run(argparse.Namespace(config=None, configs=[config], once=True)) == ExitCode.OK
    assert intervals_s == [pytest.approx(command_run.SWITCH_S)]
    assert command_run.SWITCH_S < 0.002
