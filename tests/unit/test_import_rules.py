"""The import rules: the contracts of pyproject.toml catch what they forbid, and what must be light is light when it runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_model import save_small_model

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "triton", "numpy", "safetensors", "gguf")
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

# Module that breaks a rule, its source, and the line by which the linter must name it.
SMUGGLERS = (
    ("daemon/smuggles_torch.py", "import torch", "daemon.smuggles_torch -> torch"),
    ("daemon/smuggles_late.py", "def late() -> None:\n    import numpy", "daemon.smuggles_late -> numpy"),
    ("daemon/smuggles_batch.py", "from pipelines.core import batch", "daemon.smuggles_batch -> pipelines.core.batch"),
    ("daemon/smuggles_text.py", "import pipelines.text", "daemon.smuggles_text -> pipelines.text"),
    ("pipelines/models/smuggles_yaml.py", "import yaml", "pipelines.models.smuggles_yaml -> yaml"),
    ("pipelines/models/smuggles_daemon.py", "import daemon", "pipelines.models.smuggles_daemon -> daemon"),
    ("pipelines/core/smuggles_torch.py", "import torch", "pipelines.core.smuggles_torch -> torch"),
    ("pipelines/core/smuggles_text.py", "import pipelines.text", "pipelines.core.smuggles_text -> pipelines.text"),
    ("pipelines/unplaced.py", "", "- pipelines.unplaced"),
)


@pytest.fixture(scope="module")
def report_on_smugglers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the linter says of a copy of the tree into which every rule's breach was put; on one line per finding."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for package in ("daemon", "pipelines"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, source, _ in SMUGGLERS:
        (tree / path).write_text(source + "\n")
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--no-logo"],
        cwd=tree,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("breach", [line for _, _, line in SMUGGLERS])
def test_a_forbidden_import_is_named(breach: str, report_on_smugglers: str) -> None:
    """Each contract bites: a module that breaks it is named with what it imports."""
    assert breach in report_on_smugglers


def loaded_by_importing(*roots: str) -> set[str]:
    """Import the modules `roots` and all below them in a fresh interpreter; return the heavy packages that this loaded."""
    program = f"""
import importlib, pkgutil, sys
for root in {roots!r}:
    package = importlib.import_module(root)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), root + "."):
        if not found.name.endswith(".__main__"):
            importlib.import_module(found.name)
print(*sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_whole_daemon_loads_nothing_heavy() -> None:
    """The daemon starts, answers `--help` and survives without torch, whatever way an import takes."""
    assert loaded_by_importing("daemon") == set()


def test_importing_records_channel_and_core_loads_nothing_heavy() -> None:
    """What the daemon and the scheduler's tests need of the engine is plain Python."""
    assert loaded_by_importing("pipelines.config", "pipelines.errors", "pipelines.channel", "pipelines.core") == set()


def test_the_probe_for_heavy_packages_sees_them() -> None:
    """The two tests above would fail: the probe finds numpy where it is imported."""
    assert "numpy" in loaded_by_importing("numpy.version")


def test_a_model_that_is_not_there_is_told_without_torch() -> None:
    """By the check of settings and by the engine: importing it takes seconds, and both know at once."""
    program = """
import sys
sys.modules["torch"] = None  # an import of it fails
from pipelines import worker
from pipelines.config import EngineConfig, ModelConfig
from pipelines.errors import ModelError
class Channel:
    def receive(self, _):
        return [EngineConfig("e", ModelConfig("/nowhere/model"))]
for run in (worker.run_preflight, worker.run_engine_process):
    try:
        run(Channel())
    except ModelError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("/nowhere/model: found no such folder") == 2


@pytest.mark.parametrize("role", ["engine", "text"])
def test_what_a_process_imports_before_its_configuration_is_light(role: str) -> None:
    """The daemon launches two before it knows whether it needs them."""
    program = f"""
import sys
from pipelines import worker
class Channel:
    def receive(self, _):
        print(*sorted(sys.modules))
        raise SystemExit
(worker.run_engine_process if {role!r} == "engine" else worker.run_text)(Channel())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"engine": "pipelines.engine_factory", "text": "pipelines.text.text_worker"}[role] in loaded
    assert not loaded & {"torch", "transformers", "numpy"}


LOADS = {
    "the engine": """
from pipelines.runtime.model_runner import ModelRunner
ModelRunner(config, Path(folder)).close()
""",
    "the check of settings": """
from pipelines import preflight
preflight.preflight(config, lambda _: None)
""",
    "the text process": """
from pipelines.text.loading import load_text_model
tokenizer = load_text_model(config, lambda _: None, may_hide_torch=True).tokenizer
assert tokenizer.encode_chats([tokenizer.render([{"role": "user", "content": "a"}])]) == [[257, 64, 258, 259]]
""",
}
# What each may not have loaded: all else that transformers has takes longer to import than everything they need.
SPARED = {
    "the engine": {"transformers", "pipelines.models.adapter"},
    "the check of settings": {"pipelines.models.adapter", "transformers.modeling_utils"},
    "the text process": {"torch", "transformers.modeling_utils"},
}


@pytest.mark.parametrize("who", LOADS)
def test_a_native_model_is_loaded_without_what_only_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """From its second start on: at the first one its configuration is read as transformers reads it."""
    from pipelines.models.facts import read_facts
    from pipelines.models.native_config import native_config

    folder = save_small_model(tmp_path / "model")
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "cache"))
    native_config(Path(folder))
    read_facts(Path(folder))
    program = f"""
import sys
from pathlib import Path
from pipelines.config import EngineConfig, ModelConfig
folder = {folder!r}
config = EngineConfig("e", ModelConfig(folder, device="cpu"), max_context=64)
{LOADS[who]}
print(*sorted(name for name, module in sys.modules.items() if name in {SPARED[who]!r} and module is not None))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    assert done.stderr == ""
