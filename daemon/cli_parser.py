"""The options of each command, and what `--help` says of it: a description, examples, exit codes."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TypeAlias

from daemon import __version__, completion

_WIDTH = 100
Command: TypeAlias = str  # MODULE:FUNCTION, imported when it is called: `--help` and completion have to be fast
_Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  it has no public name

_DESCRIPTION = "Run LLM inference from a folder: drop request files into an inbox, take the results from an outbox."
_EPILOG = """\
a first try:
  gapless run gapless.yaml                 the daemon, in the foreground
  gapless submit --wait questions.jsonl    in another terminal: put a file in, wait for its results
  gapless report questions                 what it took

`gapless COMMAND --help` says more of each. Commands find the daemon through --config, else $GAPLESS_CONFIG, else
./gapless.yaml.

"""
_EXIT_CODES = """\
exit codes:
  0  well
  1  a fault of gapless itself
  2  an edit of the command line or of the YAML mends it
  3  some requests or files failed (run --once, submit --wait, check FILE)
  4  the environment: port, permissions, disk, GPU, no daemon
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; what it gives names in `command` what to call."""
    parser = argparse.ArgumentParser(
        prog="gapless",
        description=_DESCRIPTION,
        epilog=_EPILOG + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gapless {__version__}")
    actions = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for add in _ADDERS:
        add(actions)
    return parser


def _add_run(actions: _Actions) -> None:
    run = _command(
        actions,
        "run",
        "daemon.command_run:run",
        Help(
            "run the daemon in the foreground",
            "Run the daemon until SIGTERM or SIGINT. The first signal lets running requests finish (daemon.drain_s), a second "
            "one stops at once; nothing is lost either way, the next start goes on.",
            "gapless run\ngapless run engines.yaml pipelines.yaml\ngapless run --once    as a job: until all inboxes are empty",
        ),
        with_config=False,
    )
    run.add_argument(
        "configs",
        nargs="*",
        type=Path,
        metavar="CONFIG",
        help="YAML files; by default $GAPLESS_CONFIG, else ./gapless.yaml",
    )
    run.add_argument("--once", action="store_true", help="stop when the inboxes are empty and every file is done")


def _add_submit(actions: _Actions) -> None:
    submit = _command(
        actions,
        "submit",
        "daemon.command_submit:submit",
        Help(
            "copy files into an inbox, each whole or not at all",
            "Copy request files into a pipeline's inbox under a hidden name and show them once they are whole. Works without "
            "a running daemon: the next start takes them. A name that is in use gets a number, STEM~2.",
            "gapless submit questions.jsonl\n"
            "gapless submit --wait --pipeline chat a.jsonl b.jsonl\n"
            "gapless submit --options urgent.yaml questions.jsonl\n"
            "gapless submit --wait big.jsonl && gapless report big",
            notes="With --wait, Ctrl-C stops the waiting alone: the daemon goes on with the files.",
        ),
    )
    submit.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a request file")
    _completed(
        submit.add_argument("--pipeline", metavar="NAME", help="needed where there are several"), completion.pipelines
    )
    submit.add_argument(
        "--options",
        type=Path,
        metavar="YAML",
        help="what these files want otherwise than the pipeline: sampling, limits, priority...",
    )
    submit.add_argument(
        "--wait", action="store_true", help="show progress until all are done, then print where the results are"
    )


def _add_check(actions: _Actions) -> None:
    check = _command(
        actions,
        "check",
        "daemon.command_check:check",
        Help(
            "check YAML files, or say what is wrong with request files and what they will take; runs nothing",
            "Of YAML files: the configuration that they make, every key with its value, or every mistake in them. Of "
            "request files: which lines are wrong and why, the tokens of the prompts by the model's own tokenizer and chat "
            "template, which requests do not fit into its context, how long the answers can get, and about how long it "
            "will take if a report in the outbox tells a speed.",
            "gapless check\n"
            "gapless check gapless.yaml\n"
            "gapless check --explain    each key with its value and when a change of it takes effect\n"
            "gapless check questions.jsonl --pipeline chat\n"
            "gapless check questions.jsonl --json | jq .prompt_tokens.total",
            "The model's tokenizer is loaded in a process of its own; --no-tokens does without.",
        ),
    )
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help="YAML files (.yaml, .yml) or request files")
    check.add_argument(
        "--pipeline", metavar="NAME", help="whose model and defaults count; needed where there are several"
    )
    check.add_argument("--json", action="store_true", help="what was found of request files, as JSON")
    check.add_argument(
        "--explain", action="store_true", help="say of each key of the configuration when a change of it takes effect"
    )
    check.add_argument("--no-tokens", action="store_true", help="look at the lines alone")


def _add_explain(actions: _Actions) -> None:
    explain = _command(
        actions,
        "explain",
        "daemon.commands:explain",
        Help(
            "say where a dropped file is and why",
            "Look for a file in all folders of all pipelines and say what is going on with it and what to do. Works without a "
            "running daemon, and says more with one.",
            "gapless explain questions.jsonl",
        ),
    )
    explain.add_argument("file", type=Path, metavar="FILE", help="a path, or a name or STEM alone")


def _add_cancel(actions: _Actions) -> None:
    cancel = _command(
        actions,
        "cancel",
        "daemon.command_cancel:cancel",
        Help(
            "end a file: what is finished is published, the rest is cut",
            "Have a file end that waits or is being run: running requests are cut at the next step and become "
            "batch_cancelled, as do those not begun; finished ones are published. Works by a file STEM.cancel in the inbox.",
            "gapless cancel questions\ngapless cancel chat/questions",
            "`gapless retry STEM` runs what was cut another time.",
        ),
    )
    cancel.add_argument("stem", metavar="STEM", help="STEM or the file's full name, or PIPELINE/STEM")


def _add_report(actions: _Actions) -> None:
    report = _command(
        actions,
        "report",
        "daemon.command_report:report",
        Help(
            "say what finished files took: requests, errors, tokens, time, cost",
            "Print STEM.report.json of the outbox as a table. The cost is the file's share of the device's time, by tokens, "
            "at daemon.price_per_gpu_hour.",
            "gapless report questions\ngapless report chat/questions --json",
        ),
    )
    stems = report.add_argument("stems", nargs="+", metavar="STEM", help="STEM, or PIPELINE/STEM where several have it")
    _completed(stems, completion.stems_with(".report.json"))
    report.add_argument("--json", action="store_true", help="STEM.report.json as it is")


def _add_retry(actions: _Actions) -> None:
    retry = _command(
        actions,
        "retry",
        "daemon.command_retry:retry",
        Help(
            "run again what failed of a finished file, and only that",
            "Put the requests of STEM that have no answer (refused, failed, expired, cancelled) into the inbox again, in "
            "their order and under their ids, as the file STEM~retry, whose results lie apart from those of STEM. Of a table "
            "it is the table of the rows that failed. Of a file that could not be run to its end, all requests without an "
            "answer.",
            "gapless retry questions\n"
            "gapless retry questions --code engine_error --code batch_expired --wait\n"
            "gapless retry questions --again    though it was retried before",
            "Default seeds depend on a file's content, so that sampled answers are not those that STEM would have had.",
        ),
    )
    stem = retry.add_argument("stem", metavar="STEM", help="STEM, or PIPELINE/STEM where several have it")
    _completed(stem, completion.stems_with(".errors.jsonl"))
    retry.add_argument("--code", action="append", metavar="CODE", help="only errors with this code; may be repeated")
    retry.add_argument("--again", action="store_true", help="also if there is a STEM~retry already")
    retry.add_argument("--wait", action="store_true", help="as for submit")


def _add_pause(actions: _Actions) -> None:
    pause = _command(
        actions,
        "pause",
        "daemon.command_pause:pause",
        Help(
            "take no more files and feed no more requests; what runs finishes",
            "Pause pipelines, by default all of them, until `gapless resume`: no new file is taken, files being run are "
            "not fed further, requests that run finish. The switch is a file, spool/PIPELINE/paused, which holds the "
            "reason; it works without a running daemon and survives its restart.",
            "gapless pause\ngapless pause chat --reason 'the GPU is needed until five'",
        ),
    )
    _completed(
        pause.add_argument("pipelines", nargs="*", metavar="PIPELINE", help="by default all"), completion.pipelines
    )
    pause.add_argument("--reason", metavar="TEXT", help="shown by status, explain and the log")


def _add_resume(actions: _Actions) -> None:
    resume = _command(
        actions,
        "resume",
        "daemon.command_pause:resume",
        Help(
            "let paused pipelines go on",
            "Undo `gapless pause`, and have an engine that was given up after engines.NAME.max_restarts tried again.",
            "gapless resume\ngapless resume chat",
        ),
    )
    _completed(
        resume.add_argument("pipelines", nargs="*", metavar="PIPELINE", help="by default all"), completion.pipelines
    )


def _add_reload(actions: _Actions) -> None:
    reload = _command(
        actions,
        "reload",
        "daemon.command_reload:reload",
        Help(
            "have the running daemon look at its configuration now, or say what another one would change",
            "A running daemon notices by itself when its files are saved. This asks it to look at once and says what came of "
            "that: what changes and when, or why nothing does. With --dry-run nothing is asked for: CONFIG, by default the "
            "configuration itself, is compared with what runs, key by key.",
            "gapless reload\ngapless reload --dry-run\ngapless reload --dry-run new.yaml && mv new.yaml gapless.yaml\n"
            "gapless reload --now    do not wait for the files that an engine runs",
            "With --now an engine that needs a new start gets it at once: finished answers stay, all others are made with the "
            "new settings, and each line says which model it was made with. Settings with which an engine could not be started "
            "are tried again. Relative paths in CONFIG begin at its folder.",
        ),
    )
    reload.add_argument("configs", nargs="*", type=Path, metavar="CONFIG", help="with --dry-run: YAML files to compare")
    reload.add_argument(
        "--now", action="store_true", help="engines cut over at once instead of waiting until their files have ended"
    )
    reload.add_argument("--dry-run", action="store_true", help="change nothing, say what would change and when")


def _add_status(actions: _Actions) -> None:
    status = _command(
        actions,
        "status",
        "daemon.command_status:status",
        Help(
            "ask the running daemon what it is doing",
            "Print engines, pipelines and the files being run. Needs a running daemon; `gapless explain FILE` does not.",
            "gapless status\ngapless status --json",
        ),
    )
    status.add_argument("--json", action="store_true", help="as JSON")


def _add_top(actions: _Actions) -> None:
    top = _command(
        actions,
        "top",
        "daemon.command_top:top",
        Help(
            "watch the running daemon in the terminal",
            "Draw engines with their last ten minutes, files with progress and time left, and what ended last, until Ctrl-C.",
            "gapless top\ngapless top --once",
        ),
    )
    top.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS", help="between two looks (default: 1)")
    top.add_argument("--once", action="store_true", help="draw once and end")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004
        raise argparse.ArgumentTypeError(f"found {text}, expected seconds from 0.1 to 3600")
    return seconds


def _add_doctor(actions: _Actions) -> None:
    doctor = _command(
        actions,
        "doctor",
        "daemon.command_doctor:doctor",
        Help(
            "look at the machine, the spool and the models, and say what to do",
            "Look at configuration, memory, GPU and driver, torch, inotify, spool and disk, the port, and at each "
            "engine's model, tokenizer and chat template. Each is ok, warn (it runs, but not as well as it could) or fail "
            "(it does not run), with advice. Nothing is changed; a model of a hub is downloaded if it is not here yet.",
            "gapless doctor\ngapless doctor --no-models\ngapless doctor --json | jq '.findings[] | select(.level != \"ok\")'",
        ),
    )
    doctor.add_argument("--no-models", action="store_true", help="leave the models alone")
    doctor.add_argument("--json", action="store_true", help="as JSON")


def _add_init(actions: _Actions) -> None:
    init = _command(
        actions,
        "init",
        "daemon.command_init:init",
        Help(
            "write a first configuration: two questions, which model and which folder",
            "Write a commented gapless.yaml that runs as it is, and gapless.schema.json beside it, by which editors complete "
            "and check its keys. Asks which model and which folder; what is given on the command line is not asked.",
            "gapless init\n"
            "gapless init --model Qwen/Qwen3-8B --folder /data/spool\n"
            "gapless init --yes --output /etc/gapless.yaml",
        ),
        with_config=False,
    )
    init.add_argument("--model", metavar="MODEL", help="hub name, folder, .gguf file, or package:NAME")
    init.add_argument("--folder", metavar="FOLDER", help="for inbox and outbox; relative to the configuration's folder")
    init.add_argument("--output", type=Path, default=Path("gapless.yaml"), metavar="YAML", help="default: %(default)s")
    init.add_argument("--yes", action="store_true", help="ask nothing, take the defaults")
    init.add_argument("--force", action="store_true", help="replace a configuration that is there")


def _add_completion(actions: _Actions) -> None:
    script = _command(
        actions,
        "completion",
        "daemon.completion:completion",
        Help(
            "print the script by which a shell completes gapless commands, pipelines and STEMs",
            "Print a script for bash, zsh or fish. The shell then asks gapless itself what may stand at the cursor.",
            'eval "$(gapless completion bash)"          in ~/.bashrc\n'
            'eval "$(gapless completion zsh)"           in ~/.zshrc, behind compinit\n'
            "gapless completion fish > ~/.config/fish/completions/gapless.fish",
        ),
        with_config=False,
    )
    script.add_argument("shell", choices=completion.SHELLS)


def _add_bench(actions: _Actions) -> None:
    # Its options are the benchmark's own business: no argument begins with this prefix, so all are passed on as they are.
    bench = actions.add_parser(
        "bench", help="measure the engine on this machine (--help: how)", add_help=False, prefix_chars="\0"
    )
    bench.add_argument("arguments", nargs=argparse.REMAINDER)
    bench.set_defaults(command="daemon.commands:bench")


def _add_demo(actions: _Actions) -> None:
    demo = _command(
        actions,
        "demo",
        "daemon.commands:demo",
        Help(
            "run three small example files with the embedded model on this machine",
            "Start a daemon on configs/demo.yaml, drop three kinds of files, show answers and reports, stop.",
            "gapless demo\ngapless demo --keep-running",
        ),
        with_config=False,
    )
    demo.add_argument("--keep-running", action="store_true", help="leave the daemon running at the end")


def _completed(action: argparse.Action, completer: completion.Completer) -> None:
    """Have a shell complete an argument's values."""
    setattr(action, "completer", completer)  # noqa: B010  argcomplete looks for it there, argparse does not know it


@dataclass(frozen=True, slots=True)
class Help:
    """What `--help` says of a command."""

    summary: str  # in the list of commands
    description: str
    examples: str  # command lines, one a line
    notes: str = ""

    @property
    def epilog(self) -> str:
        """What stands behind the options."""
        examples = "examples:\n" + "".join(f"  {line}\n" for line in self.examples.splitlines())
        notes = f"{fill(self.notes, _WIDTH)}\n" if self.notes else ""
        return "\n".join(part for part in (examples, notes, _EXIT_CODES) if part)


def _command(
    actions: _Actions, name: str, command: Command, text: Help, *, with_config: bool = True
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text.summary,
        description=fill(text.description, _WIDTH),
        epilog=text.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    if with_config:
        parser.add_argument(
            "--config",
            type=Path,
            action="append",
            metavar="YAML",
            help="configuration; again for each further file; by default $GAPLESS_CONFIG, else ./gapless.yaml",
        )
    return parser


_ADDERS = (
    _add_run,
    _add_submit,
    _add_check,
    _add_status,
    _add_top,
    _add_explain,
    _add_cancel,
    _add_report,
    _add_retry,
    _add_pause,
    _add_resume,
    _add_reload,
    _add_doctor,
    _add_init,
    _add_completion,
    _add_bench,
    _add_demo,
)
