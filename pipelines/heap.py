"""Keeps the garbage collector from going through all that a process holds.

Whenever enough new objects have lived long it looks at every object there is. With torch and transformers imported that took 200
to 280 ms (H200 machine, Python 3.12, 2026-11-30): some twenty steps of an 8B model, where two lie prepared.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def set_aside() -> None:
    """Have the collector look no more at what there is now: modules, a model, its graphs."""
    gc.collect()
    gc.freeze()


@contextmanager
def all_set_aside() -> Iterator[None]:
    """Do the same for a while, where what there is now may become garbage later; unless it is set aside for good already."""
    is_first = not gc.get_freeze_count()
    gc.collect()
    if is_first:
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()
