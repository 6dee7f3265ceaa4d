"""What a person may name a file by, where a command asks for its STEM."""

import os

import pytest

from daemon.command_context import as_place, find_stem
from daemon.errors import CommandError
from daemon.settings import load_settings


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Two pipelines, of which one has results of f.jsonl; commands are given in the configuration's folder."""
    (tmp_path / "gapless.yaml").write_text(
        "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}, q: {engine: e}}\n"
    )
    outbox = tmp_path / "spool" / "p" / "outbox"
    outbox.mkdir(parents=True)
    (outbox / "f.report.json").write_text("{}")
    (tmp_path / "f.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    return load_settings([tmp_path / "gapless.yaml"])


@pytest.mark.parametrize(
    "given",
    [
        "f", "f.jsonl", "f.report.json", "p/f", "p/f.jsonl", "./f.jsonl", "spool/p/outbox/f.report.json",
        "./spool/p/outbox/f.output.jsonl", "spool/p/done/f.jsonl", "spool/q/../p/done/f.jsonl",
    ],
)  # fmt: skip
def test_a_file_is_found_by_its_stem_its_name_and_by_paths_as_a_shell_completes_them(settings, given):
    """A path into a pipeline's folder names the pipeline, too; what lies elsewhere is meant by its name."""
    found = find_stem(settings, given, ".report.json", "report")
    assert (found.pipeline, found.stem) == ("p", "f")
    assert find_stem(settings, os.path.abspath("f.jsonl"), ".report.json", "report").stem == "f"  # noqa: PTH100


def test_what_is_no_path_to_anything_names_a_pipeline(settings):
    """One that is not there is a mistake, and is called so."""
    assert as_place(settings, "r/f") == "r/f"
    with pytest.raises(CommandError, match="found the pipeline 'r', expected one of p, q"):
        find_stem(settings, "r/f", ".report.json", "report")
    with pytest.raises(CommandError, match=r"found no f\.report\.json in the outbox of q"):
        find_stem(settings, "spool/q/outbox/f.report.json", ".report.json", "report")
