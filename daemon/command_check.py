"""`gapless check`: YAML files, or what can be known of request files before they are run."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon.command_context import config_paths, folders_of, pick_pipeline, settings_of
from daemon.durable import printable
from daemon.errors import ExitCode, FileError, InputModifiedError
from daemon.file_check import FileCheck, check_lines, check_tokens
from daemon.file_kinds import FileKind, kind_of
from daemon.file_rules import why_name_is_left, why_name_is_refused, why_no_file
from daemon.json_text import json_document
from daemon.progress import StatusLine
from daemon.report_table import duration
from daemon.request_line import in_words
from daemon.settings import render_effective
from daemon.settings_explained import render_explained
from pipelines.counted import counted

_YAML = frozenset({".yaml", ".yml"})
_MAX_SHOWN = 10  # lines that are listed one by one
_LABEL_WIDTH = 10  # columns


def check(options: argparse.Namespace) -> int:
    """Print the effective configuration, or what is wrong with request files and what they will take."""
    configs = [path for path in options.files if path.suffix in _YAML]
    requests = [path for path in options.files if path.suffix not in _YAML]
    if configs or not requests:
        settings = settings_of(configs or options.config)
        print(render_explained(settings) if options.explain else render_effective(settings), end="")
    line = StatusLine(sys.stderr)
    codes = [_check_one(path, options, configs, line) for path in requests]
    return max(codes, default=ExitCode.OK)


def _check_one(path: Path, options: argparse.Namespace, configs: Sequence[Path], line: StatusLine) -> int:
    """Check a file; one that cannot be run at all keeps the others from nothing."""
    if (reason := why_no_file(path)) is not None:
        print(f"{printable(path)}: {reason}", file=sys.stderr)
        return ExitCode.FIX_INPUT
    try:
        code = _check_file(path, options, configs, line)
    except (FileError, InputModifiedError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if (reason := why_name_is_left(path.name) or why_name_is_refused(path.name)) is not None:
        print(f"{printable(path)}: an inbox does not run it under this name: {reason}", file=sys.stderr)
        return max(code, ExitCode.SOME_FAILED)
    return code


def _check_file(path: Path, options: argparse.Namespace, configs: Sequence[Path], line: StatusLine) -> int:
    checked = check_lines(path, _template_of(path, options, configs))
    why_not = _why_no_tokens(options, configs)
    if why_not is None:
        settings = settings_of(configs or options.config)
        pipeline = pick_pipeline(settings, options.pipeline)
        try:
            checked = check_tokens(checked, settings, pipeline, folders_of(settings, pipeline).outbox, line.show)
        finally:
            line.end()
    if options.json:
        sys.stdout.write(json_document(checked.as_dict()).decode())
    else:
        sys.stdout.write(_render(checked, why_not))
    return ExitCode.OK if checked.is_good else ExitCode.SOME_FAILED


def _template_of(path: Path, options: argparse.Namespace, configs: Sequence[Path]) -> str | None:
    """Return the pipeline's template where the file is a table; other files are checked without a configuration too."""
    kind = kind_of(path.name)
    if kind is None or not kind.is_table:
        return None
    settings = settings_of(configs or options.config)
    return settings.pipelines[pick_pipeline(settings, options.pipeline)].template


def _why_no_tokens(options: argparse.Namespace, configs: Sequence[Path]) -> str | None:
    """Say why tokens are not counted; None where they are."""
    if options.no_tokens:
        return "not counted, as --no-tokens says"
    if not (configs or options.config or os.environ.get("GAPLESS_CONFIG")) and not config_paths(None)[0].exists():
        return "not counted: there is no gapless.yaml here, and no --config says which model it is"
    return None


def _render(checked: FileCheck, why_not: str | None) -> str:
    found = checked.found
    good, bad = found.num_requests - found.num_bad - len(checked.refused), found.num_bad
    refused = f", {len(checked.refused):,} that would be refused" if checked.refused else ""
    head = f"{counted(good, 'good request')}, {bad:,} bad{refused}, {counted(found.num_blank, 'blank line')}"
    rows = [f"{printable(checked.path)}: {head}"]
    rows += _listed([bad_line.message for bad_line in found.bad_lines], found.num_bad)
    if checked.is_rejected:
        rows.append("  the whole file would be refused for that: on_bad_line of the pipeline is reject")
    name, kind = checked.path.name, kind_of(checked.path.name) or FileKind.LINES
    refusals = [f"{name} {in_words(one.place, kind)}: {one.message}" for one in checked.refused]
    rows += _listed(refusals, len(refusals))
    tokens = _tokens(checked) if why_not is None else [("tokens", why_not)]
    rows += [f"  {label:<{_LABEL_WIDTH}}{text}" for label, text in tokens]
    return "".join(f"{printable(row)}\n" for row in rows)


def _listed(messages: Sequence[str], count: int) -> list[str]:
    rows = [f"  {message}" for message in messages[:_MAX_SHOWN]]
    return rows + ([f"  and {count - _MAX_SHOWN:,} more"] if count > _MAX_SHOWN else [])


def _tokens(checked: FileCheck) -> list[tuple[str, str]]:
    lengths = checked.counts.prompt_tokens
    rows = [("model", str(checked.model))]
    if lengths:
        spread = f"{min(lengths):,} to {counted(max(lengths), 'token')} each, the median {checked.counts.median():,}"
        rows.append(("prompts", f"{spread}; {sum(lengths):,} in all"))
        rows.append(("answers", f"at most {counted(checked.counts.max_output_tokens, 'token')} in all"))
    if checked.num_too_long:
        rows.append(("too long", f"{checked.num_too_long:,} of the requests, for the model's context"))
    rows.append(("time", _time(checked)))
    return rows


def _time(checked: FileCheck) -> str:
    seconds, speed = checked.seconds(), checked.speed
    if seconds is None or speed is None:
        return "unknown: no report in the outbox tells how fast this model runs here"
    pace = f"{speed.tokens_per_s:,.0f} tokens/s and {speed.tokens_per_answer:,.0f} tokens an answer"
    return f"about {duration(seconds[0])} at the {pace} of {printable(speed.stem)}; at most {duration(seconds[1])}"
