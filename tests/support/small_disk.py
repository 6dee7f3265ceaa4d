"""A small file system of a test's own, where the machine lets one be mounted."""

import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def small_disk(folder, size):
    """Mount a tmpfs of `size` (as `24m`) at a folder for the time of the block; gives None where that is not allowed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    disk = SmallDisk(folder, size)
    if os.geteuid() != 0 or not disk.mount():
        yield None
        return
    try:
        yield disk
    finally:
        disk.unmount()


class SmallDisk:
    """A tmpfs; filled and emptied by one file."""

    def __init__(self, folder, size):
        self.folder = folder
        self._size = size
        self._filler = folder / ".filler"

    def mount(self):
        mount, options = shutil.which("mount"), f"size={self._size}"
        if mount is None:
            return False
        command = [mount, "-t", "tmpfs", "-o", options, "gapless-test", str(self.folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def change(self, options):
        """Change it while it is there, as by `nr_inodes=100`."""
        subprocess.run([shutil.which("mount"), "-o", f"remount,{options}", str(self.folder)], check=True)

    def unmount(self):
        """Take it away at once, whoever has files open on it."""
        subprocess.run([shutil.which("umount"), "-l", str(self.folder)], check=False, capture_output=True)

    def fill(self):
        """Take all the space that is left."""
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):
                while os.write(fd, bytes(4096)):
                    pass
        finally:
            os.close(fd)

    def empty(self):
        self._filler.unlink(missing_ok=True)
