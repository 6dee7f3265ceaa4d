"""Which things in an inbox are request files to take, by name and kind alone."""

import os
import stat
from pathlib import Path

from daemon.cancel_orders import CANCEL_SUFFIX
from daemon.file_kinds import KINDS, OPTIONS_SUFFIX, kind_of, split_name

MAX_NAME_BYTES = 200
MAX_OPEN_FILES = 128  # of a pipeline, run at once, each with two descriptors; others wait in the inbox
_SHORT_STEM_BYTES = 180  # leaves room for ~2 and the like
SUBMITTED_PREFIX = ".gapless-submit-"  # of what `gapless submit` has not given its name yet
_LEFT_SUFFIXES = (".tmp", ".part", ".partial", ".crdownload", ".download", "~")


def why_name_is_left(name: str) -> str | None:
    """Say why a file of this name is left where it is; None if it is one to take."""
    if name.startswith("."):
        return "its name begins with a dot"
    if name.startswith("~$") or name.lower().endswith(_LEFT_SUFFIXES):
        return "its name is that of an unfinished copy"
    if name.endswith(OPTIONS_SUFFIX):
        return "it is taken with the file that it is for"
    if name.endswith(CANCEL_SUFFIX):
        return "it asks to cancel a file, and goes when that is done"
    return why_no_file_is_meant(name)


def is_name_unfinished(name: str) -> bool:
    """Whether a name is that of something hidden or of a copy that goes on: it is left without a word."""
    return name.startswith((".", "~$")) or name.lower().endswith(_LEFT_SUFFIXES)


def comes_whole(former_name: str, name: str) -> bool:
    """Whether a rename says by itself that a file is complete and that all it needs is there before it.

    Not any unfinished name will do: tools that copy whole folders rename each file too, and bring a file before its options.
    """
    return former_name == f".{name}.tmp" or former_name.startswith(SUBMITTED_PREFIX)


def why_no_file_is_meant(name: str) -> str | None:
    """Say why nothing will ever be done with a file of this name; None for request files and what belongs to them."""
    if name.endswith((OPTIONS_SUFFIX, CANCEL_SUFFIX)) or kind_of(name) is not None:
        return None
    if name.endswith(".options.yml"):
        return f"options are taken from {OPTIONS_SUFFIX} alone"
    return f"its extension {split_name(name)[1]!a} is none of {', '.join(KINDS)}"


def why_kind_is_left(mode: int) -> str | None:
    """Say why a thing of this mode (`st_mode`, links not followed) is left where it is; None for an ordinary file."""
    if stat.S_ISREG(mode):
        return None
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return f"it is {kinds.get(stat.S_IFMT(mode), 'a device')}, not an ordinary file"


def why_no_file(path: Path) -> str | None:
    """Say why a person who names this path names no file that could be read; None if it is an ordinary one, or leads to one."""
    try:
        return why_kind_is_left(path.stat().st_mode)
    except OSError as error:
        return (error.strerror or str(error)).lower()


def why_name_is_refused(name: str) -> str | None:
    """Say why a file of this name cannot be run, though it would be taken; None if it can."""
    num_bytes = len(os.fsencode(name))
    if num_bytes <= MAX_NAME_BYTES:
        return None
    return f"its name has {num_bytes} bytes, at most {MAX_NAME_BYTES} expected, as the names of its results are longer"


def short_stem(name: str) -> str:
    """Return a file's stem, cut so that the names made of it stay within what file systems take."""
    return os.fsencode(split_name(name)[0])[:_SHORT_STEM_BYTES].decode("utf-8", "ignore")
