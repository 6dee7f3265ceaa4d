"""What follows from a config.json is worked out once for as long as nothing it depends on changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.models import kept_config
from pipelines.models.kept_config import from_config

CONFIG = {"model_type": "llama", "vocab_size": 300}


class World:
    """A model's folder, the module that reads it, and how often it did."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "model"
        self.folder.mkdir()
        self.module = place / "reader.py"
        self.module.write_text("one way")
        self.num_reads = 0
        self.configure(CONFIG)

    def configure(self, content: Any) -> None:
        (self.folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))

    def read(self) -> dict[str, Any]:
        return from_config(self.folder, str(self.module), self._work_out)

    def _work_out(self) -> dict[str, Any]:
        self.num_reads += 1
        return {"size": self.num_reads, "share": 0.1, "missing": None}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "cache"))
    return World(tmp_path)


def test_it_is_worked_out_once(world: World) -> None:
    """And it is what it was, in another folder with the same file too."""
    first = world.read()
    world.folder = world.folder.rename(world.folder.with_name("moved"))
    assert world.read() == first == {"size": 1, "share": 0.1, "missing": None}
    assert world.num_reads == 1


def other_config(world: World, _: pytest.MonkeyPatch) -> None:
    world.configure(CONFIG | {"vocab_size": 301})


def other_code(world: World, _: pytest.MonkeyPatch) -> None:
    world.module.write_text("another way")


def other_module(world: World, _: pytest.MonkeyPatch) -> None:
    world.module = world.module.rename(world.module.with_name("another_reader.py"))


def other_versions(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_config, "version", lambda package: f"99 of {package}")


@pytest.mark.parametrize("change", [other_config, other_code, other_module, other_versions])
def test_it_is_worked_out_anew_where_something_else_is_read_or_reads(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[World, pytest.MonkeyPatch], None]
) -> None:
    world.read()
    change(world, monkeypatch)
    assert world.read()["size"] == 2
    assert world.read()["size"] == 2


@pytest.mark.parametrize(
    "content",
    [
        CONFIG | {"auto_map": {"AutoConfig": "mine.Config"}},
        CONFIG | {"configuration_files": ["config.5.0.0.json"]},
        {"vocab_size": 300},
        "[]",
        "{",
    ],
    ids=["code of its own", "other files", "no type", "no object", "no JSON"],
)
def test_what_depends_on_more_than_the_file_is_not_kept(world: World, content: Any) -> None:
    world.configure(content)
    world.read()
    assert world.read()["size"] == 2
    assert not (world.folder.parent / "cache").exists()


def test_nothing_is_kept_of_a_version_that_is_not_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_config, "_READERS", ("no-such-package",))
    world.read()
    assert world.read()["size"] == 2


@pytest.mark.parametrize("content", ['{"size": 7', "[7]", ""])
def test_a_damaged_entry_is_replaced(world: World, content: str) -> None:
    world.read()
    (entry,) = (world.folder.parent / "cache" / "configs").iterdir()
    entry.write_text(content)
    assert world.read()["size"] == 2
    assert world.read()["size"] == 2


def test_a_cache_that_cannot_be_written_is_done_without(world: World, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    world.read()
    assert world.read()["size"] == 2


def test_an_error_is_not_kept(world: World) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("not this time")

    with pytest.raises(ValueError, match="not this time"):
        from_config(world.folder, str(world.module), fail)
    assert world.read()["size"] == 1
