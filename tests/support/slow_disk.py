"""The command line on a disk whose every sync takes GAPLESS_SYNC_MS longer, as a worn or a network one does."""

import os
import sys
import time

from daemon import cli
from daemon.durable import DiskStorage


def main():
    delay_s = float(os.environ["GAPLESS_SYNC_MS"]) / 1e3
    for name in ("sync", "sync_dir"):
        sync = getattr(DiskStorage, name)

        def slow(storage, what, sync=sync):
            time.sleep(delay_s)
            sync(storage, what)

        setattr(DiskStorage, name, slow)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
