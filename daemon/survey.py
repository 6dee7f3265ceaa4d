"""The validating pass over a request file: totals, fingerprint and bad lines, before anything of it is run.

Equal custom_ids are found in two steps, so that a file without them costs 8 bytes a request and one pass. The first pass
keeps one hash of each id; where hashes are equal, a second pass compares those ids themselves. So a collision of hashes
costs time and never a wrong verdict.
"""

from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from daemon.errors import InputModifiedError
from daemon.kept_requests import KeptRequests
from daemon.request_file import FileItem, RequestPass, RequestSource
from daemon.request_record import BadLine, ParsedRequest, Place, Survey, Url
from daemon.request_size import memory_bytes

MAX_BAD_LINES = 1000
_MAX_BAD_BYTES = 1 << 20  # of memory that those take: each has its custom_id, which may be of any length
_NUM_PARTITIONS = 256


class IdHashes:
    """One hash of each id, in partitions so that looking for equal ones takes little memory at a time."""

    def __init__(self, hash_of: Callable[[str], int] = hash) -> None:
        self._hash_of = hash_of  # 64 bits, signed, the same as long as this object lives
        self._partitions = [array("q") for _ in range(_NUM_PARTITIONS)]

    def add(self, custom_id: str) -> None:
        """Count an id in."""
        value = self._hash_of(custom_id)
        self._partitions[value % _NUM_PARTITIONS].append(value)

    def repeated(self) -> frozenset[int]:
        """Return the hashes that came more than once."""
        return frozenset(
            one for partition in self._partitions for one, other in pairwise(sorted(partition)) if one == other
        )

    def may_repeat(self, custom_id: str, repeated: frozenset[int]) -> bool:
        """Return whether this id can be one of those that came more than once."""
        return self._hash_of(custom_id) in repeated


class _BadLines:
    """Counts bad lines and keeps the first of them, one at least."""

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._num_bytes_left = _MAX_BAD_BYTES
        self.kept: list[BadLine] = []
        self.count = 0

    def look_at(self, item: FileItem) -> None:
        if isinstance(item, BadLine):
            self.count += 1
            if len(self.kept) < self._max_kept and self._num_bytes_left > 0:
                self._num_bytes_left -= memory_bytes(item)
                self.kept.append(item)


def survey(
    path: Path,
    *,
    name: str | None = None,
    on_progress: Callable[[int], None] | None = None,
    is_cancelled: Callable[[], bool] | None = None,
    max_bad_lines: int = MAX_BAD_LINES,
    template: str | None = None,
    hash_of: Callable[[str], int] = hash,
    keep: KeptRequests | None = None,
) -> Survey:
    """Read a file to its end and say what is in it; reads it twice if ids are equal.

    `name` is what messages call it; `on_progress` gets the bytes of content read so far (of each pass), `template` makes
    requests of a table's rows, `keep` is given the requests on the way. Bad are also requests whose
    custom_id stood before, in whatever request; one that is bad besides keeps its own fault. Runs in any thread.

    Raises:
        FileError: it cannot be read.
        InputModifiedError: it changed meanwhile.
        ReadCancelledError: `is_cancelled` said so.
    """
    source = RequestSource.of(path, name, on_progress, is_cancelled, template)
    first_pass, hashes, bad = RequestPass(source), IdHashes(hash_of), _BadLines(max_bad_lines)
    endpoint: Url | None = None
    for item in first_pass:
        if endpoint is None and isinstance(item, ParsedRequest):
            endpoint = item.url
        bad.look_at(item)
        hashes.add(item.custom_id)
        if keep is not None:
            keep.add(item)
    repeated = hashes.repeated()
    duplicates: dict[int, Place] = {}
    if repeated:
        bad = _BadLines(max_bad_lines)
        second_pass = RequestPass(source)
        duplicates = _find_duplicates(source, second_pass, lambda given: hashes.may_repeat(given, repeated), bad)
        if second_pass.fingerprint != first_pass.fingerprint:
            raise InputModifiedError(f"{source.parser.name} was changed while it was being surveyed")
    if keep is not None:
        keep.end(duplicates, source.parser.duplicate)
    return Survey(
        fingerprint=first_pass.fingerprint,
        num_bytes=first_pass.num_bytes,
        num_lines=first_pass.num_lines,
        num_blank=first_pass.num_blank,
        num_requests=first_pass.num_requests,
        num_bad=bad.count,
        bad_lines=tuple(bad.kept),
        endpoint=(endpoint or Url.CHAT).value,
        duplicates=duplicates,
    )


def _find_duplicates(
    source: RequestSource, whole: RequestPass, may_repeat: Callable[[str], bool], bad: _BadLines
) -> dict[int, Place]:
    """Return the requests whose id stood before, with the place where it stood first."""
    first: dict[str, Place] = {}
    duplicates: dict[int, Place] = {}
    for item in whole:
        if not may_repeat(item.custom_id):
            bad.look_at(item)
            continue
        place = Place(item.index, item.line)
        before = first.setdefault(item.custom_id, place)
        if before == place or not isinstance(item, ParsedRequest):
            bad.look_at(item)
            continue
        duplicates[item.index] = before
        bad.look_at(source.parser.duplicate(item, before))
    return duplicates
