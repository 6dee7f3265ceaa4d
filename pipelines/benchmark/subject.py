"""Gets what is to be measured: a folder with a model, if need be one of random weights, and an engine's runner on it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.benchmark.measure import Subject
from pipelines.benchmark.traffic import Traffic, ValueBytes, read_traffic
from pipelines.config import Dtype, EngineConfig
from pipelines.core.request import Progress
from pipelines.errors import ModelError
from pipelines.fake import FakeOptions, FakeRunner

_RANDOM_SEED = 0
_FAKE_VOCABULARY = 1_024
_FAKE_BLOCKS = 1 << 16


@contextmanager
def model_folder(
    config: EngineConfig, random_config: Path | None, report: Callable[[Progress], None]
) -> Iterator[tuple[EngineConfig, Path | None]]:
    """Give a folder with the model's files, None for a fake model, and the configuration that goes with it.

    `random_config` is a config.json whose model gets random weights; the folder is then a temporary one.

    Raises:
        ModelError: there is no such model, or none can be made of that config.json.
    """
    if random_config is not None:
        with TemporaryDirectory(prefix="gapless-bench-") as place:
            yield random_model(config, random_config, Path(place)), Path(place)
    elif config.model.is_fake:
        yield config, None
    else:
        from pipelines.models.source import resolve_model  # noqa: PLC0415  the fake engine does without

        yield config, resolve_model(config.model, report)


def random_model(config: EngineConfig, random_config: Path, folder: Path) -> EngineConfig:
    """Make `folder` a model of random weights; return the configuration that runs it.

    The native decoder makes its weights itself, in place. For the adapter they are saved as transformers keeps them.

    Raises:
        ModelError: no model can be made of that config.json.
    """
    from pipelines.models.native_config import is_native  # noqa: PLC0415  the fake engine does without

    if not random_config.is_file():
        raise ModelError(f"--config {random_config}: found no such file, expected a model's config.json")
    copyfile(random_config, folder / "config.json")
    model = replace(config.model, path=str(folder))
    if is_native(model, folder):
        return replace(config, model=replace(model, random_seed=_RANDOM_SEED))
    try:
        _save_random_weights(config, folder)
    except Exception as error:  # whatever transformers says of a file that it cannot use
        raise ModelError(f"--config {random_config}: no model can be made of it: {error}") from error
    return replace(config, model=model)


def _save_random_weights(config: EngineConfig, folder: Path) -> None:
    """Make the weights on the engine's device, in its arithmetic, and save them beside the configuration."""
    import torch  # noqa: PLC0415  the fake engine does without
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  likewise
    from transformers.utils import logging  # noqa: PLC0415  likewise

    from pipelines.runtime.device import resolve_device  # noqa: PLC0415  likewise

    device = resolve_device(config.model.device)
    torch.manual_seed(_RANDOM_SEED)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch_dtype(config, folder))
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    if device.type == "cuda":
        del model
        gc.collect()
        torch.cuda.empty_cache()


def native_context(config: EngineConfig, folder: Path | None) -> int | None:
    """Return how many tokens a sequence of the model may have at the most, None where it does not say.

    Raises:
        ModelError: its configuration cannot be read.
    """
    if folder is None:
        return FakeOptions.parse(config.model.path).context
    from pipelines.models.facts import read_facts  # noqa: PLC0415  the fake engine does without

    return read_facts(folder, trust_remote_code=config.model.trust_remote_code).context


def torch_dtype(config: EngineConfig, folder: Path) -> Any:
    """Return the torch.dtype that the engine computes in: what `model.dtype` says, where it says `auto` as on the engine."""
    import torch  # noqa: PLC0415  the fake engine does without
    from transformers import AutoConfig  # noqa: PLC0415  likewise

    from pipelines.runtime.device import resolve_device  # noqa: PLC0415  likewise

    if config.model.dtype is not Dtype.AUTO:
        return getattr(torch, config.model.dtype.value)
    if resolve_device(config.model.device).type == "cpu":
        return torch.float32
    return getattr(AutoConfig.from_pretrained(folder, local_files_only=True), "dtype", None) or torch.float32


def settled(config: EngineConfig, folder: Path | None) -> tuple[EngineConfig, Traffic | None]:
    """Return the configuration with its arithmetic named, and what the model moves in it; of a fake one, nothing."""
    if folder is None:
        return config, None
    dtype = torch_dtype(config, folder)
    model = replace(config.model, dtype=Dtype(str(dtype).removeprefix("torch.")))
    traffic = read_traffic(folder, ValueBytes.of(config, dtype.itemsize), trust_remote_code=model.trust_remote_code)
    return replace(config, model=model), traffic


@contextmanager
def open_subject(config: EngineConfig, folder: Path | None, traffic: Traffic | None) -> Iterator[Subject]:
    """Load the model into a runner, and close that at the end; `folder` is None for a fake model.

    Raises:
        ModelError: the model cannot be run.
        OutOfMemoryError: the cache does not fit.
    """
    subject = _fake_subject(config) if folder is None else _real_subject(config, folder, traffic)
    try:
        yield subject
    finally:
        subject.runner.close()


def _fake_subject(config: EngineConfig) -> Subject:
    options = FakeOptions.parse(config.model.path)
    return Subject(
        runner=FakeRunner(options, range(_FAKE_VOCABULARY), _FAKE_VOCABULARY, config.buffers.slots),
        config=config,
        num_blocks=_FAKE_BLOCKS,
        block_size=config.kv_cache.block_size,
        context=options.context,
        vocab_size=_FAKE_VOCABULARY,
        detail=f"no model ({config.model.path}): what is measured is the loop",
    )


def _real_subject(config: EngineConfig, folder: Path, traffic: Traffic | None) -> Subject:
    from pipelines.runtime.model_runner import ModelRunner  # noqa: PLC0415  torch

    gc.collect()  # a runner before this one may hold the device's memory in a cycle
    runner = ModelRunner(config, folder)
    return Subject(
        runner=runner,
        config=config,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        context=runner.context,
        vocab_size=runner.vocab_size,
        detail=runner.detail,
        traffic=traffic,
        graphs=runner.graph_use,
    )
