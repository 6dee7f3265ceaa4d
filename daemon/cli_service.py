"""The commands about the running daemon: what each may be given, and what `--help` says of it."""

import argparse
from contextlib import suppress
from pathlib import Path

from daemon import completion
from daemon.cli_command import Actions, Adder, Help, add_command, completed


def _add_run(actions: Actions) -> None:
    run = add_command(
        actions,
        "run",
        "daemon.command_run:run",
        Help(
            "run the daemon in the foreground",
            "Run the daemon until SIGTERM or SIGINT. The first signal lets running requests finish (daemon.drain_s), a second "
            "one stops at once; nothing is lost either way, the next start goes on.",
            "gapless run\ngapless run engines.yaml pipelines.yaml\ngapless run --once    as a job: until all inboxes are empty",
        ),
    )
    run.add_argument(
        "configs",
        nargs="*",
        type=Path,
        metavar="CONFIG",
        help="YAML files, the same as with --config",
    )
    run.add_argument("--once", action="store_true", help="stop when the inboxes are empty and every file is done")


def _add_status(actions: Actions) -> None:
    status = add_command(
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


def _add_top(actions: Actions) -> None:
    top = add_command(
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
    with suppress(ValueError):
        if 0.1 <= (seconds := float(text)) <= 3600:  # noqa: PLR2004
            return seconds
    raise argparse.ArgumentTypeError(f"found {text}, expected seconds from 0.1 to 3600")


def _add_pause(actions: Actions) -> None:
    pause = add_command(
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
    completed(
        pause.add_argument("pipelines", nargs="*", metavar="PIPELINE", help="by default all"), completion.pipelines
    )
    pause.add_argument("--reason", metavar="TEXT", help="shown by status, explain and the log")


def _add_resume(actions: Actions) -> None:
    resume = add_command(
        actions,
        "resume",
        "daemon.command_pause:resume",
        Help(
            "let paused pipelines go on",
            "Undo `gapless pause`, and have an engine that was given up after engines.NAME.max_restarts tried again.",
            "gapless resume\ngapless resume chat",
        ),
    )
    completed(
        resume.add_argument("pipelines", nargs="*", metavar="PIPELINE", help="by default all"), completion.pipelines
    )


def _add_reload(actions: Actions) -> None:
    reload = add_command(
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


ADDERS: dict[str, Adder] = {
    "run": _add_run,
    "status": _add_status,
    "top": _add_top,
    "pause": _add_pause,
    "resume": _add_resume,
    "reload": _add_reload,
}
