"""The command line: finds the command, runs it, turns what goes wrong into one line and an exit code."""

import argparse
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from daemon.cli_parser import make_parser, parse
from daemon.completion import complete, is_completing
from daemon.errors import DaemonError, ExitCode

_LAST_STREAM = 2  # standard error
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. What goes wrong is said in one line a mistake."""
    _open_missing_streams()
    parser = make_parser()
    if is_completing():
        complete(parser)
    options = parse(parser, arguments)
    try:
        code = _call(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        return int(ExitCode.OK)
    except DaemonError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except Exception as error:  # a fault of ours; whoever mends it asks for the traceback
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:  # names no file of ours
            _drop_output()
            print(f"what was asked for cannot be written to standard output: {error.strerror}", file=sys.stderr)
            return int(ExitCode.ENVIRONMENT)
        if os.environ.get("GAPLESS_TRACEBACK"):
            raise
        text, exit_code = _in_words(error)
        print(text, file=sys.stderr)
        return int(exit_code)
    except KeyboardInterrupt:
        return 128 + 2
    return code


def _in_words(error: Exception) -> tuple[str, ExitCode]:
    """Return what to say of an error that no command has told in its own words, and the exit code."""
    if isinstance(error, PermissionError) and error.filename is not None:  # folders of another user, say
        from daemon.durable import printable  # noqa: PLC0415  commands start faster without it

        return f"cannot look at {printable(str(error.filename))}: permission denied", ExitCode.ENVIRONMENT
    text = f"internal error: {type(error).__name__}: {error} (GAPLESS_TRACEBACK=1 shows where)"
    return text, ExitCode.OUR_FAULT


def _open_missing_streams() -> None:
    """Open /dev/null for each of the three standard streams that whoever started us had closed (`>&-`).

    Else the next files to be opened would get their numbers, and what is meant for a terminal would be written into them.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:  # the lowest number that is free
        os.set_inheritable(fd, True)  # the processes that we start need them too
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0, "r")
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _drop_output() -> None:
    """Send what is left of the output to /dev/null, so that the interpreter does not complain at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _call(options: argparse.Namespace) -> int:
    name, _, function = str(options.command).partition(":")
    gc.disable()  # imports make hardly any garbage, and looking for it was a fifth of the time that they take
    module = importlib.import_module(name)
    gc.freeze()
    gc.enable()
    return int(getattr(module, function)(options))


if __name__ == "__main__":
    sys.exit(main())
