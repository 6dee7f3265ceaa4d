"""The command line: finds the command, runs it, turns what goes wrong into one line and an exit code."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from daemon.cli_parser import make_parser
from daemon.errors import DaemonError, ExitCode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. What goes wrong is said in one line a mistake."""
    options = make_parser().parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()
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
    return code


if __name__ == "__main__":
    sys.exit(main())
