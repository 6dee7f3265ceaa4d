"""One command of the command line: its place among the others, what calls it, and the form of its `--help`."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TypeAlias

from daemon.completion import Completer

Command: TypeAlias = str  # MODULE:FUNCTION, imported when it is called: `--help` and completion have to be fast
Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  it has no public name
Adder: TypeAlias = Callable[[Actions], None]  # has the parser know one command

_WIDTH = 100
EXIT_CODES = """\
exit codes:
  0  well
  1  a fault of gapless itself
  2  an edit of the command line or of the YAML mends it
  3  some requests or files failed (run --once, submit --wait, retry --wait), would fail (check FILE), or were left (run --once)
  4  the environment: port, permissions, disk, GPU, a hub that cannot be reached, no daemon
"""


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
        return "\n".join(part for part in (examples, notes, EXIT_CODES) if part)


def add_command(
    actions: Actions, name: str, command: Command, text: Help, *, with_config: bool = True
) -> argparse.ArgumentParser:
    """Have a command, and return its parser, which knows no argument yet but `--config`."""
    parser = actions.add_parser(
        name,
        help=text.summary,
        description=fill(text.description, _WIDTH),
        epilog=text.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command, parser=parser)
    if with_config:
        parser.add_argument(
            "--config",
            type=Path,
            action="append",
            metavar="YAML",
            help="configuration; again for each further file; by default $GAPLESS_CONFIG, else ./gapless.yaml",
        )
    return parser


def completed(action: argparse.Action, completer: Completer) -> None:
    """Have a shell complete an argument's values."""
    setattr(action, "completer", completer)  # noqa: B010  argcomplete looks for it there, argparse does not know it
