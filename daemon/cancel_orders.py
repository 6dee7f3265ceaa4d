"""`NAME.cancel` in the inbox: an empty file that asks to end the file NAME, given by its stem or its full name.

An order for a file that is being run is carried out, and removed once the journal has it. One for a file that waits in the
inbox waits with it. One for a file that is in neither place would be a trap for a later file of that name: it goes to failed/
with its reason.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from daemon.durable import DiskStorage, printable, storage_errors
from daemon.errors import StorageError
from daemon.file_kinds import kind_of, split_name
from daemon.folders import Folders
from daemon.outbox import move_input, reason_document
from pipelines.counted import counted

log = logging.getLogger(__name__)

CANCEL_SUFFIX = ".cancel"
INVALID_CODE = "invalid_cancel"


class Cancellable(Protocol):
    """A file being run."""

    stem: str
    path: Path  # in work/

    @property
    def is_cancelled(self) -> bool:
        """Whether it ends, or has ended, by a cancel."""
        ...

    def cancel(self, order: Path | None = None) -> bool:
        """End it; False if it is too late."""
        ...


class CancelOrders:
    """The orders in one inbox. Used from one thread."""

    def __init__(self, pipeline: str, folders: Folders) -> None:
        self._pipeline = pipeline
        self._folders = folders
        self.waiting: Mapping[str, str] = {}  # orders that wait, and for what

    def carry_out(self, find: Callable[[str], Cancellable | None]) -> None:
        """Look at the inbox once; `find` gives the run of a stem or a full name.

        Raises:
            StorageError: the inbox cannot be listed.
        """
        waiting = {}
        for order in list(orders_in(self._folders.inbox)):
            target = order.name.removesuffix(CANCEL_SUFFIX)
            try:
                if (why := self._carry_out(order, target, find(target))) is not None:
                    waiting[order.name] = why
            except StorageError as error:
                if error.code == errno.ENOENT:
                    continue  # its run has just removed it, or somebody took it back
                if order.name not in self.waiting:
                    log.error("pipeline %s: %s", self._pipeline, error)  # noqa: TRY400  one line
                waiting[order.name] = str(error)
        self.waiting = waiting

    def _carry_out(self, order: Path, target: str, run: Cancellable | None) -> str | None:
        """Do what one order asks for; return why it waits, if it does."""
        if (found := _what_is_in(order)) is not None:
            self._refuse(order, f"found {found} in it, expected an empty file")
        elif run is not None:
            if not run.cancel(order):
                if not run.is_cancelled:  # else it has done its work, and was seen before it was removed
                    name = printable(order.name)
                    log.info("pipeline %s: %s comes too late: its file is being published", self._pipeline, name)
                with storage_errors("remove", order):
                    order.unlink(missing_ok=True)
        elif named_in(self._folders.inbox, target):
            return "it waits until its file is taken, which is then ended at once"
        else:
            self._refuse(order, f"no file {printable(target)} is being run or waits in the inbox")
        return None

    def _refuse(self, order: Path, why: str) -> None:
        message = f"{printable(order.name)}: {why}"
        reason = reason_document(order.name, INVALID_CODE, message)
        moved = move_input(DiskStorage(), order, order.name, self._folders.failed, reason)
        if moved is not None:
            log.warning("pipeline %s: %s; it is now %s", self._pipeline, message, printable(moved))


def orders_in(inbox: Path) -> Iterator[Path]:
    """Yield the orders that lie in a folder, by name.

    Raises:
        StorageError: it cannot be listed.
    """
    with storage_errors("list", inbox):
        paths = sorted(inbox.iterdir())
        for path in paths:
            name = path.name
            if name.endswith(CANCEL_SUFFIX) and not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def named_in(folder: Path, target: str) -> list[Path]:
    """Return the request files in a folder whose stem or full name is `target`.

    Raises:
        StorageError: it cannot be listed.
    """
    with storage_errors("list", folder):
        paths = sorted(folder.iterdir())
    return [
        path for path in paths if kind_of(path.name) is not None and target in {path.name, split_name(path.name)[0]}
    ]


def _what_is_in(order: Path) -> str | None:
    """Return what an order holds that it should not, None if it is empty or blank."""
    with storage_errors("read", order), order.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return counted(size, "byte") if file.read(64).strip() else None
