"""Writes the dashboards: `python -m grafana.build` renews grafana/dashboards, which a test holds to what this returns."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.files_dashboard import files_dashboard
from grafana.gpu_dashboard import gpu_dashboard

FOLDER = Path(__file__).parent / "dashboards"


def rendered() -> dict[str, str]:
    """Return each dashboard's file name and JSON."""
    boards = {"gpu.json": gpu_dashboard(), "files.json": files_dashboard()}
    return {name: json.dumps(found.build(), cls=JSONEncoder, indent=2) + "\n" for name, found in boards.items()}


if __name__ == "__main__":
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
