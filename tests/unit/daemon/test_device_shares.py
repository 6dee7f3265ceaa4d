"""Engines on one GPU may not ask for more than all of its memory; who takes turns or is sized by tokens does not count."""

import pytest

from daemon.device_shares import check_device_shares
from daemon.errors import SettingsError
from daemon.settings import load_settings
from daemon.settings_engine import EngineSettings
from daemon.settings_report import Written


def engine(fraction=None, device="cuda", path="x/y", max_tokens=None, **keys):
    cache = {"memory_fraction": fraction} if fraction else {}
    return EngineSettings.model_validate(
        {"model": {"path": path, "device": device}, "kv_cache": cache | {"max_tokens": max_tokens}} | keys
    )


def problems(tmp_path, has_gpu=True, **engines):
    written = {name: Written(tmp_path, ("engines", name)) for name in engines}
    return [(p.path, p.expected) for p in check_device_shares(engines, written, has_gpu=has_gpu)]


@pytest.mark.parametrize(
    "engines",
    [
        {"a": engine()},
        {"a": engine(0.3), "b": engine(0.3), "c": engine(0.4)},
        {"a": engine(device="cuda:0"), "b": engine(device="cuda:1")},
        {"a": engine(), "b": engine(max_tokens=1024)},
        {"a": engine(), "b": engine(idle_unload_s=60.0)},
        {"a": engine(), "b": engine(device="cpu")},
        {"a": engine(), "b": engine(path="fake:")},
    ],
)
def test_what_fits_or_cannot_be_known_is_taken(tmp_path, engines):
    assert problems(tmp_path, **engines) == []


def test_what_is_too_much_is_named_with_what_is_left(tmp_path):
    found = problems(tmp_path, a=engine(0.5, "cuda:0"), b=engine(0.25), c=engine(0.5, "auto"))
    assert found == [
        ("engines.c.kv_cache.memory_fraction", "at most 0.25: on the same GPU (cuda:0) a has 0.5, b has 0.25")
    ]


def test_auto_is_a_gpu_only_where_there_is_one(tmp_path):
    engines = {"a": engine(device="auto"), "b": engine(device="auto")}
    assert problems(tmp_path, has_gpu=False, **engines) == []
    assert [path for path, _ in problems(tmp_path, has_gpu=True, **engines)] == ["engines.b.kv_cache.memory_fraction"]


def test_a_configuration_is_refused_at_the_place_of_the_fraction(tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text(
        "engines:\n  a: {model: {path: x/y, device: cuda}}\n"
        "  b: {model: {path: x/z, device: 'cuda:0'}, kv_cache: {memory_fraction: 0.2}}\npipelines: {p: {engine: a}}\n"
    )
    with pytest.raises(SettingsError) as caught:
        load_settings([path])
    assert str(caught.value) == (
        f"{path}:3:73: engines.b.kv_cache.memory_fraction: found 0.2, expected at most 0.1: on the same GPU (cuda:0) a has "
        "0.9; divide 1 among them, or give each a kv_cache.max_tokens"
    )
