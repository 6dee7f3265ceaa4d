"""What a daemon and the commands beside it leave each other in the spool: orders to look, answers, the settings that run."""

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from daemon.durable import PRIVATE_MODE, DiskStorage, atomic_write_bytes, storage_errors
from daemon.errors import StorageError
from daemon.json_text import json_document
from daemon.settings import Settings, render_effective

_ORDER = ".gapless.reload"  # holds the order's name, and whether to cut over; the daemon takes it away
_CUT_OVER = "now"
_ANSWER = ".gapless.reloaded"
_RUNNING = ".gapless.settings.yaml"
_MAX_ORDER_BYTES = 100


class ReloadOutcome(StrEnum):
    """What came of a look at the files."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    CHECKING = "checking"  # nothing yet: models are being checked


@dataclass(frozen=True, slots=True)
class ReloadOrder:
    """What somebody asks of a daemon."""

    name: str
    cuts_over: bool  # engines are not to wait for the files that they run


@dataclass(frozen=True, slots=True)
class ReloadAnswer:
    """What a daemon says to an order."""

    order: str
    outcome: ReloadOutcome
    lines: tuple[str, ...]  # what changes and when, or why nothing does


class ReloadFiles:
    """The files of one spool."""

    def __init__(self, spool: Path) -> None:
        self.running = spool / _RUNNING  # the settings in effect, all of them, as YAML
        self._order = spool / _ORDER
        self._answer = spool / _ANSWER

    def give_order(self, order: ReloadOrder) -> None:
        """Ask the daemon to look at its files now.

        Raises:
            StorageError: the order cannot be written.
        """
        words = [order.name, _CUT_OVER] if order.cuts_over else [order.name]
        atomic_write_bytes(DiskStorage(), self._order, f"{' '.join(words)}\n".encode(), is_durable=False)

    def take_order(self) -> ReloadOrder | None:
        """Return an order, once."""
        with suppress(OSError), self._order.open("rb") as file:
            name, _, word = file.read(_MAX_ORDER_BYTES).decode("utf-8", "replace").strip().partition(" ")
            self._order.unlink()
            return ReloadOrder(name, word == _CUT_OVER)
        return None

    def give_answer(self, answer: ReloadAnswer) -> None:
        """Answer an order.

        Raises:
            StorageError: the answer cannot be written.
        """
        content = {"order": answer.order, "outcome": answer.outcome, "lines": list(answer.lines)}
        data = json_document(content)
        atomic_write_bytes(DiskStorage(), self._answer, data, is_durable=False, mode=PRIVATE_MODE)

    def read_answer(self, order: str) -> ReloadAnswer | None:
        """Return the answer to an order, None while there is none; that models are checked is told to every order.

        Raises:
            StorageError: it cannot be read.
        """
        if not self._answer.exists():
            return None
        with storage_errors("read", self._answer):
            value = json.loads(self._answer.read_bytes())
        outcome = ReloadOutcome(value["outcome"])
        if outcome is not ReloadOutcome.CHECKING and value["order"] != order:
            return None
        return ReloadAnswer(order, outcome, tuple(value["lines"]))

    def note_running(self, settings: Settings) -> None:
        """Write down the settings in effect, for this user's eyes alone: a URL among them may be a secret.

        Raises:
            StorageError: they cannot be written.
        """
        data = render_effective(settings).encode()
        try:
            atomic_write_bytes(DiskStorage(), self.running, data, is_durable=False, mode=PRIVATE_MODE)
        except StorageError:
            with suppress(OSError):
                self.running.unlink(missing_ok=True)  # those of before do not run any more
            raise
