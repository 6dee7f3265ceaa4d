"""`STEM.report.json` as a table for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from daemon.durable import printable
from pipelines.counted import counted

_LABEL_WIDTH = 16  # columns
_LEAST_SHARE = 0.05  # percent
_MAX_MESSAGE = 160  # columns
_SIXTY = 60  # seconds of a minute, minutes of an hour
_CUT = ("cancelled", "expired", "timed_out")  # nobody knows how many tokens these had


def render_report(report: Mapping[str, Any]) -> str:
    """Return the table of one report, as `FileReport.as_dict` or its JSON file gives it; each line ends in a newline.

    Raises:
        ValueError: it is no such report.
    """
    try:
        return "".join(f"{label:<{_LABEL_WIDTH}}  {text}\n" for label, text in _rows(report))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(repr(error)) from error


def duration(seconds: float) -> str:
    """Return a time as people say it: `3.2 s`, `4 min 05 s`, `2 h 03 min`."""
    if round(seconds, 1) < _SIXTY:  # as it is shown: never 60.0 s
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), _SIXTY)
    if minutes < _SIXTY:
        return f"{minutes} min {rest_s:02d} s"
    return f"{minutes // _SIXTY} h {minutes % _SIXTY:02d} min"


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    tokens, seconds, reasons = report["tokens"], report["seconds"], report["finish_reasons"]
    rate = report["completion_tokens_per_s"]
    yield "file", f"{printable(report['file'])} ({report['status']})"
    if failure := report.get("failure"):
        yield "why", printable(failure["message"])
    yield "pipeline", f"{report['pipeline']}, model {report['model'] or 'unknown'}"
    if report["requests"]["total"] is not None:
        yield "requests", _requests(report["requests"])
    if not any(count for name, count in report["requests"].items() if name != "total"):
        return  # nothing was run, so there is nothing to say of how
    yield from _error_rows(report.get("errors") or ())
    yield "finish reasons", _reasons(reasons)
    yield "tokens", f"{tokens['prompt']:,} prompt ({tokens['cached']:,} cached), {tokens['completion']:,} completion"
    resumed = ", restarts of the daemon included" if report.get("is_resumed") else ""
    yield "time", f"{duration(seconds['queued'])} queued, {duration(seconds['running'])} running{resumed}"
    yield "speed", "-" if rate is None else f"{rate:,.1f} completion tokens/s"
    if report["device_seconds"]:
        yield "device", _shares(report["device_seconds"])
    if report.get("cost"):
        num_cut = sum(report["requests"].get(outcome, 0) for outcome in _CUT)
        cut = f"; without what was taken by {counted(num_cut, 'request')} cut early" if num_cut else ""
        yield "cost", _cost(report["cost"], is_resumed=bool(resumed)) + cut
    if report["blank_lines"]:
        yield "blank lines", f"{report['blank_lines']:,} skipped"
    if report["models_asked"]:
        names = ", ".join(f"{printable(name)} x {count:,}" for name, count in report["models_asked"].items())
        yield "models asked for", f"{names}; served by the pipeline's"
    if report.get("config_hash"):
        yield from _made_with(report)
        yield "seeds", "each request's own, else made of the file's content and the request's place in it"


def _made_with(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The model; where an engine got another one while the file ran, each with its share of the answers."""
    made = report.get("made_with") or ()
    if len(made) > 1:
        for number, each in enumerate(made):
            model = f"{printable(each['model'])} ({each['model_hash']}): {counted(each['answers'], 'answer')}"
            yield "" if number else "made with", model
        yield "", f"configuration {report['config_hash']}"
    else:
        model_hash = made[0]["model_hash"] if made else report["model_hash"]
        yield "made with", f"model {model_hash}, configuration {report['config_hash']}"


def _error_rows(groups: Any) -> Iterator[tuple[str, str]]:
    for number, group in enumerate(groups):
        first = group["first"]
        who = f"{printable(first['custom_id'])}: " if first["custom_id"] else ""
        text = f"{group['count']:,} x {printable(group['code'])}; first {who}{printable(first['message'])}"
        yield "" if number else "errors", text if len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 3]}..."


def _reasons(reasons: Mapping[str, int]) -> str:
    text = _counts(reasons) or "none"
    total = sum(reasons.values())
    cut = reasons.get("length", 0)
    return f"{text}; {100 * cut / total:.1f} % cut by max_tokens or the context" if cut else text


def _shares(device: Mapping[str, Any]) -> str:
    """Return busy and idle time as shares of all of it, what rounds to nothing left out."""
    parts = [("busy", device["busy"]), ("unproven", device["unproven"])]
    parts += [(f"idle ({cause})", seconds) for cause, seconds in device["idle"].items()]
    whole = sum(seconds for _, seconds in parts)
    shares = [(name, 100 * seconds / whole) for name, seconds in parts if whole > 0]
    return ", ".join(f"{share:.1f} % {name}" for name, share in shares if share >= _LEAST_SHARE) or "not used"


def _cost(cost: Mapping[str, Any], *, is_resumed: bool) -> str:
    time = (
        f"{duration(cost['gpu_seconds'])} of the device, {100 * cost['share_of_tokens']:.1f} % of its tokens meanwhile"
    )
    since = ", since the daemon's last start" if is_resumed else ""
    if cost["total"] is None:
        return f"{time}{since}; daemon.price_per_gpu_hour is not set"
    return f"{cost['total']:,.4f} at {cost['price_per_gpu_hour']:g} an hour: {time}{since}"


def _requests(counts: Mapping[str, int]) -> str:
    rest = _counts({name: count for name, count in counts.items() if name != "total"})
    return f"{counts['total']:,}" + (f": {rest}" if rest else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
