"""A fake runner with a memory: pages, seats and carried tokens are kept in Python, and a token is a hash of what lies in them.

So a block too few, a copy left out, a table entry not staged or a token carried from the wrong step is a wrong token. It may be
told to run out of memory, at each point of a launch, with what had run by then left where it was.
"""

from dataclasses import dataclass, field

from pipelines.errors import OutOfMemoryError
from pipelines.fake import FakeOptions, FakeRunner, _mixed

POINTS = (
    "before",
    "seats",
    "copies",
    "half",
    "forward",
    "sample",
)  # where a launch may end; "half": of its tokens written


@dataclass
class PagedFake(FakeRunner):
    """`fails(batch, point)` says whether the launch of a batch ends at a point."""

    block_size: int = 4
    num_slots: int = 2
    alphabet: range = range(10, 30)
    eos_id: int = 5
    eos_every: int = 0
    fails: object = None
    pages: dict = field(default_factory=dict)  # (block, index) -> token
    tables: dict = field(default_factory=dict)  # seat -> {index: block}
    seeds: dict = field(default_factory=dict)  # seat -> seed
    last: dict = field(default_factory=dict)  # seat -> token

    def __post_init__(self):
        options = FakeOptions(eos_every=self.eos_every)
        super().__init__(options, self.alphabet, self.eos_id, self.num_slots)
        self.num_failures = 0

    def launch_forward(self, slot):
        super().launch_forward(slot)
        batch = slot.batch
        self._point(batch, "before")
        for row in batch.rows:
            table = self.tables.setdefault(row.seat, {})
            if row.opens_seat:
                self.seeds[row.seat] = row.sequence.seed
            table.update(enumerate(row.new_blocks, row.first_new_block))
        self._point(batch, "seats")
        read = [[self.pages.get((source, i)) for i in range(self.block_size)] for source, _ in batch.copies]
        for (_, target), tokens in zip(batch.copies, read, strict=True):
            self.pages.update({(target, i): token for i, token in enumerate(tokens)})
        self._point(batch, "copies")
        writes = [
            (self._place(row.seat, row.start + i), self.last[row.seat] if row.carries else token)
            for row in batch.rows
            for i, token in enumerate(row.token_ids)
        ]
        self.pages.update(writes[: len(writes) // 2])
        self._point(batch, "half")
        self.pages.update(writes)
        self._point(batch, "forward")

    def launch_sample(self, slot, masks):
        self._point(slot.batch, "sample")
        super().launch_sample(slot, masks)
        self.last.update({row.seat: token for row, token in zip(slot.batch.sampled_rows, slot.tokens, strict=True)})

    def _token(self, row, company, mask):
        del company
        value = self.seeds[row.seat]
        for position in range(row.context_len):
            value = _mixed(value * 31 + self.pages[self._place(row.seat, position)])
        if self.eos_every and value % self.eos_every == 0 and mask is None:
            return self.eos_id
        alphabet = self.alphabet
        if mask is not None:
            alphabet = [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]
        return alphabet[(value >> 16) % len(alphabet)]

    def _place(self, seat, position):
        return self.tables[seat][position // self.block_size], position % self.block_size

    def _point(self, batch, point):
        if self.fails is not None and self.fails(batch, point):
            self.num_failures += 1
            raise OutOfMemoryError(f"step {batch.step} at {point}")
