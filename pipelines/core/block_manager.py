"""Reference-counted blocks (pages) of the KV cache, with copy-on-write.

A block table lists the blocks that hold a sequence's positions in order. Sequences may share blocks (choices of one request
share its prompt); before a sequence writes into a shared block it gets a copy of its own, made on the device in front of the
step that writes.
"""

from collections.abc import Iterable

from pipelines.errors import InvariantError


class BlockManager:
    """Hands out blocks; knows how often each is used, never what is in it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # positions a block
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: recently used blocks are warm
        self._num_uses = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks nobody uses."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks somebody uses."""
        return self.num_blocks - len(self._free)

    def num_blocks_for(self, num_positions: int) -> int:
        """Blocks that `num_positions` take."""
        return -(-num_positions // self.block_size)

    def num_missing(self, table: list[int], start: int, end: int) -> int:
        """Free blocks needed before positions start .. end - 1 can be written: new ones and copies of shared ones."""
        shared = sum(self._num_uses[block] > 1 for block in table[start // self.block_size : self.num_blocks_for(end)])
        return max(0, self.num_blocks_for(end) - len(table)) + shared

    def make_writable(self, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
        """Extend `table` so that positions start .. end - 1 can be written by its owner alone.

        Returns:
            (source, target) of each block to copy before the write.

        Raises:
            InvariantError: fewer than `num_missing` blocks are free.
        """
        if self.num_missing(table, start, end) > len(self._free):
            raise InvariantError(f"{self.num_missing(table, start, end)} blocks asked for, {len(self._free)} free")
        copies = []
        for index in range(start // self.block_size, min(len(table), self.num_blocks_for(end))):
            source = table[index]
            if self._num_uses[source] > 1:
                self._num_uses[source] -= 1
                table[index] = self._take()
                copies.append((source, table[index]))
        while len(table) < self.num_blocks_for(end):
            table.append(self._take())
        return copies

    def share(self, table: list[int], num_positions: int) -> list[int]:
        """Return a second table of the blocks that hold the first `num_positions`."""
        shared = table[: self.num_blocks_for(num_positions)]
        for block in shared:
            self._num_uses[block] += 1
        return shared

    def release(self, table: list[int]) -> None:
        """Give up a table's blocks and empty it."""
        for block in reversed(table):
            if self._num_uses[block] <= 0:
                raise InvariantError(f"block {block} released, but nobody uses it")
            self._num_uses[block] -= 1
            if self._num_uses[block] == 0:
                self._free.append(block)
        table.clear()

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Compare the counts with all live tables.

        Raises:
            InvariantError: a block is lost, or used by more or fewer tables than counted.
        """
        counted = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counted[block] += 1
        if counted != self._num_uses:
            raise InvariantError("block use counts disagree with the block tables")
        if sorted(self._free) != [block for block, uses in enumerate(counted) if uses == 0]:
            raise InvariantError("the free list disagrees with the use counts")

    def _take(self) -> int:
        block = self._free.pop()
        self._num_uses[block] = 1
        return block
