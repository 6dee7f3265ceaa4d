"""The writer's files are what the safetensors library reads."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from pipelines.models.safetensors_file import StoredDtype, TensorSource, _encoded, write_safetensors


def source(name: str, values: np.ndarray, num_slabs: int = 1) -> TensorSource:
    return TensorSource(name, values.shape, lambda: np.array_split(values.reshape(-1), num_slabs))


def test_tensors_are_read_back_bit_equal_however_they_were_cut(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    vector = np.array([1.5], dtype=np.float32)
    shares: list[float] = []
    tensors = [source("matrix", matrix, 5), source("vector", vector)]
    write_safetensors(tmp_path / "model.safetensors", tensors, StoredDtype.FLOAT32, shares.append)
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["matrix"], torch.from_numpy(matrix))
    assert torch.equal(found["vector"], torch.from_numpy(vector))
    assert shares[-1] == 1.0


def test_a_tensor_of_the_wrong_size_is_not_written_silently(tmp_path: Path) -> None:
    wrong = TensorSource("t", (5,), lambda: [np.zeros(4, np.float32)])
    with pytest.raises(ValueError, match="found 4 values, expected 5"):
        write_safetensors(tmp_path / "model.safetensors", [wrong], StoredDtype.FLOAT32, lambda _: None)


@given(st.lists(st.floats(width=32), max_size=50))
def test_bfloat16_is_rounded_as_torch_rounds(values: list[float]) -> None:
    """For any float32: ties to even, infinities kept, NaN stays NaN."""
    array = np.array(values, dtype=np.float32)
    ours = torch.frombuffer(bytearray(_encoded(array, StoredDtype.BFLOAT16)) or bytearray(2), dtype=torch.bfloat16)[
        : len(values)
    ]
    assert torch.equal(ours.nan_to_num(7.0), torch.from_numpy(array).to(torch.bfloat16).nan_to_num(7.0))
