"""`gapless reload`: has the running daemon look at its configuration, or says what another one would change."""

import argparse
import secrets
import sys
import time
from pathlib import Path

from daemon.command_context import settings_of, settings_that_run
from daemon.durable import printable
from daemon.errors import CommandError, ExitCode, NotRunningError
from daemon.reload_files import ReloadAnswer, ReloadFiles, ReloadOrder, ReloadOutcome
from daemon.settings import Settings, load_settings
from daemon.settings_diff import diff_settings
from daemon.spool_lock import holder_of

_ANSWER_S = 30.0
_CHECK_S = 600.0  # that a model may be checked without getting on; the daemon ends that by itself, after stall_s
_LOOK_S = 0.05
_HEADS = {
    ReloadOutcome.APPLIED: "the configuration is applied:",
    ReloadOutcome.UNCHANGED: "nothing changes, the files say what runs already",
    ReloadOutcome.REFUSED: "refused, the configuration before it holds:",
}
_COMPARED = {
    ReloadOutcome.APPLIED: "this would change:",
    ReloadOutcome.UNCHANGED: "nothing would change",
    ReloadOutcome.REFUSED: "this would be refused as a whole:",
}


def reload(options: argparse.Namespace) -> int:
    """Ask for a look, or compare."""
    if options.now and options.dry_run:
        raise CommandError("found --now beside --dry-run, which changes nothing, expected one of them")
    if options.configs and not options.dry_run:
        raise CommandError("found a CONFIG without --dry-run; a daemon keeps to the files that it was started with")
    files = ReloadFiles(_spool_of_daemon(settings_that_run(options.config)))
    answer = (
        _compare(files, settings_of(options.configs or options.config))
        if options.dry_run
        else _ask(files, cuts_over=options.now)
    )
    print((_COMPARED if options.dry_run else _HEADS)[answer.outcome])
    for line in answer.lines:
        print(f"  {printable(line)}")
    return ExitCode.FIX_INPUT if answer.outcome is ReloadOutcome.REFUSED else ExitCode.OK


def _spool_of_daemon(settings: Settings) -> Path:
    spool = Path(settings.daemon.spool)
    if holder_of(spool) is None:
        raise NotRunningError(
            f"no daemon runs on the spool {printable(spool)}: `gapless run` reads its configuration at start"
        )
    return spool


def _compare(files: ReloadFiles, settings: Settings) -> ReloadAnswer:
    if not files.running.exists():
        raise CommandError(
            f"{printable(files.running)}: found none, expected the settings that run; a daemon on a full disk cannot write them"
        )
    diff = diff_settings(load_settings([files.running]), settings)
    if diff.refusals:
        return ReloadAnswer("", ReloadOutcome.REFUSED, diff.refusals)
    return ReloadAnswer("", ReloadOutcome.APPLIED if diff else ReloadOutcome.UNCHANGED, tuple(diff.lines()))


def _ask(files: ReloadFiles, *, cuts_over: bool) -> ReloadAnswer:
    order = ReloadOrder(secrets.token_hex(8), cuts_over)
    files.give_order(order)
    deadline_s, said = time.monotonic() + _ANSWER_S, ""
    while time.monotonic() < deadline_s:
        answer = files.read_answer(order.name)
        if answer is not None and answer.outcome is not ReloadOutcome.CHECKING:
            return answer
        if answer is not None and answer.lines[0] != said:
            deadline_s, said = time.monotonic() + _CHECK_S, answer.lines[0]
            print(f"{printable(said)}...", file=sys.stderr)
        time.sleep(_LOOK_S)
    raise NotRunningError(
        f"the daemon has not answered within {_ANSWER_S:g} s; one that is stopping, or runs with --once, looks no more, "
        "and whether it hangs says `gapless doctor`"
    )
