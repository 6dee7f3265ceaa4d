"""What can be known of a request file before it is run: its lines, its tokens, about how long it will take."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from daemon.durable import utf8_name
from daemon.request_file import RequestReader
from daemon.request_record import BadLine, Place, Survey
from daemon.request_size import memory_bytes
from daemon.settings import Settings
from daemon.settings_pipeline import OnBadLine, PipelineSettings
from daemon.survey import survey
from daemon.text_request import model_refusal, to_text_request
from daemon.token_count import TextProcess, TokenCounts
from pipelines.core.request import Progress, TextRequest
from pipelines.counted import counted

CONTEXT_CODE = "context_length_exceeded"
_MAX_REPORTS = 20  # the newest ones that are looked at for a speed


@dataclass(frozen=True, slots=True)
class Refused:
    """A well-formed request that would not be served."""

    place: Place
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an earlier file of the pipeline ran."""

    stem: str
    tokens_per_s: float
    tokens_per_answer: float


@dataclass(frozen=True, slots=True)
class FileCheck:
    """All that was found."""

    path: Path
    found: Survey
    model: str | None = None  # None: tokens were not counted
    counts: TokenCounts = field(default_factory=TokenCounts)
    refused: tuple[Refused, ...] = ()
    speed: Speed | None = None
    is_rejected: bool = False  # the pipeline refuses the whole file for its bad lines

    @property
    def is_good(self) -> bool:
        """Whether every request can be run."""
        return not self.found.num_bad and not self.refused

    @property
    def num_too_long(self) -> int:
        """Requests that do not fit into the model's context."""
        return sum(one.code == CONTEXT_CODE for one in self.refused)

    def seconds(self) -> tuple[float, float] | None:
        """Return how long it will about take and at most; None where no earlier file tells a speed."""
        if self.speed is None:
            return None
        likely = min(self.counts.max_output_tokens, len(self.counts.prompt_tokens) * self.speed.tokens_per_answer)
        return likely / self.speed.tokens_per_s, self.counts.max_output_tokens / self.speed.tokens_per_s

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        found = self.found
        return {
            "file": utf8_name(str(self.path)),
            "requests": {
                "total": found.num_requests,
                "good": found.num_requests - found.num_bad - len(self.refused),
                "bad": found.num_bad,
                "refused": len(self.refused),
            },
            "is_rejected": self.is_rejected,
            "blank_lines": found.num_blank,
            "fingerprint": found.fingerprint,
            "bad_lines": [{"line": bad.line, "code": bad.code, "message": bad.message} for bad in found.bad_lines],
            "refused": [{"line": one.place.line, "code": one.code, "message": one.message} for one in self.refused],
            "model": self.model,
            "prompt_tokens": None if self.model is None else self._prompt_tokens(),
            "max_output_tokens": None if self.model is None else self.counts.max_output_tokens,
            "estimate": self._estimate(),
        }

    def _prompt_tokens(self) -> dict[str, int]:
        lengths = self.counts.prompt_tokens
        return {
            "min": min(lengths, default=0),
            "median": self.counts.median(),
            "max": max(lengths, default=0),
            "total": sum(lengths),
        }

    def _estimate(self) -> dict[str, Any] | None:
        seconds = self.seconds()
        if seconds is None or self.speed is None:
            return None
        return {
            "seconds": round(seconds[0], 1),
            "at_most_seconds": round(seconds[1], 1),
            "completion_tokens_per_s": self.speed.tokens_per_s,
            "as_file": utf8_name(self.speed.stem),
        }


@dataclass(slots=True)
class _Wanted:
    """The requests of a file on their way to the text process; what the pipeline refuses by itself is kept here."""

    path: Path
    found: Survey
    pipeline: PipelineSettings
    refused: list[Refused] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)  # by key; keys count from 1

    def requests(self) -> Iterator[tuple[TextRequest, int]]:
        for item in RequestReader(self.path, self.found, template=self.pipeline.template):
            if isinstance(item, BadLine):
                continue
            place = Place(item.index, item.line)
            if (refusal := model_refusal(item, self.pipeline)) is not None:
                self.refused.append(Refused(place, refusal.code, refusal.message))
                continue
            key = item.index + 1
            self.places[key] = place
            request = to_text_request(item, self.pipeline, self.found.fingerprint, file=1)
            yield replace(request, key=key), memory_bytes(item)


def check_lines(path: Path, template: str | None = None) -> FileCheck:
    """Read a file through with the parser that a run has; `template` makes requests of the rows of a table.

    Raises:
        FileError: it cannot be read.
        InputModifiedError: it changed meanwhile.
    """
    return FileCheck(path, survey(path, template=template))


def check_tokens(
    checked: FileCheck, settings: Settings, pipeline: str, outbox: Path, say: Callable[[str], None]
) -> FileCheck:
    """Count tokens too; `say` is told how far that is.

    Raises:
        EngineStartError: the model cannot be found, or its tokenizer not be used.
        FileError, InputModifiedError: as `check_lines`.
    """
    return asyncio.run(_check_tokens(checked, settings, pipeline, outbox, say))


async def _check_tokens(
    checked: FileCheck, settings: Settings, pipeline: str, outbox: Path, say: Callable[[str], None]
) -> FileCheck:
    name = settings.pipelines[pipeline].engine
    config = settings.engines[name].to_engine_config(name)
    wanted = _Wanted(checked.path, checked.found, settings.pipelines[pipeline])
    total = checked.found.num_requests

    def report(progress: Progress) -> None:
        say(f"{config.model.path}: {progress.phase} {progress.done:.0%}")

    async with TextProcess.started(config, report) as text:
        counts = await text.count(
            config, wanted.requests(), lambda sent: say(f"{sent:,} of {counted(total, 'request')}")
        )
        model = text.ready.model if text.ready else config.model.path
    refused = [
        *wanted.refused,
        *(Refused(wanted.places[key], one.code, one.message) for key, one in counts.refusals.items()),
    ]
    ordered = tuple(sorted(refused, key=lambda one: one.place.index))
    is_rejected = bool(checked.found.num_bad) and wanted.pipeline.on_bad_line is OnBadLine.REJECT
    return FileCheck(checked.path, checked.found, model, counts, ordered, find_speed(outbox, model), is_rejected)


def find_speed(outbox: Path, model: str) -> Speed | None:
    """Return how fast the newest file of an outbox ran with this model, by its report; None where there is none."""
    found: list[tuple[float, Path]] = []
    with suppress(OSError):  # there is no outbox yet, this user may not look there, or a report is just removed
        found.extend((path.stat().st_mtime, path) for path in outbox.iterdir() if path.name.endswith(".report.json"))
    for _, path in sorted(found, reverse=True)[:_MAX_REPORTS]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(path.read_bytes())
            rate, completed = report["completion_tokens_per_s"], report["requests"]["completed"]
            if report["model"] == model and rate and completed:
                stem = path.name.removesuffix(".report.json")
                return Speed(stem, float(rate), report["tokens"]["completion"] / completed)
    return None
