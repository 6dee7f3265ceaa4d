"""Bounds what is outstanding at an engine, in requests and in bytes, so that no buffer grows without end."""

import asyncio


class Credits:
    """A number of requests and bytes that may be outstanding. Used from the event loop's thread."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._num_requests = 0
        self._num_bytes = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @property
    def num_outstanding(self) -> int:
        """Requests taken and not given back."""
        return self._num_requests

    @property
    def has_room_for_bytes(self) -> bool:
        """Whether the bytes outstanding leave room, whatever the number of requests."""
        return self._num_bytes < self._max_bytes

    @property
    def num_left(self) -> int:
        """Requests that may be taken now; one larger than all bytes may still go alone."""
        if not self.has_room_for_bytes:
            return 0
        return self._max_requests - self._num_requests

    def resize(self, max_requests: int) -> None:
        """Let so many requests be outstanding from now on; what is beyond that comes back in its time."""
        self._max_requests = max_requests
        if self.num_left > 0:
            self._is_free.set()
        else:
            self._is_free.clear()

    def take(self, num_bytes: int) -> None:
        """One request goes out."""
        self._num_requests += 1
        self._num_bytes += num_bytes
        if self.num_left <= 0:
            self._is_free.clear()

    def give_back(self, num_bytes: int) -> None:
        """One request has come back."""
        self._num_requests -= 1
        self._num_bytes -= num_bytes
        if self.num_left > 0:
            self._is_free.set()

    @property
    def is_free(self) -> asyncio.Event:
        """Set while at least one request may go out."""
        return self._is_free
