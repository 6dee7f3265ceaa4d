"""A start for which there is too little memory ends with one line: what was needed, what was free, what to lower."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from runner_models import cpu_config
from tiny_models import config_of, save_model

from pipelines.config import CudaGraphsConfig, GraphMode
from pipelines.errors import EngineError, ModelError, OutOfMemoryError
from pipelines.runtime.capture import capture_on, settle_graphs
from pipelines.runtime.cpu_stream import CpuStream
from pipelines.runtime.memory import StartMemory
from pipelines.runtime.model_runner import ModelRunner

CPU = torch.device("cpu")
CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.2 GiB is free."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(config_of("llama"), tmp_path_factory.mktemp("llama"))


def config_for(folder, **changes):
    return replace(cpu_config(folder, num_seqs=2, num_tokens=16, num_blocks=24, block_size=16), **changes)


def test_the_line_says_what_was_asked_for_what_was_free_and_what_to_lower(monkeypatch):
    free = iter([10 << 30, 8 << 30, 8 << 30])
    monkeypatch.setattr("pipelines.runtime.memory.free_memory_bytes", lambda _device: next(free))
    memory = StartMemory(CPU)
    with memory.taking("the weights", "the dtype"):
        pass
    with pytest.raises(OutOfMemoryError) as error, memory.taking("the KV cache", "kv_cache.memory_fraction"):
        raise torch.OutOfMemoryError(CUDA_TEXT)
    assert str(error.value) == (
        "cpu has too little memory for the KV cache: 8.00 GiB were free, where 2.50 GiB at once could not be had; "
        "lower kv_cache.memory_fraction, or free memory (taken before: the weights 2.00 GiB)"
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)  # fmt: skip
def test_every_kind_of_shortage_is_known(error):
    with (
        pytest.raises(OutOfMemoryError, match="too little memory for the weights"),
        StartMemory(CPU).taking("the weights", "x"),
    ):
        raise error


def test_other_failures_pass_unchanged():
    failure = ValueError("no such file")
    with pytest.raises(ValueError, match="no such file"), StartMemory(CPU).taking("the weights", "x"):
        raise failure
    with pytest.raises(ModelError, match="odd"), StartMemory(CPU).taking("the weights", "x"):
        raise ModelError("odd")


def test_weights_that_cannot_fit_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr("pipelines.runtime.memory.free_memory_bytes", lambda _device: 1 << 10)
    monkeypatch.setattr("pipelines.models.native.load_weights", lambda *_: pytest.fail("they were read"))
    with pytest.raises(
        OutOfMemoryError, match=r"its weights need 0.00 GiB, but 0.00 GiB are free on cpu: choose a model.dtype"
    ):
        ModelRunner(config_for(folder), folder)


def test_a_cache_that_torch_cannot_allocate_is_told_of_by_its_key(folder, monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError(CUDA_TEXT)

    monkeypatch.setattr("pipelines.runtime.model_runner.KvCache", no_memory)
    with pytest.raises(OutOfMemoryError, match=r"for the KV cache: .* lower kv_cache.memory_fraction .*the weights 0"):
        ModelRunner(config_for(folder), folder)


def test_graphs_that_have_to_be_and_cannot_end_the_start(folder):
    with pytest.raises(
        ModelError, match=r"cuda_graphs.enabled is true, but cpu has no graphs; auto or false runs without"
    ):
        ModelRunner(config_for(folder, cuda_graphs=CudaGraphsConfig(enabled=GraphMode.ON)), folder)


def test_a_cpu_does_not_warn_of_graphs(folder):
    runner = ModelRunner(config_for(folder), folder)
    assert runner.warnings == ()
    assert runner.graph_use is None
    runner.close()


def test_what_becomes_of_a_failed_capture_is_the_configurations_choice():
    assert settle_graphs(GraphMode.OFF, lambda: pytest.fail("it was tried")) == ""
    assert settle_graphs(GraphMode.AUTO, lambda: "it is odd") == "it is odd"
    assert settle_graphs(GraphMode.ON, lambda: "") == ""
    with pytest.raises(ModelError, match="it is odd"):
        settle_graphs(GraphMode.ON, lambda: "it is odd")


class Steps:
    """Fails to capture, as it is told; what it made by then is watched."""

    def __init__(self, error):
        self.error = error
        self.made = None

    def capture(self, report):
        report(0.5)
        tensor = torch.zeros(3)
        self.made = weakref.ref(tensor)
        if self.error is not None:
            raise self.error


def test_a_failed_capture_is_a_reason_and_leaves_the_stream_and_no_tensors():
    stream = CpuStream("compute")
    steps = Steps(RuntimeError("operation not permitted when stream is capturing\nand more"))
    heard = []
    reason = capture_on(stream, steps, "native llama", heard.append)
    assert reason == "native llama cannot be captured: RuntimeError: operation not permitted when stream is capturing"
    assert heard == [0.5]
    steps.error.__traceback__ = None  # the test's own hold
    gc.disable()
    try:
        assert steps.made() is None
    finally:
        gc.enable()
    assert capture_on(stream, Steps(None), "native llama", heard.append) == ""
    stream.close()
    stream.join()


def test_a_capture_without_memory_is_no_reason_to_run_without_graphs():
    stream = CpuStream("compute")
    with pytest.raises(torch.OutOfMemoryError):
        capture_on(stream, Steps(torch.OutOfMemoryError(CUDA_TEXT)), "native llama", lambda _: None)
    stream.close()
    stream.join()


def test_a_runner_names_each_of_its_errors_in_one_line():
    with pytest.raises(EngineError) as error, StartMemory(CPU).taking("the weights", "x"):
        raise torch.OutOfMemoryError(CUDA_TEXT + "\nsecond line")
    assert "\n" not in str(error.value)
