"""The section `daemon` of the YAML file: spool, HTTP, logs, traces, and how files are taken and kept.

Every key is declared with its default, its range, its meaning and when a change of it can take effect. The reference page is
generated from that (`python -m daemon.settings_reference`).
"""

from enum import StrEnum

from daemon.settings_fields import (
    MAX_SECONDS,
    PATH_TEXT,
    SIZE_TEXT,
    Change,
    LocalPath,
    Section,
    Size,
    choice,
    key,
    section,
)

MAX_DAYS = 36500


class Watch(StrEnum):
    """How new files are noticed; the folder's listing is the truth in each case."""

    AUTO = "auto"  # events, where a probe file shows at start that they come
    EVENTS = "events"
    POLL = "poll"


class LogLevel(StrEnum):
    """The least grave message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"  # text on a terminal, JSON elsewhere
    TEXT = "text"
    JSON = "json"


class HttpSettings(Section):
    """Where metrics, health and the status page are served."""

    host: str = key(
        "127.0.0.1",
        "Address to listen on; beyond this machine it needs `token_file` or `insecure: true`.",
        Change.RESTART,
        "an address or a host name",
        pattern=r"^[^\s/]+$",
    )
    port: int = key(9400, "TCP port; 0 takes a free one.", Change.RESTART, ge=0, le=65535)
    token_file: LocalPath | None = key(
        None, "File that holds the token which clients must send.", Change.RESTART, PATH_TEXT
    )
    insecure: bool = key(False, "Serve beyond this machine without a token.", Change.RESTART)
    names: tuple[str, ...] = key(
        (),
        "Host names besides `localhost` and `host` under which browsers may ask, as that of a proxy.",
        Change.RESTART,
        strict=False,
    )


class LogSettings(Section):
    """What the daemon says on standard error."""

    level: LogLevel = choice(LogLevel.INFO, "Least grave message that is logged.", Change.LIVE)
    format: LogFormat = choice(
        LogFormat.AUTO, "Form of the lines; `auto` is text on a terminal and JSON elsewhere.", Change.LIVE
    )


class TracingSettings(Section):
    """OpenTelemetry traces of files and requests; needs the extra `otel`."""

    endpoint: str | None = key(
        None,
        "OTLP collector (HTTP) that traces are sent to, without `/v1/traces`; null makes none.",
        Change.RESTART,
        "a URL such as http://127.0.0.1:4318",
        pattern=r"^https?://[^\s/]+(/\S*)?$",
    )
    requests_per_s: float = key(
        10.0,
        "Requests a second, over all files, that get a span of their own; those without an answer get as many again.",
        Change.RESTART,
        ge=0,
        le=1000,
    )


class RetentionSettings(Section):
    """What is removed by itself: of what Gapless put there, and nothing else."""

    done_days: float | None = key(
        None,
        "Days after which a finished file's input is removed from done/; null keeps it.",
        Change.LIVE,
        ge=0,
        le=MAX_DAYS,
    )
    outbox_days: float | None = key(
        None,
        "Days after which a finished file's results are removed from outbox/; null keeps them.",
        Change.LIVE,
        ge=0,
        le=MAX_DAYS,
    )


class DaemonSettings(Section):
    """The service itself."""

    spool: LocalPath = key(
        "./spool",
        "Folder that holds a folder for each pipeline, with its inbox, outbox and the rest.",
        Change.RESTART,
        PATH_TEXT,
        validate_default=True,
    )
    http: HttpSettings = section(HttpSettings)
    watch: Watch = choice(
        Watch.AUTO,
        "How new files are noticed; `auto` polls network file systems and tries elsewhere whether events come.",
        Change.LIVE,
    )
    settle_s: float = key(
        2.0,
        "Seconds for which a file must stay unchanged before it is taken; one renamed from .NAME.tmp to NAME is at once.",
        Change.LIVE,
        ge=0,
        le=MAX_SECONDS,
    )
    rescan_s: float = key(5.0, "Seconds between two listings of an inbox.", Change.LIVE, gt=0, le=MAX_SECONDS)
    min_free_bytes: Size = key(2**30, "Free space below which no file is taken.", Change.LIVE, SIZE_TEXT)
    drain_s: float = key(
        30.0, "Seconds that running requests get to finish on SIGTERM.", Change.LIVE, ge=0, le=MAX_SECONDS
    )
    price_per_gpu_hour: float | None = key(
        None, "What an hour of one device costs, in any currency; the reports use it.", Change.CLAIM, ge=0, le=1_000_000
    )
    retention: RetentionSettings = section(RetentionSettings)
    log: LogSettings = section(LogSettings)
    tracing: TracingSettings = section(TracingSettings)
