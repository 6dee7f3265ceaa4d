"""The commands about this machine, from a first configuration to a measurement: what each may be given, what `--help` says."""

import argparse
from pathlib import Path

from daemon import completion
from daemon.cli_command import Actions, Adder, Help, add_command


def _add_doctor(actions: Actions) -> None:
    doctor = add_command(
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


def _add_init(actions: Actions) -> None:
    init = add_command(
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


def _add_completion(actions: Actions) -> None:
    script = add_command(
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


def _add_bench(actions: Actions) -> None:
    # Its options are the benchmark's own business: no argument begins with this prefix, so all are passed on as they are.
    bench = actions.add_parser(
        "bench", help="measure the engine on this machine (--help: how)", add_help=False, prefix_chars="\0"
    )
    bench.add_argument("arguments", nargs=argparse.REMAINDER)
    bench.set_defaults(command="daemon.commands:bench")


def _add_demo(actions: Actions) -> None:
    demo = add_command(
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


ADDERS: dict[str, Adder] = {
    "doctor": _add_doctor,
    "init": _add_init,
    "completion": _add_completion,
    "bench": _add_bench,
    "demo": _add_demo,
}
