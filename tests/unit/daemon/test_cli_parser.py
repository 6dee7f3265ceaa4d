"""What the command line takes, where argparse alone does not say it well."""

import argparse

import pytest

from daemon.cli_parser import make_parser, parse


@pytest.mark.parametrize("given", ["soon", "0.05", "3601", "nan", "-1", ""])
def test_seconds_that_are_none_are_said_with_what_is_expected(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Words too, of which argparse would tell the name of a function of ours."""
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args(["top", f"--every={given}"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"--every: found {given}, expected seconds from 0.1 to 3600\n")


@pytest.mark.parametrize(("given", "seconds"), [("0.1", 0.1), ("2", 2.0), ("3600", 3600.0)])
def test_seconds_are_taken_up_to_an_hour(given: str, seconds: float) -> None:
    assert make_parser().parse_args(["top", "--every", given]).every == seconds


def test_names_of_pipelines_are_completed_wherever_one_is_asked_for() -> None:
    """Each argument that is the name of a pipeline, of whatever command."""
    (actions,) = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    asking = {
        (name, each.dest): getattr(each, "completer", None) is not None
        for name, parser in actions.choices.items()
        for each in parser._actions
        if each.dest in {"pipeline", "pipelines"}
    }
    assert asking == dict.fromkeys(
        [("submit", "pipeline"), ("check", "pipeline"), ("pause", "pipelines"), ("resume", "pipelines")], True
    )


@pytest.mark.parametrize(
    ("words", "prog"),
    [
        (["status", "--verbose"], "gapless status"),
        (["--verbose", "status"], "gapless status"),
        (["run", "gapless.yaml", "--onec"], "gapless run"),
        (["init", "somewhere"], "gapless init"),
        (["--verbose", "bench"], "gapless"),
    ],
)
def test_what_a_command_does_not_know_is_said_with_its_own_usage(
    words: list[str], prog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage of the whole command line, which argparse shows, lists none of the command's options."""
    unknown = next(word for word in words if word in {"--verbose", "--onec", "somewhere"})
    with pytest.raises(SystemExit) as caught:
        parse(make_parser(), words)
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.startswith(f"usage: {prog} [-h]")
    assert said.endswith(f"{prog}: error: unrecognized arguments: {unknown}\n")


@pytest.mark.parametrize(("command", "is_advised"), [("doctor", True), ("status", True), ("init", False)])
def test_a_configuration_that_is_given_as_to_run_is_told_its_option(
    command: str, is_advised: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` takes it without one, so others are asked the same way."""
    with pytest.raises(SystemExit):
        parse(make_parser(), [command, "my.yaml"])
    assert ("name a configuration so: --config my.yaml" in capsys.readouterr().err) is is_advised
