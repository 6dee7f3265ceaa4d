"""The command line: `gapless run`, `check`, `submit`, `status`, `explain`, `report`, `bench`, `demo`."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from daemon import __version__, command_report, commands
from daemon.errors import DaemonError, ExitCode

_DESCRIPTION = "Run LLM inference from a folder: drop request files into an inbox, take the results from an outbox."
_EPILOG = """exit codes: 0 well; 1 our fault; 2 an edit of the command line or YAML mends it; 3 some requests or files failed
(run --once, submit --wait); 4 the environment (port, permissions, disk, GPU)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. What goes wrong is said in one line a mistake."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except BrokenPipeError:  # whoever read our output has gone
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except DaemonError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except Exception as error:  # a fault of ours; whoever mends it asks for the traceback
        if os.environ.get("GAPLESS_TRACEBACK"):
            raise
        print(f"internal error: {type(error).__name__}: {error} (GAPLESS_TRACEBACK=1 shows where)", file=sys.stderr)
        return int(ExitCode.OUR_FAULT)
    except KeyboardInterrupt:
        return 128 + 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"gapless {__version__}")
    actions = parser.add_subparsers(metavar="COMMAND", required=True)

    run = actions.add_parser("run", help="run the daemon in the foreground")
    run.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG", help="YAML files; by default as --config has it"
    )
    run.add_argument("--once", action="store_true", help="stop when the inboxes are empty and every file is done")
    run.set_defaults(command=commands.run)

    check = actions.add_parser(
        "check", help="check YAML files and print the effective configuration, or check request files and run nothing"
    )
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help="YAML files (.yaml, .yml) or request files")
    check.set_defaults(command=commands.check)

    submit = actions.add_parser("submit", help="copy a file into an inbox, whole or not at all")
    submit.add_argument("file", type=Path)
    submit.add_argument("--pipeline", metavar="NAME", help="needed where there are several")
    submit.add_argument("--wait", action="store_true", help="wait until it is done and print where its results are")
    submit.set_defaults(command=commands.submit)

    status = actions.add_parser("status", help="ask the running daemon what it is doing")
    status.add_argument("--json", action="store_true", help="as JSON")
    status.set_defaults(command=commands.status)

    explain = actions.add_parser("explain", help="say where a dropped file is and why")
    explain.add_argument("file", type=Path)
    explain.set_defaults(command=commands.explain)

    report = actions.add_parser("report", help="say what finished files took: requests, tokens, time, cost")
    report.add_argument("stems", nargs="+", metavar="STEM", help="STEM, or PIPELINE/STEM where several have it")
    report.add_argument("--json", action="store_true", help="STEM.report.json as it is")
    report.set_defaults(command=command_report.report)

    # Its options are the benchmark's own business: no argument begins with this prefix, so all are passed on as they are.
    bench = actions.add_parser(
        "bench", help="measure the engine on this machine (--help: how)", add_help=False, prefix_chars="\0"
    )
    bench.add_argument("arguments", nargs=argparse.REMAINDER)
    bench.set_defaults(command=commands.bench)

    demo = actions.add_parser("demo", help="run three small example files with the embedded model on this machine")
    demo.add_argument("--keep-running", action="store_true", help="leave the daemon running at the end")
    demo.set_defaults(command=commands.demo)

    for action in (submit, status, explain, report, check):
        action.add_argument(
            "--config", type=Path, action="append", help="YAML file; by default $GAPLESS_CONFIG, else ./gapless.yaml"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
