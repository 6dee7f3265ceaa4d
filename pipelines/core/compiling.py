"""Requests whose grammars are being compiled, in a thread, while the loop goes on with the others."""

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

from pipelines.core.request import TokenRequest
from pipelines.core.sequence import TokenMask


class Compiling:
    """A queue of such requests. `new_mask` runs in the thread and may take seconds; all else in the loop's."""

    def __init__(self, new_mask: Callable[[str], TokenMask]) -> None:
        self._new_mask = new_mask
        self._thread: ThreadPoolExecutor | None = None  # from the first grammar on
        self._queue: list[tuple[TokenRequest, Future[TokenMask]]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: TokenRequest) -> None:
        """Have a request's grammar compiled."""
        self._thread = self._thread or ThreadPoolExecutor(1, "grammars")
        self._queue.append((request, self._thread.submit(self._new_mask, request.grammar)))

    def drop(self, keys: Collection[int]) -> None:
        """Forget requests."""
        self._queue = [(request, mask) for request, mask in self._queue if request.key not in keys]

    def take_ready(self) -> list[tuple[TokenRequest, TokenMask | BaseException]]:
        """Return the requests, in order, up to the first that is not ready, each with its mask or what `new_mask` raised."""
        num_ready = next((index for index, (_, mask) in enumerate(self._queue) if not mask.done()), len(self._queue))
        ready, self._queue = self._queue[:num_ready], self._queue[num_ready:]
        return [(request, mask.exception() or mask.result()) for request, mask in ready]
