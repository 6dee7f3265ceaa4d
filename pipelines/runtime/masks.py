"""Token masks of one step on their way to the device: which tokens a grammar allows next, bound late."""

import numpy as np
import torch
from torch import Tensor

from pipelines.errors import EngineError
from pipelines.runtime.streams import MASKS_DONE, Event, Stream


class MaskBuffer:
    """A slot's masks, host and device twins; row `i` is the number of a sampled row and its ceil(V / 32) words of bits."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device, *, pinned: bool) -> None:
        self._num_words = -(-vocab_size // 32)
        shape = (max_num_seqs, 1 + self._num_words)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned and device.type != "cpu")
        self._device = torch.zeros(shape, dtype=torch.int32, device=device)

    def stage(self, masks: dict[int, bytes], h2d: Stream) -> Event:
        """Start the masks' copy to the device; `masks`: number of the sampled row -> bits, see `TokenMask`.

        Raises:
            EngineError: a mask is not as long as the vocabulary.
        """
        words = self._host.numpy()
        for index, (row, bits) in enumerate(masks.items()):
            if len(bits) != 4 * self._num_words:
                raise EngineError(
                    f"a token mask has {len(bits)} bytes, expected {4 * self._num_words} for the vocabulary"
                )
            words[index, 0] = row
            words[index, 1:] = np.frombuffer(bits, dtype="<i4")
        h2d.launch(self._copy, len(masks))
        return h2d.record(MASKS_DONE)

    def read(self, count: int) -> tuple[Tensor, Tensor]:
        """Return rows [m] int64 and bits [m, W] int32 of the masks on the device; for the compute stream."""
        return self._device[:count, 0].long(), self._device[:count, 1:]

    def _copy(self, count: int) -> None:
        self._device[:count].copy_(self._host[:count], non_blocking=True)
