"""Writes the reference page of the configuration from the sections themselves.

`python -m daemon.settings_reference > docs/reference/configuration.md`
"""

import sys

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from daemon.file_options import FileOptions
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import SIZE_TEXT, Section, expectation, format_size, iterate_keys, note
from daemon.settings_pipeline import PipelineSettings
from daemon.settings_report import UNBUILT_KEYS
from daemon.yaml_schema import dump_yaml

_HEAD = """\
# The configuration

<!-- Written by `python -m daemon.settings_reference`; what it says stands in daemon/settings_daemon.py and beside it. -->

A configuration is one YAML file, or several that together are one (`gapless run CONFIG...`). This suffices:

```yaml
engines:   {main: {model: {path: Qwen/Qwen3-8B}}}
pipelines: {chat: {engine: main}}
```

Every key below that is left out has its default; `gapless check CONFIG...` prints them all.

- Names of engines and pipelines have at most 64 of `a-z`, `0-9`, `_` and `-`, the first a letter or a digit.
- Keys that end in `_s` are seconds. Sizes are bytes, with a unit if wanted: `B`, `kB`, `MB`, `GB`, `TB` (powers of 1000),
  `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024).
- Relative paths begin at the folder of the YAML file that they stand in; `~` is the home folder.
- The YAML is version 1.2: `true` and `false` are the only booleans; `yes`, `no`, `on` and `off` are texts. A key given
  twice is a mistake.
- Where there are several files, each may define engines and pipelines, but no name twice; only one may have the section `daemon`.
- All mistakes are shown at once, one line each: `FILE:LINE:COLUMN: KEY: found WHAT, expected WHAT`. The exit code is then 2.

## Changes while the daemon runs

A running daemon notices within about two seconds that one of its files was saved, in whatever way: in place, by a rename, by a
link that leads elsewhere. All files together are then read as one configuration, and applied as one or not at all. The last
column of the tables below, and `gapless check --explain`, say when a change of each key takes effect:

- *at once*;
- *with the next file claimed*: a file keeps the settings that it was claimed with, across restarts too;
- *at once up to what is allocated, beyond it after a drain*: an engine allocates for the limits that it is started with;
- *after a drain*: no further file is taken for that engine, those that were taken finish, then it is started anew. All that an
  edit changes in the section of that engine waits for this, and so do further edits until then. An engine that cannot be
  started with its new settings goes back to the last good ones and says so. For an engine that was given up after `max_restarts`
  nothing is waited for: it is started anew at once, and its files go on with it.
- *after a restart*: an edit that changes such a key is refused as a whole, with all that it changes besides.

A file with a mistake changes nothing. The reason is logged once and stays in `gapless status` and in
`gapless_config_last_reload_successful` until it is mended. Pipelines and engines can be added and removed: a removed pipeline
takes no more files, those that it runs finish, its folders stay where they are; a removed engine ends with its last file.

`gapless reload` has the daemon look at once and says what came of it, `gapless reload --dry-run NEW.yaml` what another
configuration would change. SIGHUP does the same as `gapless reload`. With `run --once` the files are read at start alone.
"""
_OPTIONS = f"""\
## Options of one file

`STEM.options.yaml`, dropped into the inbox before its file or together with it, changes for that file what its pipeline says.
It holds some of the keys {", ".join(f"`{name}`" for name in FileOptions.model_fields)} of `pipelines.NAME`, as they are
written there; what it does not name stays as the pipeline has it. With a mistake in it the file goes to `failed/` with the
reason and is not run. Where two files share a stem, `NAME.options.yaml` with the whole name of the file says which one it is
for. It goes to `done/` or `failed/` with its file. Options without a file wait for one, and `gapless status` says so.
"""
_PARTS: tuple[tuple[str, str, type[Section]], ...] = (
    ("daemon", "daemon", DaemonSettings),
    ("engines", "engines.NAME", EngineSettings),
    ("pipelines", "pipelines.NAME", PipelineSettings),
)


def render_reference() -> str:
    """Return the page in Markdown."""
    lines = [_HEAD]
    for top, prefix, kind in _PARTS:
        lines += [f"## {top}", "", str(kind.__doc__), ""]
        lines += ["| Key | Takes | Default | Meaning | A change takes effect |", "|---|---|---|---|---|"]
        lines += [_row(f"{prefix}.{'.'.join(path)}", field) for path, field in iterate_keys(kind)]
        lines.append("")
    lines += [_OPTIONS]
    lines += ["## Not built yet", "", "These keys of the format are refused by name in this version:", ""]
    lines += [f"- `{name.replace('*', 'NAME')}`" for name in sorted(UNBUILT_KEYS)]
    return "\n".join(lines) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{_default_text(field)}`"
    cells = (f"`{name}`", expectation(field), default, str(field.description), note(field, "change"))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _default_text(field: FieldInfo) -> str:
    """Return a default as YAML writes it."""
    is_size = note(field, "expected") == SIZE_TEXT
    default = format_size(field.default) if is_size else to_jsonable_python(field.default)
    return dump_yaml([default]).removeprefix("- ").strip()


if __name__ == "__main__":
    sys.stdout.write(render_reference())
