"""Captures the graphs of a runner at its start, or says why there are none."""

from collections.abc import Callable
from typing import Protocol, assert_never

from pipelines.config import GraphMode
from pipelines.errors import ModelError
from pipelines.runtime.streams import COMPUTE_DONE, Stream, first_line, is_out_of_memory


class Capturable(Protocol):
    """Steps that can be captured."""

    def capture(self, report: Callable[[float], None]) -> None:
        """Capture them on the current stream; `report` hears how much is done."""
        ...


def settle_graphs(mode: GraphMode, capture: Callable[[], str]) -> str:
    """Have graphs captured if the configuration wants them; `capture` returns why there are none, "" if there are.

    Returns:
        for people, why there are none although `mode` allows them; "" otherwise.

    Raises:
        ModelError: there are none although `mode` demands them.
        Exception: out of memory, as torch or the driver reports it.
    """
    match mode:
        case GraphMode.OFF:
            return ""
        case GraphMode.AUTO:
            return capture()
        case GraphMode.ON:
            if reason := capture():
                raise ModelError(f"cuda_graphs.enabled is true, but {reason}; auto or false runs without graphs")
            return ""
        case _:
            assert_never(mode)


def capture_on(stream: Stream, steps: Capturable, name: str, report: Callable[[float], None]) -> str:
    """Capture on a stream and wait for it; return why the model of this name cannot be captured, "" if it is.

    Raises:
        EngineError: the device failed.
        Exception: as `settle_graphs`.
    """
    failures: list[Exception] = []

    def capture() -> None:
        try:
            steps.capture(report)
        except Exception as error:  # noqa: BLE001  whatever it is, the steps may still run without graphs
            failures.append(error)

    stream.launch(capture)
    stream.record(COMPUTE_DONE).wait()
    if not failures:
        return ""
    if is_out_of_memory(failures[0]):
        raise failures.pop()
    error = failures.pop()  # out of the list, which its traceback holds, so that what it holds itself is freed
    return f"{name} cannot be captured: {type(error).__name__}: {first_line(error)}"
