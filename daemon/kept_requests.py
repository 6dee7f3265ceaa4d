"""The requests of a small file as its survey parsed them, so that they are neither read nor parsed again to be fed.

What is kept is bounded, in requests and in bytes: many files may be open at a time, and a larger one is read again as it is fed.
"""

from collections.abc import Callable, Iterable, Mapping

from daemon.request_file import FileItem
from daemon.request_record import BadLine, ParsedRequest, Place
from daemon.request_size import memory_bytes

MAX_KEPT_REQUESTS = 512
MAX_KEPT_BYTES = 512 << 10  # of memory


class KeptRequests:
    """Filled by one survey and emptied by whoever feeds the file. Used from one thread at a time."""

    def __init__(self, max_requests: int = MAX_KEPT_REQUESTS, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_requests = max_requests
        self._num_bytes_left = max_bytes
        self._items: list[FileItem] = []
        self._is_full = False  # the file is too large
        self._is_whole = False  # it was surveyed to its end

    def add(self, item: FileItem) -> None:
        """Keep the next request of the file, if there still is room for all of them."""
        if self._is_full:
            return
        self._num_bytes_left -= memory_bytes(item)
        if len(self._items) >= self._max_requests or self._num_bytes_left < 0:
            self._is_full = True
            self._items.clear()
        else:
            self._items.append(item)

    def end(self, duplicates: Mapping[int, Place], duplicate: Callable[[ParsedRequest, Place], BadLine]) -> None:
        """Note that the file is surveyed to its end; `duplicate` makes bad lines of its `duplicates`, given by index."""
        self._items = [
            duplicate(item, duplicates[item.index])
            if isinstance(item, ParsedRequest) and item.index in duplicates
            else item
            for item in self._items
        ]
        self._is_whole = not self._is_full

    def take(self) -> list[FileItem] | None:
        """Hand over the requests of the file, in order, and keep them no more; None if they were not all kept."""
        items, self._items = self._items, []
        is_whole, self._is_whole = self._is_whole, False
        return items if is_whole else None


def longest_first(items: Iterable[FileItem], default_max_tokens: int | None) -> list[FileItem]:
    """Return the requests of a file in the order in which it is fed: longest answer first, since the file ends with that one.

    An answer without a limit, its own or `default_max_tokens`, may be as long as the context. Equals stay in order, and bad
    lines, which need no engine, come last.
    """

    def rank(item: FileItem) -> tuple[bool, float]:
        if isinstance(item, BadLine):
            return True, 0.0
        given = item.sampling.max_tokens
        max_tokens = default_max_tokens if given is None else given
        return False, float("-inf") if max_tokens is None else -max_tokens

    return sorted(items, key=rank)
