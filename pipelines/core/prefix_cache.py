"""Which tokens lie in which blocks: blocks whose tokens are committed can serve every sequence that begins with them.

A block's name is a hash of its token ids and of the name of the block before it, so it stands for the whole beginning of a
sequence up to the block's end. A name is given only once the block is full and the step that filled it is committed. A block
that nobody uses keeps its name and content until it is handed out for something new; the one longest out of use goes first.

Names of 128 bits: among 10^9 blocks two agree by chance with a probability of 10^-21.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST_BYTES = 16


def extend_names(names: list[bytes], token_ids: Sequence[int], block_size: int) -> None:
    """Append the names of the full blocks of `token_ids` that `names` lacks."""
    parent = names[-1] if names else b""
    for start in range(len(names) * block_size, len(token_ids) - block_size + 1, block_size):
        content = array("i", token_ids[start : start + block_size]).tobytes()
        parent = blake2b(parent + content, digest_size=_DIGEST_BYTES).digest()
        names.append(parent)


class PrefixCache:
    """Names of blocks, and the named ones that nobody uses, in the order in which they fell out of use."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}  # by name
        self._names: dict[int, bytes] = {}  # by block
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_idle(self) -> int:
        """Named blocks that nobody uses."""
        return len(self._idle)

    def find(self, name: bytes) -> int | None:
        """The block of that name."""
        return self._blocks.get(name)

    def add(self, block: int, name: bytes) -> None:
        """Name a block in use. If another one has its content already, or it has a name, all stays as it is."""
        if name not in self._blocks and block not in self._names:
            self._blocks[name] = block
            self._names[block] = name

    def forget(self, block: int) -> None:
        """Take a block's name, if it has one: its content is about to change."""
        name = self._names.pop(block, None)
        if name is not None:
            del self._blocks[name]

    def keep(self, block: int) -> bool:
        """Whether a block that fell out of use has a name; it is idle then."""
        if block in self._names:
            self._idle[block] = None
            return True
        return False

    def wake(self, block: int) -> None:
        """Note that an idle block is used again."""
        del self._idle[block]

    def evict(self) -> int:
        """Return the block longest out of use, nameless."""
        block, _ = self._idle.popitem(last=False)
        self.forget(block)
        return block

    def problem(self, num_uses: Sequence[int]) -> str | None:
        """What is wrong with names or idle blocks; None if nothing is."""
        if {name: block for block, name in self._names.items()} != self._blocks:
            return "names and blocks disagree"
        if any(block not in self._names or num_uses[block] for block in self._idle):
            return "an idle block has no name, or is in use"
        if any(not num_uses[block] and block not in self._idle for block in self._names):
            return "a named block is neither in use nor idle"
        return None


class ComingPrefixes:
    """Names that running sequences are going to give to blocks: who begins alike does well to wait for them."""

    def __init__(self) -> None:
        self._owners: dict[bytes, object] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._owners

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def owner_ids(self) -> set[int]:
        """`id` of whoever has announced something."""
        return {id(owner) for owner in self._owners.values()}

    def announce(self, names: Sequence[bytes], owner: object) -> None:
        """Note that `owner` computes these blocks, as far as nobody else does."""
        for name in names:
            self._owners.setdefault(name, owner)

    def settle(self, names: Sequence[bytes], owner: object) -> None:
        """Note that `owner` has computed these blocks, or never will."""
        for name in names:
            if self._owners.get(name) is owner:
                del self._owners[name]
