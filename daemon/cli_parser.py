"""The whole command line: its commands in the order in which `--help` lists them."""

import argparse
from collections.abc import Sequence

from daemon import __version__, cli_files, cli_service, cli_setup
from daemon.cli_command import EXIT_CODES

_DESCRIPTION = "Run LLM inference from a folder: drop request files into an inbox, take the results from an outbox."
_EPILOG = """\
a first try:
  gapless run gapless.yaml                 the daemon, in the foreground
  gapless submit --wait questions.jsonl    in another terminal: put a file in, wait for its results
  gapless report questions                 what it took

`gapless COMMAND --help` says more of each. Commands find the daemon through --config, else $GAPLESS_CONFIG, else
./gapless.yaml.

"""
_ADDERS = cli_files.ADDERS | cli_service.ADDERS | cli_setup.ADDERS
_ORDER = (
    "run",
    "submit",
    "check",
    "status",
    "top",
    "explain",
    "cancel",
    "report",
    "retry",
    "pause",
    "resume",
    "reload",
    "doctor",
    "init",
    "completion",
    "bench",
    "demo",
)


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line says; what a command does not know is said with the usage of that command."""
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        advice = _advice(unknown) if "config" in options else ""
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    return options


def _advice(unknown: Sequence[str]) -> str:
    """Say how a configuration is named, where that is what was given."""
    given = next((word for word in unknown if word.endswith((".yaml", ".yml")) and not word.startswith("-")), None)
    return "" if given is None else f"; name a configuration so: --config {given}"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; what it gives names in `command` what to call."""
    parser = argparse.ArgumentParser(
        prog="gapless",
        description=_DESCRIPTION,
        epilog=_EPILOG + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gapless {__version__}")
    parser.set_defaults(parser=parser)  # of a command without one of its own
    actions = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name in sorted(_ADDERS, key=_ORDER.index):
        _ADDERS[name](actions)
    return parser
