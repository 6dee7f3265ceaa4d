"""A rename that never replaces anything, which neither `os.rename` nor `os.link` with an `unlink` behind it is alone."""

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1  # linux/fs.h
_NOT_HERE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM})  # a file system, a kernel, a sandbox without it


def rename_to_free_name(source: Path, target: Path) -> bool:
    """Rename a file within a file system; False, and nothing done, where the new name is taken.

    Watchers of the folder see one rename. Where the system has no such call, the file gets its second name before it loses
    the first; where there are no links either, a plain rename has to do, behind a look whether the name is free.

    Raises:
        OSError: it cannot be renamed.
    """
    if (code := _rename_exclusively(source, target)) == 0:
        return True
    if code == errno.EEXIST:
        return False
    if code not in _NOT_HERE:
        raise OSError(code, os.strerror(code), os.fspath(source), None, os.fspath(target))
    return _link_and_unlink(source, target)


def _rename_exclusively(source: Path, target: Path) -> int:
    """Ask the kernel; return 0 or an error code."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return errno.ENOSYS
    failed = renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def _link_and_unlink(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:
        if os.path.lexists(target):
            return False
        source.rename(target)
    else:
        source.unlink()
    return True
