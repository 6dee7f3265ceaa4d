"""What an engine was given and has not answered, and the search for a request that ends it.

The problem: when an engine's process dies, one of the requests in flight may have been the cause. Sent again with all others it
would end the engine again and again; but nobody can tell which one it was. So those in flight are suspects. They run apart from
others, halved at each further death, until the poison is alone and is given up by name; the rest is answered on the way.

    add --> fresh ---------------------- take --> in flight --answer--> gone
                                           ^          |
      recovered (died in earlier runs) --> suspects <-' death: as one group the first time, then its halves
                                           (a stack of groups)   `-- alone, and not for the first time --> doomed

What dies alone is doomed, which becomes final when the engine proves that it can work at all, or when nothing is left that
could prove it. Several doomed in a row, with no such proof in between, mean that the engine is at fault and not they.

Invariants:
 1. A request is in one place: fresh, recovered, a group of suspects, in flight or doomed.
 2. Suspects are in flight with those of their group alone. While there are suspects nothing else is sent, and they wait until
    what is in flight has ended.
 3. Only what died alone is doomed, and only at its third death or later: a lonely request may have met two accidents. Where that
    death may be an accident itself, as one by SIGKILL, which anybody can send, it has to have died alone before.
 4. Each death with requests in flight narrows the search: a group gets smaller, or its members come nearer to being doomed.
    So one poison among N suspects takes about log2 N deaths, and no other limit is needed.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from daemon.errors import InvariantError
from daemon.submission import Submission
from pipelines.core.request import TextRequest

MIN_DEATHS = 3  # see invariant 3
# More than any search needs. A request that always takes the whole machine down leaves nothing that could prove the engine.
MAX_DEATHS = 24


@dataclass(slots=True, eq=False)
class _Entry:
    """One request that is not answered."""

    submission: Submission
    num_deaths: int
    has_died_alone: bool = False  # in this run of the daemon
    sent_s: float = 0.0  # CLOCK_MONOTONIC, of the present attempt

    @property
    def due_s(self) -> float:
        """When the present attempt has taken too long."""
        return self.sent_s + (self.submission.timeout_s or 0.0)


class Outstanding:
    """The requests of one engine. `new_key` gives each attempt a key of its own. Used from the event loop's thread."""

    def __init__(self, engine: str, new_key: Callable[[], int]) -> None:
        self._engine = engine
        self._new_key = new_key
        self._fresh: deque[_Entry] = deque()
        self._recovered: list[_Entry] = []
        self._groups: list[list[_Entry]] = []  # of suspects; the last one is next
        self._in_flight: dict[int, _Entry] = {}  # by key
        self._timed: dict[int, _Entry] = {}  # of those in flight the ones that have a timeout
        self._doomed: list[_Entry] = []
        self._is_trial = False  # whether what is in flight is a group of suspects

    def __len__(self) -> int:
        return sum(len(place) for place in self._places())

    @property
    def num_suspects(self) -> int:
        """Requests that may be what ended the engine."""
        num_tried = len(self._in_flight) if self._is_trial else 0
        return num_tried + len(self._recovered) + len(self._doomed) + sum(map(len, self._groups))

    @property
    def num_doomed(self) -> int:
        """Requests that ended the engine alone, with no proof since that it works."""
        return len(self._doomed)

    @property
    def keys_in_flight(self) -> tuple[int, ...]:
        """The keys under which something may still be said."""
        return tuple(self._in_flight)

    def add(self, submission: Submission) -> None:
        """Take a request."""
        entry = _Entry(submission, submission.num_deaths)
        (self._recovered if entry.num_deaths else self._fresh).append(entry)

    def take(self, now_s: float) -> list[TextRequest]:
        """Return what is to be sent now, under new keys: invariant 2."""
        if self._recovered or self._groups:
            if self._in_flight:
                return []
            self._sort_recovered()
            entries = self._groups.pop()
            self._is_trial = True
        elif self._is_trial and self._in_flight:
            return []
        else:
            entries = [*self._fresh]
            self._fresh.clear()
            self._is_trial = False
        return [self._send(entry, now_s) for entry in entries]

    def answer(self, key: int) -> Submission | None:
        """Take out what was sent under a key; None if nothing is known under that key any more."""
        entry = self._in_flight.pop(key, None)
        self._timed.pop(key, None)
        return entry.submission if entry else None

    def note_death(self, *, may_be_accident: bool = False) -> int:
        """Take note that nothing is in flight any more, because a process died; return how many requests were."""
        entries = [*self._in_flight.values()]
        was_trial = self._is_trial
        self._in_flight.clear()
        self._timed.clear()
        self._is_trial = False
        for entry in entries:
            entry.num_deaths += 1
            entry.submission.on_death(entry.num_deaths)
        if len(entries) == 1 and _is_guilty(entries[0], may_be_accident=may_be_accident):
            self._doomed += entries
        elif entries:
            self._groups += _halves(entries) if was_trial else [entries]
        if len(entries) == 1:
            entries[0].has_died_alone = True
        return len(entries)

    def recall(self) -> None:
        """Take back what is in flight, because its processes are ended on purpose: nothing is suspected for that."""
        entries = [*self._in_flight.values()]
        was_trial, self._is_trial = self._is_trial, False
        self._in_flight.clear()
        self._timed.clear()
        if was_trial and entries:
            self._groups.append(entries)
        else:
            self._fresh.extendleft(reversed(entries))

    def give_up(self) -> list[Submission]:
        """Take out what is doomed, because the engine has shown that it works."""
        doomed, self._doomed = self._doomed, []
        return [entry.submission for entry in doomed]

    def give_up_the_last(self) -> list[Submission]:
        """Take out what is doomed if nothing is left that could show whether the engine works, or it died all too often."""
        if not self._doomed:
            return []
        is_all = len(self) == len(self._doomed)
        return self.give_up() if is_all or any(entry.num_deaths >= MAX_DEATHS for entry in self._doomed) else []

    def pardon(self) -> None:
        """Let what is doomed try again, because the engine was at fault."""
        self._groups = [[entry] for entry in self._doomed] + self._groups
        self._doomed = []

    def withdraw(self, file: int) -> tuple[list[Submission], tuple[int, ...]]:
        """Take out every request of a file; return them and the keys under which some are in flight."""

        def is_other(entry: _Entry) -> bool:
            return entry.submission.request.file != file

        entries = [entry for place in self._places() for entry in place if not is_other(entry)]
        keys = tuple(key for key, entry in self._in_flight.items() if not is_other(entry))
        self._fresh = deque(filter(is_other, self._fresh))
        self._recovered = [*filter(is_other, self._recovered)]
        self._doomed = [*filter(is_other, self._doomed)]
        self._groups = [left for group in self._groups if (left := [*filter(is_other, group)])]
        for key in keys:
            self.answer(key)
        return [entry.submission for entry in entries], keys

    def overdue(self, now_s: float) -> list[int]:
        """Return the keys of the attempts that have taken longer than their request may."""
        return [key for key, entry in self._timed.items() if now_s >= entry.due_s]

    def check_integrity(self) -> None:
        """Prove invariants 1 and 2.

        Raises:
            InvariantError: one is broken.
        """
        entries = [id(entry) for place in self._places() for entry in place]
        if len(entries) != len(set(entries)):
            raise InvariantError("invariant 1: a request is in two places")
        if not all(self._groups):
            raise InvariantError("an empty group of suspects")
        if len({entry.num_deaths > 0 for entry in self._in_flight.values()}) > 1:
            raise InvariantError("invariant 2: suspects are in flight with others")
        if self._timed.items() - self._in_flight.items():
            raise InvariantError("a request has a time and is not in flight")

    def _places(self) -> Iterator[list[_Entry]]:
        yield from ([*self._fresh], self._recovered, self._doomed, [*self._in_flight.values()])
        yield from self._groups

    def _send(self, entry: _Entry, now_s: float) -> TextRequest:
        key = self._new_key()
        entry.sent_s = now_s
        entry.submission.on_sent(self._engine)
        self._in_flight[key] = entry
        if entry.submission.timeout_s is not None:
            self._timed[key] = entry
        return entry.submission.request.with_key(key)

    def _sort_recovered(self) -> None:
        """Group what died in earlier runs by its deaths: those of one group had as many, and most had the smallest group."""
        by_deaths: dict[int, list[_Entry]] = {}
        for entry in self._recovered:
            by_deaths.setdefault(entry.num_deaths, []).append(entry)
        self._recovered = []
        for num_deaths in sorted(by_deaths):
            self._groups += _halves(by_deaths[num_deaths]) if num_deaths > 1 else [by_deaths[num_deaths]]


def _is_guilty(entry: _Entry, *, may_be_accident: bool) -> bool:
    """Whether a request that has died alone is doomed: invariant 3."""
    return entry.num_deaths >= MIN_DEATHS and (entry.has_died_alone or not may_be_accident)


def _halves(entries: list[_Entry]) -> list[list[_Entry]]:
    """Cut a group in two, the first half last, since that one is next; one alone stays whole."""
    middle = (len(entries) + 1) // 2
    return [half for half in (entries[middle:], entries[:middle]) if half]
