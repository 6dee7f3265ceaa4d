"""What native decoders and the adapter settle alike at load."""

from pathlib import Path

import pytest
import torch

from pipelines.config import Dtype
from pipelines.errors import EngineError, ModelError, OutOfMemoryError
from pipelines.models.model import naming_model, settle_context, settle_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("asked", "made_for", "context"), [(None, 128, 128), (50, 128, 50), (128, 128, 128), (50, None, 50)]
)
def test_a_context_is_what_was_asked_for_or_all(asked: int | None, made_for: int | None, context: int) -> None:
    assert settle_context(asked, made_for) == context


@pytest.mark.parametrize(
    ("asked", "made_for", "reason"),
    [
        (129, 128, "max_context is 129, expected at most the 128 that the model was made for"),
        (None, None, "it does not say how long its context is: set max_context"),
    ],
)
def test_a_context_that_nobody_knows_or_that_is_too_long_is_refused(
    asked: int | None, made_for: int | None, reason: str
) -> None:
    with pytest.raises(ModelError, match=f"^{reason}$"):
        settle_context(asked, made_for)


def test_arithmetic_is_as_asked_for_and_float32_on_a_cpu_where_nobody_asks() -> None:
    """None stands for the checkpoint's own."""
    assert settle_dtype(Dtype.AUTO, CPU) is torch.float32
    assert settle_dtype(Dtype.AUTO, CUDA) is None
    assert settle_dtype(Dtype.BFLOAT16, CPU) is torch.bfloat16
    assert settle_dtype(Dtype.FLOAT16, CUDA) is torch.float16


@pytest.mark.parametrize("kind", [ModelError, OutOfMemoryError])
def test_an_error_names_its_model_and_stays_of_its_kind(kind: type[EngineError]) -> None:
    with pytest.raises(kind, match=r"^model tiny: too large$"), naming_model(Path("/models/tiny")):
        raise kind("too large")
