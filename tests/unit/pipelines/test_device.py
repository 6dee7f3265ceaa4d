"""Which device a configuration's name means."""

import pytest

from pipelines.errors import EngineError, ModelError, UnavailableError
from pipelines.runtime.device import resolve_device


@pytest.mark.parametrize(("name", "kind"), [("tpu7", ModelError), ("cuda:99", UnavailableError), ("meta", ModelError)])
def test_a_device_that_is_not_there_is_refused(name: str, kind: type[EngineError]) -> None:
    """By its name, with what is expected; one that may come is not a mistake."""
    with pytest.raises(kind, match=name):
        resolve_device(name)
