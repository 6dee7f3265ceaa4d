"""The requests of one engine, each from when it is handed over until it has its answer, or until it is withdrawn.

Credits bound how many there are; `outstanding` knows where each is and what a death makes of those in flight. An answer is
passed on once, and what is said under an old key is dropped.
"""

from collections.abc import Callable, Iterable
from itertools import count

from daemon.credits import Credits
from daemon.outstanding import Outstanding
from daemon.process_pair import ProcessPair
from daemon.submission import Answer, Submission, Unanswered, ended_the_engine, took_too_long
from pipelines.channel import Peer
from pipelines.config import EngineConfig
from pipelines.core.request import RequestOutput, RequestRefused

_MAX_OUTSTANDING_BYTES = 128 << 20  # of memory: prompts of 256 sequences, each of 12,000 tokens that came as ids
_MIN_OUTSTANDING = 64
_SEND_CHUNK = 256


class EngineRequests:
    """The unanswered requests of one engine. Used from the event loop's thread. `now` gives CLOCK_MONOTONIC seconds."""

    def __init__(self, config: EngineConfig, pair: ProcessPair, now: Callable[[], float]) -> None:
        self.credits = Credits(_num_credits(config), _MAX_OUTSTANDING_BYTES)
        self._pair = pair
        self._now = now
        self._outstanding = Outstanding(config.name, count(1).__next__)
        self._last_death = ""  # of a process, for the log

    def __len__(self) -> int:
        return len(self._outstanding)

    @property
    def keys_in_flight(self) -> tuple[int, ...]:
        """The keys under which something may still be said."""
        return self._outstanding.keys_in_flight

    @property
    def num_suspects(self) -> int:
        """Requests that may be what ended the engine."""
        return self._outstanding.num_suspects

    @property
    def num_doomed(self) -> int:
        """Requests that ended the engine alone, with no proof since that it works."""
        return self._outstanding.num_doomed

    def resize(self, config: EngineConfig) -> None:
        """Let as many be outstanding as a configuration can make use of."""
        self.credits.resize(_num_credits(config))

    def add(self, submissions: Iterable[Submission]) -> None:
        """Take requests; `send` has them go."""
        for submission in submissions:
            self.credits.take(submission.num_bytes)
            self._outstanding.add(submission)

    def send(self) -> None:
        """Send the requests that may go now, and give up those that are known to end the engine."""
        self._give_up(self._outstanding.give_up_the_last())
        if not self._pair.is_ready.is_set():
            return
        records = self._outstanding.take(self._now())
        for start in range(0, len(records), _SEND_CHUNK):
            self._pair.send(Peer.TEXT, list(records[start : start + _SEND_CHUNK]))

    def answer(self, answer: RequestOutput | RequestRefused) -> float | None:
        """Pass an answer on; return how many seconds it took, None if it is said under an old key."""
        submission = self._outstanding.answer(answer.key)
        if submission is None:
            return None
        seconds = self._now() - submission.submitted_s
        self._finish(submission, answer)
        if isinstance(answer, RequestOutput):
            self._give_up(self._outstanding.give_up())
        return seconds

    def withdraw(self, file: int, answer: Unanswered) -> None:
        """Answer every request of a file (its number) that has no answer yet with this one; what runs is cut."""
        submissions, keys = self._outstanding.withdraw(file)
        self._cut(keys)
        for submission in submissions:
            self._finish(submission, answer)
        self.send()

    def end_overdue(self) -> None:
        """End the requests whose time is up."""
        keys = self._outstanding.overdue(self._now())
        for key in keys:
            if submission := self._outstanding.answer(key):
                self._finish(submission, took_too_long(submission.timeout_s or 0.0))
        if keys:
            self._cut(tuple(keys))
            self.send()

    def note_death(self, how: str, *, may_be_accident: bool) -> int:
        """Take note that a process died, which ends what was in flight; return how many requests were. `send` comes next."""
        self._last_death = how
        return self._outstanding.note_death(may_be_accident=may_be_accident)

    def recall(self) -> None:
        """Take back what is in flight, because its processes are ended on purpose: nothing is suspected for that."""
        self._outstanding.recall()

    def pardon(self) -> None:
        """Let what is doomed try again, because the engine was at fault."""
        self._outstanding.pardon()

    def _cut(self, keys: tuple[int, ...]) -> None:
        """Have the processes forget what was sent under these keys."""
        if keys:
            self._pair.have_forget(Peer.TEXT, keys)

    def _finish(self, submission: Submission, answer: Answer) -> None:
        self.credits.give_back(submission.num_bytes)
        submission.on_done(answer)

    def _give_up(self, submissions: Iterable[Submission]) -> None:
        for submission in submissions:
            self._finish(submission, ended_the_engine(self._last_death))


def _num_credits(config: EngineConfig) -> int:
    """Requests that may be outstanding."""
    return max(_MIN_OUTSTANDING, 4 * config.batch.max_num_seqs)
