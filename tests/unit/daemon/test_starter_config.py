"""The first configuration loads whatever is answered, and says what was answered."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from daemon.settings import load_settings
from daemon.starter_config import has_nvidia_gpu, starter_config, suggested_model


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("folder", ["./spool", "/data/my spool", "~/runs", "with: colon", "#x", "null"])
def test_it_loads_as_it_is(tmp_path, has_gpu, folder):
    """With every suggestion, and folders that YAML would read as something else."""
    path = tmp_path / "gapless.yaml"
    model = suggested_model(has_gpu=has_gpu)
    path.write_text(starter_config(model, folder, has_gpu=has_gpu))
    settings = load_settings([path])
    assert settings.engines["main"].model.path == model
    assert settings.pipelines["chat"].engine == "main"
    assert settings.daemon.spool.is_absolute()


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1))
def test_any_folder_comes_back_as_it_was_given(folder):
    """Nothing that a person types breaks the file or becomes another value."""
    text = starter_config("x/y", folder, has_gpu=False)
    assert yaml.safe_load(text)["daemon"]["spool"] == folder


def test_its_comments_are_settings_that_work(tmp_path):
    """Whoever takes away a # before a setting gets a configuration that loads."""
    text = starter_config("x/y", "./spool", has_gpu=True)
    for key in ("price_per_gpu_hour", "retention", "batch", "kv_cache", "system", "on_done"):
        assert f"# {key}: " in text
        text = text.replace(f"# {key}: ", f"{key}: ")
    (tmp_path / "c.yaml").write_text(text)
    settings = load_settings([tmp_path / "c.yaml"])
    assert settings.daemon.price_per_gpu_hour == 2.5
    assert settings.pipelines["chat"].on_done == (str(tmp_path / "notify.sh"),)


def test_a_gpu_is_seen_by_its_device(tmp_path):
    """Without a driver's program, which may be missing."""
    assert not has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_nvidia_gpu(tmp_path)
