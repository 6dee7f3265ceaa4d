"""What a preflight finds wrong with a model's settings without loading it, and that it makes no CUDA context for that."""

import json
from pathlib import Path

import pytest
import torch
from small_model import save_small_model

from pipelines.config import BatchConfig, EngineConfig, Implementation, KvCacheConfig, ModelConfig
from pipelines.errors import ModelError, OutOfMemoryError, UnavailableError
from pipelines.preflight import check_memory, preflight
from pipelines.runtime import memory
from pipelines.runtime.memory import total_memory_bytes
from pipelines.runtime.model_runner import ModelRunner

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("native") / "model")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("adapted") / "model", family="gemma3")


def config(folder, **changes):
    model = {name: changes.pop(name) for name in list(changes) if name in {"device", "implementation", "dtype"}}
    return EngineConfig(
        name="e", model=ModelConfig(str(folder), **model), batch=BatchConfig(4, 64), num_threads=1,
        kv_cache=changes.pop("kv_cache", KvCacheConfig(max_tokens=1024)), **changes,
    )  # fmt: skip


def check(folder, **changes):
    return preflight(config(folder, **changes), lambda _: None)


@pytest.mark.parametrize("kind", ["native", "adapted"])
def test_a_model_that_loads_passes_and_says_what_the_load_will_say(kind, request):
    folder = request.getfixturevalue(kind)
    ready = check(folder)
    runner = ModelRunner(config(folder), Path(folder))
    try:
        assert (ready.model, ready.context, ready.vocab_size) == (runner.model_name, runner.context, runner.vocab_size)
        assert runner.detail.startswith(ready.detail)
    finally:
        runner.close()


def damaged(source, folder, **files):
    """A copy of a model with some of its files replaced by these texts, or left out."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, text in files.items():
        path = folder / name.replace("_json", ".json").replace("_safetensors", ".safetensors")
        path.unlink()
        if text is not None:
            path.write_text(text)
    return folder


def with_config(source, folder, **keys):
    content = json.loads((source / "config.json").read_text()) | keys
    return damaged(source, folder, config_json=json.dumps(content))


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"config_json": None}, "config.json"),
        ({"config_json": "{"}, "cannot be read"),
        ({"config_json": '{"model_type": "no_such_model"}'}, "no_such_model"),
        ({"config_json": '{"model_type": "t5"}'}, "encoder-decoder"),
        ({"model_safetensors": None}, "safetensors"),
        ({"model_safetensors": "no weights"}, "cannot be read"),
        ({"tokenizer_json": None}, "tokenizer"),
        ({"tokenizer_json": "{}"}, "tokenizer"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(native, tmp_path, files, word):

    with pytest.raises(ModelError, match=word) as caught:
        check(damaged(Path(native), tmp_path / "bad", **files))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device": "tpu"}, "model.device is 'tpu', expected auto, cpu, cuda or cuda:N"),
        ({"max_context": 100_000}, "max_context is 100000"),
        ({"kv_cache": KvCacheConfig(max_tokens=128)}, "kv_cache.max_tokens 128"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(native, changes, word):
    """By the error that says of an edit that it mends it."""
    with pytest.raises(ModelError, match=word):
        check(native, **changes)


def test_a_device_that_is_not_there_may_come(native):
    """A driver that is loaded late: a service is started again for it, and not for a mistake."""
    with pytest.raises(UnavailableError, match=r"model.device is 'cuda:99', found \d+ CUDA device"):
        check(native, device="cuda:99")


def test_an_implementation_that_does_not_know_the_model_is_refused(adapted):
    with pytest.raises(ModelError, match="the native decoder does not run it"):
        check(adapted, implementation=Implementation.NATIVE)


@pytest.mark.parametrize("kind", ["native", "adapted"])
def test_weights_that_no_device_of_that_size_holds_are_refused(kind, request, monkeypatch):
    folder = request.getfixturevalue(kind)
    monkeypatch.setattr("pipelines.preflight.total_memory_bytes", lambda _: 100_000)
    with pytest.raises(OutOfMemoryError, match=r"its weights need .* and cpu has 0\.00 GiB in all"):
        check(folder)


def test_a_context_whose_cache_has_no_room_beside_the_weights_is_refused(native, monkeypatch):
    from pipelines import preflight as module

    found = []
    monkeypatch.setattr(module, "check_memory", lambda needs, *_: found.append(needs))
    check(native)
    (needs,) = found
    tight = needs.weight_bytes + 1000
    with pytest.raises(OutOfMemoryError, match="one context of 256 tokens"):
        check_memory(needs, config(native), CPU, tight)
    check_memory(needs, config(native), CPU, 2 * needs.weight_bytes + 10_000_000)


def test_the_size_of_a_gpu_is_asked_of_its_driver_alone(monkeypatch, tmp_path):
    """Where that is not to be had it is unknown: a CUDA context would take memory that the running engine has taken."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("a context was made"))
    monkeypatch.setattr(memory, "_largest_gpu_bytes", lambda: 7)
    assert total_memory_bytes(torch.device("cuda")) == 7
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemTotal: 3 kB\n")
    assert total_memory_bytes(CPU, tmp_path / "meminfo") == 3072
