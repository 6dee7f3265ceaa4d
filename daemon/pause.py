"""Why a pipeline takes no files."""

from enum import StrEnum


class PauseCause(StrEnum):
    """Why no file is taken; a label of `gapless_pipeline_paused`."""

    BY_HAND = "by_hand"  # somebody paused it: `gapless pause`
    STORAGE = "storage"  # an error of the file system
