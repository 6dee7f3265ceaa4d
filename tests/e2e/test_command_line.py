"""The command line as a whole: help, completion, a first configuration, the doctor, the status."""

import importlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import completions, gapless
from daemon_process import request_lines
from waiting import wait_until

from daemon.cli_parser import make_parser

COMMANDS = sorted(make_parser()._subparsers._group_actions[0].choices)


@pytest.mark.parametrize("arguments", [("check",), ("completion", "bash")])
def test_output_that_cannot_be_written_is_said_in_a_line(tmp_path, arguments):
    """A full disk behind `gapless ... > file` is no fault of ours, and is not passed over."""
    (tmp_path / "gapless.yaml").write_text("engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "daemon.cli", *arguments],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.stderr == "what was asked for cannot be written to standard output: No space left on device\n"
    assert done.returncode == 4


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_keep_nobody_from_working(make_daemon, closed):
    """As a cron or a service manager may start it: what would be said goes nowhere, into no file either."""
    daemon = make_daemon("fake:")
    daemon.drop("f.jsonl", request_lines(3))
    command = shlex.join([sys.executable, "-m", "daemon.cli", "run", "--once", str(daemon.config)])
    done = subprocess.run(["sh", "-c", f"exec {command} {closed}"], capture_output=True, timeout=60, check=False)  # noqa: S607
    assert done.returncode == 0
    assert len(daemon.results("f")) == 3


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_each_command_has_help_with_examples_that_are_commands_and_can_be_called(name):
    """What --help shows as an example parses; what is to be called is there."""
    parser = make_parser()._subparsers._group_actions[0].choices[name]
    text = parser.format_help()
    assert "exit codes:\n  0  well" in text
    examples = [line.strip() for line in text.partition("examples:\n")[2].partition("\n\n")[0].splitlines()]
    assert examples
    for example in examples:
        words = example.partition("    ")[0].split(" | ")[0].split(" && ")[0].partition(" > ")[0].strip('"')
        words = words.removeprefix('eval "$(').removesuffix(")")
        options = make_parser().parse_args([word.strip("'") for word in shlex.split(words)[1:]])
        module, _, function = options.command.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_help_needs_nothing_heavy():
    """It comes at once, as does completion: neither pydantic nor the rest is read."""
    program = (
        "import sys; from daemon.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'yaml', 'asyncio', 'prometheus_client', 'watchdog', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_shell_completes_commands_pipelines_and_stems(make_daemon):
    """What is there, by the configuration and the outbox of the moment."""
    daemon = make_daemon("fake:")
    daemon.drop("good.jsonl", request_lines(1))
    daemon.drop("bad.jsonl", request_lines(1) + "{broken\n")
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    assert completions("gapless re", daemon.folder) == ["reload", "report", "resume", "retry"]
    assert completions("gapless report ", daemon.folder)[-2:] == ["bad", "good"]
    assert completions("gapless retry b", daemon.folder) == ["bad"]
    assert completions("gapless pause ", daemon.folder)[-1:] == ["p"]
    assert not [word for word in completions("gapless report --config none.yaml ", daemon.folder) if word[0] != "-"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_the_program(tmp_path, shell):
    """For each shell one that it can read; bash is here to try it."""
    code, said = gapless("completion", shell, cwd=tmp_path)
    assert code == 0
    assert "gapless" in said
    if shell == "bash":
        done = subprocess.run(["bash", "-n"], input=said, text=True, check=False)  # noqa: S607  wherever it is
        assert done.returncode == 0


def test_a_person_answers_two_questions_and_has_a_configuration_that_runs(tmp_path):
    """At a terminal: a model, and the default for the folder; then a file goes all the way."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "daemon.cli", "init"], cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    seen = b""
    for question, answer in ((b"Which model?", b"fake:\n"), (b"Which folder", b"\n")):
        while question not in seen or b"] " not in seen.partition(question)[2]:
            seen += os.read(master, 4096)
        os.write(master, answer)
    assert process.wait(60) == 0
    os.close(master)
    text = (tmp_path / "gapless.yaml").read_text().replace("port: 9400", "port: 0")
    (tmp_path / "gapless.yaml").write_text(text)
    (tmp_path / "f.jsonl").write_text(request_lines(3))
    assert gapless("submit", "f.jsonl", cwd=tmp_path)[0] == 0
    done = subprocess.run([sys.executable, "-m", "daemon.cli", "run", "--once"], cwd=tmp_path, check=False, timeout=90)
    assert done.returncode == 0
    assert len((tmp_path / "spool/chat/outbox/f.output.jsonl").read_text().splitlines()) == 3


def test_init_without_a_terminal_takes_options_and_never_replaces_a_file(tmp_path):
    """One line each for what is missing, there already, or wrong; nothing is left behind."""
    code, said = gapless("init", cwd=tmp_path)
    assert (code, "no terminal to ask at" in said, len(said.splitlines())) == (2, True, 1)
    code, said = gapless("init", "--model", "not a model", "--folder", "x", cwd=tmp_path)
    assert (code, "expected a hub name" in said) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert gapless("init", "--model", "x/y", "--folder", "./data", cwd=tmp_path)[0] == 0
    code, said = gapless("init", "--yes", cwd=tmp_path)
    assert (code, "is there already" in said) == (2, True)
    assert gapless("init", "--yes", "--force", cwd=tmp_path)[0] == 0
    assert gapless("check", cwd=tmp_path)[0] == 0


def test_the_doctor_says_what_to_do_and_its_code_tells_whether_it_runs(tmp_path):
    """A good configuration, a bad one, one whose model is not there; as text and as JSON."""
    config = "daemon: {http: {port: 0}}\nengines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n"
    (tmp_path / "gapless.yaml").write_text(config)
    code, said = gapless("doctor", cwd=tmp_path)
    assert code == 0
    assert "ok    engine e       fake: its tokenizer and chat template work" in said
    assert not (tmp_path / "spool").exists()
    (tmp_path / "gapless.yaml").write_text(config.replace("fake:", "./none"))
    code, said = gapless("doctor", "--json", cwd=tmp_path)
    assert code == 2
    document = json.loads(said)
    assert not document["ok"]
    (wrong,) = [finding for finding in document["findings"] if finding["level"] == "fail"]
    assert (wrong["subject"], "engines.e" in wrong["advice"]) == ("engine e", True)
    (tmp_path / "gapless.yaml").write_text(config + "engine: {}\n")
    code, said = gapless("doctor", "--no-models", cwd=tmp_path)
    assert code == 2
    assert "fail  configuration  gapless.yaml:4:1: engine: found" in said
    assert "gapless init" not in said  # which would not replace it
    (tmp_path / "gapless.yaml").unlink()
    code, said = gapless("doctor", "--no-models", cwd=tmp_path)
    assert (code, "`gapless init` writes one" in said) == (2, True)


def test_status_is_a_table_or_json(make_daemon):
    """Of a running daemon, found though its port was free to choose."""
    daemon = make_daemon("fake:step_ms=20").start()
    daemon.drop("f.jsonl", request_lines(500))
    daemon.until(lambda: '"in_progress"' in daemon.get("/status"), "running, by the snapshot that the command sees")
    code, said = gapless("status", cwd=daemon.folder)
    assert code == 0
    assert said.startswith("up for ")
    row = next(line for line in said.splitlines() if line.startswith("p/f.jsonl"))
    assert row.split()[1] == "in_progress"
    assert row.split()[3] == "500"
    code, said = gapless("status", "--json", cwd=daemon.folder)
    assert (code, json.loads(said)["pipelines"][0]["files"][0]["num_total"]) == (0, 500)


def test_ctrl_c_ends_a_start_that_hangs_on_its_configuration(tmp_path):
    """As one on a share that does not answer does. The processes that were launched meanwhile end with it."""
    config, log = tmp_path / "gapless.yaml", tmp_path / "log"
    os.mkfifo(config)
    with log.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", "daemon.cli", "run", str(config)], stderr=said)
    try:
        fifo = wait_until(
            lambda: os.open(config, os.O_WRONLY | os.O_NONBLOCK),  # fails until the other end is open
            "the configuration read", deadline_s=60, log=log, not_yet=(OSError,),
        )  # fmt: skip
        launched = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    os.close(fifo)
    assert log.read_text() == ""
    assert len(launched) == 2
    assert not any(Path("/proc", pid).exists() for pid in launched)
