"""The used beginnings of buffers, for copies: each is made once, since slicing takes the host longer than some copies."""

from torch import Tensor

_UNIT = 64  # elements that a beginning is rounded up to, so that there are few of them


class Prefixes:
    """Those of tensors [N] of one length."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        self._made: dict[int, tuple[Tensor, ...]] = {}  # units -> of each tensor

    def of(self, count: int) -> tuple[Tensor, ...]:
        """Return at least the first `count` elements of each tensor."""
        units = -(-count // _UNIT)
        made = self._made.get(units)
        if made is None:
            made = self._made[units] = tuple(tensor[: units * _UNIT] for tensor in self._tensors)
        return made
