"""What `gapless demo` needs before it starts anything."""

from pathlib import Path

import pytest

from daemon import demo
from daemon.errors import CommandError


def test_without_the_sources_it_says_where_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package holds neither the configuration nor the example files."""
    monkeypatch.setattr(demo, "_CONFIG", tmp_path / "configs" / "demo.yaml")
    with pytest.raises(CommandError, match=r"found no .*demo\.yaml, expected the sources of Gapless .*`make demo`"):
        demo.run_demo()
