"""Notices that the configuration's files hold something else than before, however they were saved.

What counts is content: it is read and hashed at each look. So in place, by rename, through a link that leads elsewhere or through
a link among the folders above (as a ConfigMap is mounted) are all the same, on any file system.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.yaml_source import MAX_BYTES

LOOK_S = 0.5  # between two looks


@dataclass(frozen=True, slots=True)
class Content:
    """What all files held at one instant."""

    digests: tuple[str, ...]


def read_content(paths: Sequence[Path]) -> Content:
    """Return what the files at `paths` hold now; one that cannot be read holds the reason."""
    return Content(tuple(map(_digest, paths)))


class ConfigWatch:
    """Watches the files of one configuration. Used from one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.known = read_content(paths)  # what was dealt with last
        self._seen = self.known

    def look(self) -> Content | None:
        """Return what is new and was found twice in a row: whoever writes may be in the middle of it."""
        content, before = read_content(self.paths), self._seen
        self._seen = content
        return content if content == before and content != self.known else None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.blake2b(file.read(MAX_BYTES + 1), digest_size=16).hexdigest()
    except OSError as error:
        return f"unreadable: {error.errno}"
