"""The dashboard *Files*: what waits, how far it is, how it ends."""

from grafana_foundation_sdk.builders import dashboard as dashboard_builders

from grafana.panels import AnyPanel, Query, Words, board, figure, filled, lines, mark, name_variable, quantiles, stacked

PIPELINE = 'pipeline=~"$pipeline"'
OUTCOMES = {
    "completed": "green",
    "refused": "orange",
    "duplicate": "yellow",
    "cancelled": "#b0b0b0",
    "expired": "purple",
    "timed_out": "#a352cc",
    "engine_error": "red",
}
STATUSES = {"completed": "green", "failed": "red", "expired": "purple", "cancelled": "#b0b0b0"}
STATES = {
    "waiting": "#8ab8ff",
    "validating": "yellow",
    "in_progress": "green",
    "finalizing": "blue",
    "cancelling": "#b0b0b0",
}
_PENDING = f"sum(gapless_requests_pending{{{PIPELINE}}})"


def files_dashboard() -> dashboard_builders.Dashboard:
    """Return it."""
    rows = [
        (4, _figures()),
        (8, [_requests()]),
        (8, [_pending(), _states()]),
        (8, [_ended(), _ages(), _durations()]),
        (8, [_reasons(), _request_time()]),
        (7, _daemon()),
    ]
    marks = [mark("configuration", "increase(gapless_config_reloads_total[1m]) > 0", "blue")]
    found = board("gapless-files", "Gapless: files", "What waits, how far it is, how it ends.")
    return filled(found, name_variable("pipeline", "gapless_files"), marks, rows)


def _figures() -> list[AnyPanel]:
    ended = f"sum(rate(gapless_requests_total{{{PIPELINE}}}[5m]))"
    good = f'sum(rate(gapless_requests_total{{{PIPELINE},outcome="completed"}}[5m]))'
    return [
        figure(
            Words("In the inbox", "Files that are still written or wait to be taken.", "short"),
            Query(f'sum(gapless_files{{{PIPELINE},state="waiting"}})'),
        ),
        figure(
            Words("Being run", "Files that were taken and are not done yet.", "short"),
            Query(f'sum(gapless_files{{{PIPELINE},state!="waiting"}})'),
        ),
        figure(
            Words("Requests to go", "Requests of the files being run that have no result yet.", "short"),
            Query(_PENDING),
        ),
        figure(
            Words("Time left", "Requests to go over those that ended a second in the last five minutes.", "s"),
            Query(f"{_PENDING} / ({ended} > 0)"),
        ),
        figure(
            Words(
                "Errors",
                "Share of the requests ended in the last five minutes that are in errors files.",
                "percentunit",
            ),
            Query(f"1 - {good} / ({ended} > 0)"),
        ),
        figure(
            Words("Disk", "Space left on the disk that holds the spool.", "bytes"),
            Query("gapless_disk_free_bytes"),
        ),
    ]


def _requests() -> AnyPanel:
    return stacked(
        Words("Requests", "Requests that ended a second, by how they ended.", "reqps"),
        Query(f"sum by (outcome) (rate(gapless_requests_total{{{PIPELINE}}}[$__rate_interval]))", "{{outcome}}"),
        colors=OUTCOMES,
    )


def _pending() -> AnyPanel:
    return lines(
        Words("Requests to go, by pipeline", "Requests of the files being run that have no result yet.", "short"),
        Query(f"sum by (pipeline) (gapless_requests_pending{{{PIPELINE}}})", "{{pipeline}}"),
    )


def _states() -> AnyPanel:
    return stacked(
        Words("Files", "Files that are not done yet, by state.", "short"),
        Query(f"sum by (state) (gapless_files{{{PIPELINE}}})", "{{state}}"),
        colors=STATES,
    )


def _ended() -> AnyPanel:
    return stacked(
        Words("Files ended", "Files that ended within the interval, by the status of their Batch object.", "short"),
        Query(f"sum by (status) (increase(gapless_files_ended_total{{{PIPELINE}}}[$__rate_interval]))", "{{status}}"),
        colors=STATUSES,
    )


def _ages() -> AnyPanel:
    return lines(
        Words("Oldest files", "How long the oldest file has waited in the inbox, and been run.", "s"),
        Query(f"max by (pipeline) (gapless_oldest_waiting_file_seconds{{{PIPELINE}}})", "waiting, {{pipeline}}"),
        Query(f"max by (pipeline) (gapless_oldest_running_file_seconds{{{PIPELINE}}})", "running, {{pipeline}}"),
    )


def _durations() -> AnyPanel:
    buckets = f"sum by (le) (increase(gapless_file_seconds_bucket{{{PIPELINE}}}[1h]))"
    return lines(
        Words("Time of a file", "From the claim of a file to its end, of those that ended within the last hour.", "s"),
        Query(f"histogram_quantile(0.5, {buckets})", "median"),
        Query(f"histogram_quantile(0.9, {buckets})", "90 %"),
    )


def _reasons() -> AnyPanel:
    return lines(
        Words(
            "Finish reasons",
            "Choices that ended a second: stop, where the model came to an end; length, where max_tokens cut it.",
            "reqps",
        ),
        Query(
            f"sum by (finish_reason) (rate(gapless_choices_total{{{PIPELINE}}}[$__rate_interval]))", "{{finish_reason}}"
        ),
    )


def _request_time() -> AnyPanel:
    return lines(
        Words("Time of a request", "From handing a request to an engine to its answer, over all engines.", "s"),
        *quantiles("gapless_request_seconds", "", "request"),
    )


def _daemon() -> list[AnyPanel]:
    return [
        lines(
            Words("Journal syncs", "How long the disk took to make results durable.", "s"),
            *quantiles("gapless_journal_sync_seconds", "", "sync"),
        ),
        lines(
            Words("Disk, over time", "Space left on the disk that holds the spool.", "bytes"),
            Query("gapless_disk_free_bytes", "free"),
        ),
        lines(
            Words("Paused", "1 while a pipeline takes no files: by hand, or because of the file system.", "short"),
            Query(f"gapless_pipeline_paused{{{PIPELINE}}}", "{{pipeline}}, {{cause}}"),
            max_value=1,
        ),
        lines(
            Words("Changes of the configuration", "By what became of them, within the interval.", "short"),
            Query("sum by (outcome) (increase(gapless_config_reloads_total[$__rate_interval]))", "{{outcome}}"),
        ),
    ]
