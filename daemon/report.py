"""What a person wants to know of one file afterwards: `STEM.report.json`, and the same as a short table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daemon.device_account import DeviceTotals
from daemon.durable import printable, utf8_name
from daemon.journal_records import Outcome
from daemon.journal_state import Tally
from daemon.json_text import json_document
from pipelines.core.request import IdleCause

_LABEL_WIDTH = 16  # columns
_LEAST_SHARE = 0.05  # percent


@dataclass(frozen=True, slots=True)
class FileReport:
    """The numbers of one file; times are of this run of the daemon and those before it."""

    source_name: str
    pipeline: str
    model: str | None
    status: str  # of the Batch object
    num_requests: int
    tally: Tally
    queued_s: float  # from the claim until the first request was sent
    running_s: float  # from then until the last line
    num_resent: int = 0  # requests sent again after a process died
    num_blank_lines: int = 0
    models_asked: Mapping[str, int] = field(default_factory=dict)  # names in requests that the pipeline's model served
    device: DeviceTotals | None = None  # where the engine's time went while this file ran, other files' shares included

    def as_dict(self) -> dict[str, Any]:
        """Return it with its keys always in the same order."""
        tally = self.tally
        rate = round(tally.completion_tokens / self.running_s, 3) if self.running_s > 0 else None
        return {
            "file": utf8_name(self.source_name),
            "pipeline": self.pipeline,
            "model": self.model,
            "status": self.status,
            "requests": {"total": self.num_requests}
            | {outcome.name.lower(): tally.count(outcome) for outcome in Outcome}
            | {"resent": self.num_resent},
            "finish_reasons": {"stop": tally.num_stop, "length": tally.num_length},
            "tokens": {
                "prompt": tally.prompt_tokens,
                "cached": tally.cached_tokens,
                "completion": tally.completion_tokens,
            },
            "seconds": {"queued": round(self.queued_s, 3), "running": round(self.running_s, 3)},
            "completion_tokens_per_s": rate,
            "blank_lines": self.num_blank_lines,
            "models_asked": {name: self.models_asked[name] for name in sorted(self.models_asked)},
            "device_seconds": None if self.device is None else _device(self.device),
        }

    def as_json(self) -> str:
        """Return it as people read it."""
        return json_document(self.as_dict()).decode()


def render_report(report: Mapping[str, Any]) -> str:
    """Return the table of one report, as `FileReport.as_dict` or its JSON file gives it; each line ends in a newline."""
    tokens, seconds = report["tokens"], report["seconds"]
    rate = report["completion_tokens_per_s"]
    rows = [
        ("file", f"{printable(report['file'])} ({report['status']})"),
        ("pipeline", f"{report['pipeline']}, model {report['model'] or 'unknown'}"),
        ("requests", _requests(report["requests"])),
        ("finish reasons", _counts(report["finish_reasons"]) or "none"),
        ("tokens", f"{tokens['prompt']:,} prompt ({tokens['cached']:,} cached), {tokens['completion']:,} completion"),
        ("time", f"{seconds['queued']:.1f} s queued, {seconds['running']:.1f} s running"),
        ("speed", "-" if rate is None else f"{rate:,.1f} completion tokens/s"),
    ]
    if report["device_seconds"]:
        rows.append(("device", _shares(report["device_seconds"])))
    if report["blank_lines"]:
        rows.append(("blank lines", f"{report['blank_lines']:,} skipped"))
    if report["models_asked"]:
        names = ", ".join(f"{printable(name)} x {count:,}" for name, count in report["models_asked"].items())
        rows.append(("models asked for", f"{names}; served by the pipeline's"))
    return "".join(f"{label:<{_LABEL_WIDTH}}  {text}\n" for label, text in rows)


def _device(totals: DeviceTotals) -> dict[str, Any]:
    idle = {cause.value: round(totals.idle_s[cause], 3) for cause in IdleCause}
    return {"busy": round(totals.busy_s, 3), "unproven": round(totals.unproven_s, 3), "idle": idle}


def _shares(device: Mapping[str, Any]) -> str:
    """Return busy and idle time as shares of all of it, what rounds to nothing left out."""
    parts = [("busy", device["busy"]), ("unproven", device["unproven"])]
    parts += [(f"idle ({cause})", seconds) for cause, seconds in device["idle"].items()]
    whole = sum(seconds for _, seconds in parts)
    shares = [(name, 100 * seconds / whole) for name, seconds in parts if whole > 0]
    return ", ".join(f"{share:.1f} % {name}" for name, share in shares if share >= _LEAST_SHARE) or "not used"


def _requests(counts: Mapping[str, int]) -> str:
    rest = _counts({name: count for name, count in counts.items() if name != "total"})
    return f"{counts['total']:,}" + (f": {rest}" if rest else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
