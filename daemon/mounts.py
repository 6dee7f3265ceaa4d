"""Which file system a folder lies on, as far as that decides whether events tell of every change in it."""

import os
import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
# Other machines change their files, and the kernel here hears nothing of it.
_SHARED = re.compile(
    r"nfs4?|cifs|smb3|smbfs|9p|afs|beegfs|ceph|coda|gfs2|glusterfs|gpfs|lustre|ncpfs|ocfs2|orangefs|pvfs2"
    r"|prl_fs|vboxsf|virtiofs|vmhgfs|fuse|fuse\..*"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def file_system_of(folder: Path, mountinfo: Path = MOUNTINFO) -> str:
    """Return the kernel's name of the file system that holds a folder, "" where it cannot be told."""
    try:
        table = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    real = os.path.realpath(folder)
    found, length = "", -1
    for line in filter(
        None, table.split("\n")
    ):  # a mount point may hold other characters at which `splitlines` would cut
        before, _, after = line.partition(" - ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        holds = real == point or real.startswith(point.rstrip("/") + "/")
        if holds and len(point) >= length:  # a later mount at the same place hides the earlier one
            found, length = after.split(" ")[0], len(point)
    return found


def is_shared(file_system: str) -> bool:
    """Whether other machines may change files of it without an event here."""
    return _SHARED.fullmatch(file_system) is not None
