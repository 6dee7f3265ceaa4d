"""`gapless init`: two questions, one configuration that runs as it is."""

import argparse
import json
import sys
from pathlib import Path

from daemon.durable import DiskStorage, atomic_write_bytes, printable
from daemon.errors import CommandError, ExitCode, SettingsError
from daemon.settings import load_settings
from daemon.settings_schema import SCHEMA_TITLE, render_schema
from daemon.starter_config import SCHEMA_NAME, has_nvidia_gpu, starter_config, suggested_model

_MODEL_QUESTION = "Which model? A hub name (org/name), a folder, a .gguf file, or package:NAME"
_FOLDER_QUESTION = "Which folder shall hold the inbox and the outbox?"
_FOLDER = "./spool"


def init(options: argparse.Namespace) -> int:
    """Ask, write, and say what comes next."""
    path: Path = options.output
    if path.exists() and not options.force:
        raise CommandError(f"{printable(path)} is there already: --force replaces it, --output names another one")
    if not path.parent.is_dir():
        shown_folder = printable(path.parent)
        raise CommandError(f"--output {printable(path)}: found no folder {shown_folder}, expected one that exists")
    has_gpu = has_nvidia_gpu()
    model = _answer(options, options.model, _MODEL_QUESTION, suggested_model(has_gpu=has_gpu))
    folder = _answer(options, options.folder, _FOLDER_QUESTION, _FOLDER)
    schema = _schema_beside(path)
    _write(path, starter_config(model, folder, has_gpu=has_gpu))
    atomic_write_bytes(DiskStorage(), schema, render_schema().encode(), is_durable=False)
    shown = printable(path)
    config = "" if path == Path("gapless.yaml") else f" --config {shown}"
    print(f"wrote {shown}, and {SCHEMA_NAME} beside it, by which editors complete and check its keys; next:")
    steps = (
        (f"gapless doctor{config}", "look at this machine and this model"),
        (f"gapless run {shown}", "start the daemon"),
        (f"gapless submit{config} --wait FILE", "in another terminal: run a file of requests"),
    )
    width = max(len(command) for command, _ in steps)
    for command, meaning in steps:
        print(f"  {command:<{width}}    {meaning}")
    return ExitCode.OK


def _schema_beside(path: Path) -> Path:
    """Return where the schema belongs; nobody else's file is there."""
    schema = path.with_name(SCHEMA_NAME)
    try:
        content = json.loads(schema.read_bytes())
    except FileNotFoundError:
        return schema
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or content.get("title") != SCHEMA_TITLE:
        raise CommandError(f"{printable(schema)}: found something else than the schema of Gapless, which belongs there")
    return schema


def _answer(options: argparse.Namespace, given: str | None, question: str, default: str) -> str:
    """Return what the command line says, else what a person answers, else the default."""
    if given is not None:
        return given
    if options.yes:
        return default
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask at: give --model and --folder, or --yes for the defaults")
    try:
        return input(f"{question} [{default}] ").strip() or default
    except EOFError:
        raise CommandError("no answer came; nothing was written") from None


def _write(path: Path, text: str) -> None:
    """Write the configuration where it belongs, once it is known to be one."""
    draft = path.with_name(f".{path.name}.draft.yaml")
    storage = DiskStorage()
    atomic_write_bytes(storage, draft, text.encode(), is_durable=False)
    try:
        load_settings([draft])
    except SettingsError as error:
        problem = error.problems[0]
        raise CommandError(f"found {problem.found}, expected {problem.expected}") from error
    finally:
        draft.unlink()
    atomic_write_bytes(storage, path, text.encode(), is_durable=True)
