"""Turns what becomes of a file's requests into lines of its journal."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from daemon.file_kinds import FileKind
from daemon.journal import Journal
from daemon.journal_records import LineNumbers, Outcome
from daemon.made_with import MadeWith
from daemon.request_line import in_words
from daemon.request_record import BadLine, ParsedRequest
from daemon.result_line import LineBuilder, LineError, Refusal
from daemon.submission import Answer, Unanswered
from pipelines.core.request import RequestOutput, RequestRefused

_OUTCOMES: Mapping[LineError, Outcome] = {
    LineError.EXPIRED: Outcome.EXPIRED,
    LineError.CANCELLED: Outcome.CANCELLED,
    LineError.TIMED_OUT: Outcome.TIMED_OUT,
    LineError.ENGINE: Outcome.ENGINE_ERROR,
}
DUPLICATE_CODE = "duplicate_custom_id"


@dataclass(slots=True)
class Recorder:
    """Records for one file. Used from the event loop's thread."""

    name: str  # of the file, for messages
    kind: FileKind
    journal: Journal
    lines: LineBuilder
    models_asked: Counter[str]  # names that requests gave and the pipeline's model served
    made_with: Callable[[], MadeWith]  # the model that an answer which comes now was made with

    def answer(self, parsed: ParsedRequest, answer: Answer) -> None:
        """Record what became of a request."""
        match answer:
            case RequestOutput():
                self._note_model(self.made_with())
                line = self.lines.result(parsed.index, parsed.custom_id, parsed.url, answer)
                self.journal.append_result(parsed.index, line, LineNumbers.of_output(answer))
                if parsed.model is not None:
                    self.models_asked[parsed.model] += 1
            case RequestRefused():
                self.refusal(parsed, Refusal(answer.code, answer.message, answer.param))
            case Unanswered():
                message = self._told_where(parsed, answer.message)
                line = self.lines.failed(parsed.index, parsed.custom_id, answer.code, message)
                self.journal.append_refused(parsed.index, _OUTCOMES[answer.code], line)
            case _:
                assert_never(answer)

    def refusal(self, parsed: ParsedRequest, refusal: Refusal) -> None:
        """Record that a well-formed request is not served."""
        told = replace(refusal, message=self._told_where(parsed, refusal.message))
        self._refused(parsed.index, parsed.custom_id, told, Outcome.REFUSED)

    def bad_line(self, bad: BadLine) -> None:
        """Record a line that is no request."""
        outcome = Outcome.DUPLICATE if bad.code == DUPLICATE_CODE else Outcome.REFUSED
        self._refused(bad.index, bad.custom_id, Refusal(bad.code, bad.message, bad.param), outcome)

    def _told_where(self, parsed: ParsedRequest, message: str) -> str:
        return f"{self.name} {in_words(parsed, self.kind)}: {message}"

    def _note_model(self, model: MadeWith) -> None:
        """Have lines say which model they were made with; it changes where an engine gets another one while the file runs."""
        if model != self.journal.state.model:
            self.journal.append_model(model)
        self.lines.model = model

    def _refused(self, index: int, custom_id: str, refusal: Refusal, outcome: Outcome) -> None:
        self.journal.append_refused(index, outcome, self.lines.refused(index, custom_id, refusal))
