"""The status page: one HTML page without scripts, drawn from a snapshot."""

from collections.abc import Sequence
from html import escape

from daemon.status import FileStatus, PipelineStatus, StatusSnapshot

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5em; }
th, td { text-align: left; padding: .25em 1em .25em 0; border-bottom: 1px solid #ddd; vertical-align: top; }
.ready { color: #17692e; } .not { color: #a12020; }
"""


def render_page(status: StatusSnapshot, age_s: float) -> str:
    """Return the page; it asks the browser to fetch it again every few seconds. All that came from outside is escaped."""
    reasons = status.why_not_ready()
    state = (
        "<p class=ready>ready</p>" if not reasons else "".join(f"<p class=not>{escape(text)}</p>" for text in reasons)
    )
    engines = [
        (
            engine.name,
            engine.state,
            f"{engine.num_running}",
            f"{engine.num_waiting}",
            f"{engine.num_restarts}",
            engine.detail,
        )
        for engine in status.engines
    ]
    pipelines = [_pipeline_row(pipeline) for pipeline in status.pipelines]
    files = [_file_row(pipeline, file) for pipeline in status.pipelines for file in pipeline.files]
    return "".join(
        (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">',
            f"<title>Gapless</title><style>{_STYLE}</style></head><body><h1>Gapless</h1>{state}",
            _table(("engine", "state", "running", "waiting", "restarts", ""), engines),
            _table(("pipeline", "engine", "in the inbox", "being run", ""), pipelines),
            _table(("file", "state", "done", "failed", "of"), files) if files else "<p>No file is being run.</p>",
            f"<p>As of {age_s:.0f} s ago. <a href=/status>JSON</a> <a href=/metrics>metrics</a></p></body></html>\n",
        )
    )


def _pipeline_row(pipeline: PipelineStatus) -> tuple[str, ...]:
    paused = f"paused: {pipeline.paused_because}" if pipeline.paused_because is not None else ""
    return pipeline.name, pipeline.engine, str(pipeline.num_waiting_files), str(len(pipeline.files)), paused


def _file_row(pipeline: PipelineStatus, file: FileStatus) -> tuple[str, ...]:
    total = "not counted yet" if file.num_total is None else str(file.num_total)
    return f"{pipeline.name}/{file.name}", file.state, str(file.num_done), str(file.num_failed), total


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
