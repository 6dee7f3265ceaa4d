"""The configurations that come along: each is taken by the daemon and by editors, and is what its comments say."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from daemon.settings import Settings, load_settings
from daemon.yaml_source import read_yaml

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "configs" / "gapless.schema.json"
VALIDATOR = Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
CONFIGS = sorted(ROOT.glob("configs/**/*.yaml"))
GB = 10**9
WEIGHTS = {"Qwen/Qwen3-0.6B": 1.2 * GB, "Qwen/Qwen3-8B": 16.4 * GB}  # bfloat16
KV_BYTES = {  # a token: keys and values of each layer, 8 heads of 128, bfloat16
    "Qwen/Qwen3-0.6B": 2 * 28 * 8 * 128 * 2,
    "Qwen/Qwen3-8B": 2 * 36 * 8 * 128 * 2,
}

each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))


def load(name: str) -> Settings:
    return load_settings([ROOT / "configs" / name])


def look_up(settings: Settings, path: str) -> Any:
    """Return the effective value at a dotted path."""
    value: Any = settings
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


@each_config
def test_the_daemon_takes_it(config: Path) -> None:
    """It can be started as it is."""
    assert load_settings([config]).pipelines


@each_config
def test_an_editor_takes_it(config: Path) -> None:
    """Its first line names the schema, and the schema has nothing against it."""
    first = config.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={os.path.relpath(SCHEMA, config.parent)}"
    source = read_yaml(config)
    assert source.root is not None
    assert [error.message for error in VALIDATOR.iter_errors(source.root.plain)] == []


@each_config
def test_its_spool_is_its_own_and_git_passes_over_it(config: Path) -> None:
    """Two of them can be tried one after the other; neither mixes its files with the other's or with the sources."""
    spool = load_settings([config]).daemon.spool
    others = [load_settings([other]).daemon.spool for other in CONFIGS if other != config]
    assert spool not in others
    assert f"/{spool.relative_to(ROOT)}/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@each_config
def test_its_comments_name_its_own_folders_and_pages_that_exist(config: Path) -> None:
    """What a person copies from a comment works."""
    text = config.read_text(encoding="utf-8")
    settings = load_settings([config])
    spool = settings.daemon.spool
    folders = re.findall(rf"{re.escape(spool.name)}/([a-z0-9_-]+)/(?:inbox|outbox)/", text)
    assert folders
    assert set(folders) <= set(settings.pipelines)
    for name in re.findall(r"(?:docs|configs)/[\w./-]+\w", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "one-gpu-chat.yaml",
            {
                "engines.main.model.device": "cuda",
                "engines.main.model.dtype": "auto",
                "engines.main.kv_cache.memory_fraction": 0.9,
                "daemon.min_free_bytes": 10 * 2**30,
                "pipelines.chat.sampling.temperature": None,
                "pipelines.chat.limits.request_timeout_s": 1800,
            },
        ),
        (
            "rollouts.yaml",
            {
                "engines.policy.schedule": "async",
                "engines.policy.max_context": 1024 + 16384,
                "pipelines.rollouts.sampling.max_tokens": 16384,
                "pipelines.rollouts.sampling.top_k": 0,
                "pipelines.rollouts.output.order": "completion",
                "pipelines.rollouts.output.format": "plain",
            },
        ),
        (
            "nightly.yaml",
            {
                "daemon.settle_s": 30,
                "daemon.drain_s": 300,
                "pipelines.night.limits.deadline_s": 10 * 3600,
                "pipelines.night.on_bad_line": "record",
                "pipelines.now.engine": "main",
                "pipelines.night.engine": "main",
            },
        ),
    ],
)
def test_what_the_comments_say_is_in_effect(name: str, values: dict[str, Any]) -> None:
    """A value that is changed is changed in the comment beside it too."""
    settings = load(name)
    assert {path: look_up(settings, path) for path in values} == values


def test_urgent_files_go_before_those_of_the_night() -> None:
    """And what has no priority stands between them."""
    pipelines = load("nightly.yaml").pipelines
    assert pipelines["night"].priority < 0 < pipelines["now"].priority


def test_two_models_fit_on_the_card_that_their_comment_names() -> None:
    """Weights and caches as the comment adds them up, and 8 GB for the rest."""
    settings = load("two-models.yaml")
    text = (ROOT / "configs" / "two-models.yaml").read_text(encoding="utf-8")
    total = 0.0
    for name, engine in settings.engines.items():
        tokens = engine.kv_cache.max_tokens
        assert tokens is not None
        assert engine.max_context is not None
        assert engine.max_context <= tokens
        kv_bytes, weights = KV_BYTES[engine.model.path], WEIGHTS[engine.model.path]
        cache = tokens * kv_bytes
        row = rf"{name} +{weights / GB} +{tokens:,} tokens x {kv_bytes // 1024} KiB = {cache / GB:.1f} +"
        row += rf"{(weights + cache) / GB:.1f}\n"
        assert re.search(row, text), row
        total += weights + cache
    assert total < (48 - 8) * GB
    assert "one GPU of 48 GB" in text


def test_one_chat_model_fits_on_a_card_of_24_gb() -> None:
    """The figures of the comment: about 50,000 tokens there, 400,000 on 80 GB, one full context in any case."""
    engine = load("one-gpu-chat.yaml").engines["main"]
    for card, tokens in ((24, 50_000), (80, 400_000)):
        left = card * 2**30 - WEIGHTS[engine.model.path] - 2**30  # one GiB for CUDA and what stands beside
        found = left * engine.kv_cache.memory_fraction / KV_BYTES[engine.model.path]
        assert tokens * 0.9 < found < tokens * 1.1
        assert engine.max_context is not None
        assert found > engine.max_context
