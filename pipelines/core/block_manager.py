"""Reference-counted blocks (pages) of the KV cache, with copy-on-write and shared prefixes.

A block table lists the blocks that hold a sequence's positions in order. Sequences may share blocks: choices of one request
share its prompt, and whoever begins with the same tokens shares the blocks that hold them (see `prefix_cache`). Before a
sequence writes into a shared block it gets a copy of its own, made on the device in front of the step that writes.

    free --take--> used --release--> free         without a name
                    |  ^
            release v  | adopt
                    idle --take--> used           with a name; counts as free
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from pipelines.core.prefix_cache import PrefixCache
from pipelines.errors import InvariantError

_SHARED = 2  # uses of a block that is just about shared


class BlockManager:
    """Hands out blocks; knows how often each is used and which tokens' names stand for it, never what is in it."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = False) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # positions a block
        self.prefix_caching = prefix_caching
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: recently used blocks are warm
        self._num_uses = [0] * num_blocks
        self.num_shared = 0  # blocks with more than one use
        self._prefixes = PrefixCache()

    @property
    def num_free(self) -> int:
        """Blocks nobody uses, those with a name included."""
        return len(self._free) + self._prefixes.num_idle

    @property
    def num_used(self) -> int:
        """Blocks somebody uses."""
        return self.num_blocks - self.num_free

    def num_blocks_for(self, num_positions: int) -> int:
        """Blocks that `num_positions` take."""
        return -(-num_positions // self.block_size)

    def num_missing(self, table: list[int], start: int, end: int) -> int:
        """Free blocks needed before positions start .. end - 1 can be written: new ones and copies of shared ones."""
        num_new = max(0, self.num_blocks_for(end) - len(table))
        if not self.num_shared:
            return num_new
        uses = self._num_uses
        return num_new + sum([uses[block] > 1 for block in table[start // self.block_size : self.num_blocks_for(end)]])

    def make_writable(self, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
        """Extend `table` so that positions start .. end - 1 can be written by its owner alone.

        Returns:
            (source, target) of each block to copy before the write.

        Raises:
            InvariantError: fewer than `num_missing` blocks are free.
        """
        if (num_missing := self.num_missing(table, start, end)) > self.num_free:
            raise InvariantError(f"{num_missing} blocks asked for, {self.num_free} free")
        copies = []
        num_blocks = self.num_blocks_for(end)
        for index in range(start // self.block_size, min(len(table), num_blocks)):
            source = table[index]
            if self._num_uses[source] > 1:
                self._drop_use(source)
                table[index] = self._take()
                copies.append((source, table[index]))
            else:
                self._prefixes.forget(source)
        while len(table) < num_blocks:
            table.append(self._take())
        return copies

    def share(self, table: list[int], num_positions: int) -> list[int]:
        """Return a second table of the blocks that hold the first `num_positions`."""
        shared = table[: self.num_blocks_for(num_positions)]
        for block in shared:
            self._add_use(block)
        return shared

    def find_prefix(self, names: Seq[bytes]) -> list[int]:
        """Return the blocks of the longest beginning of `names` that is cached."""
        blocks = []
        for name in names:
            block = self._prefixes.find(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_idle_among(self, blocks: Iterable[int]) -> int:
        """How many of some blocks count as free until they are adopted."""
        return sum([not self._num_uses[block] for block in blocks])

    def num_exclusive(self, table: list[int]) -> int:
        """How many blocks of a table come back when it is released."""
        if not self.num_shared:
            return len(table)
        return list(map(self._num_uses.__getitem__, table)).count(1)

    def adopt(self, blocks: Iterable[int]) -> list[int]:
        """Return a table of cached blocks, each with one user more."""
        table = list(blocks)
        for block in table:
            if not self._num_uses[block]:
                self._prefixes.wake(block)
            self._add_use(block)
        return table

    def name(self, block: int, name: bytes) -> None:
        """Offer a full block whose tokens are committed to whoever begins with them."""
        if not self._num_uses[block]:
            raise InvariantError(f"block {block} is named, but nobody uses it")
        self._prefixes.add(block, name)

    def release(self, table: list[int]) -> None:
        """Give up a table's blocks and empty it. Its end falls out of use first, so that beginnings stay cached longest."""
        for block in reversed(table):
            if self._num_uses[block] <= 0:
                raise InvariantError(f"block {block} released, but nobody uses it")
            self._drop_use(block)
            if self._num_uses[block] == 0 and not self._prefixes.keep(block):
                self._free.append(block)
        table.clear()

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Compare the counts with all live tables.

        Raises:
            InvariantError: a block is lost, used by more or fewer tables than counted, or falsely named.
        """
        counted = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counted[block] += 1
        if counted != self._num_uses:
            raise InvariantError("block use counts disagree with the block tables")
        if self.num_shared != sum([uses > 1 for uses in counted]):
            raise InvariantError("shared blocks are counted wrong")
        if problem := self._prefixes.problem(counted):
            raise InvariantError(f"prefix cache: {problem}")
        unused = [block for block, uses in enumerate(counted) if uses == 0]
        if len(self._free) + self._prefixes.num_idle != len(unused) or not set(self._free) <= set(unused):
            raise InvariantError("the free list disagrees with the use counts")

    def _add_use(self, block: int) -> None:
        self._num_uses[block] += 1
        self.num_shared += self._num_uses[block] == _SHARED

    def _drop_use(self, block: int) -> None:
        self.num_shared -= self._num_uses[block] == _SHARED
        self._num_uses[block] -= 1

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._prefixes.evict()
        self._num_uses[block] = 1
        return block
