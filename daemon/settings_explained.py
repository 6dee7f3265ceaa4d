"""The configuration as a table: each key with its value and when a change of it takes effect."""

from collections.abc import Iterator

from daemon.settings import Settings
from daemon.settings_fields import Section, change_of, iterate_keys, shown_value
from daemon.status_table import table


def render_explained(settings: Settings) -> str:
    """Return the table; each line ends in a newline."""
    rows = [
        *_rows("daemon", settings.daemon),
        *(row for name, engine in settings.engines.items() for row in _rows(f"engines.{name}", engine)),
        *(row for name, pipeline in settings.pipelines.items() for row in _rows(f"pipelines.{name}", pipeline)),
    ]
    lines = table(("KEY", "VALUE", "A CHANGE TAKES EFFECT"), rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _rows(prefix: str, section: Section) -> Iterator[tuple[str, str, str]]:
    for path, field in iterate_keys(type(section)):
        yield ".".join((prefix, *path)), shown_value(section, path), change_of(field)
