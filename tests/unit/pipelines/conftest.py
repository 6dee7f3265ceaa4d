"""What tests of the engine share. Torch is imported by those that use it."""

import pytest


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    from runner_models import Folders

    return Folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def llama(folders):
    """A runner of the small llama."""
    from runner_models import engine_config

    from pipelines.runtime.model_runner import ModelRunner

    folder, _ = folders.get("llama")
    runner = ModelRunner(engine_config(folder), folder)
    yield runner
    runner.close()
