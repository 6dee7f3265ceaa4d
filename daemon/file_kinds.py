"""What a file is, told from its name alone: a request file and of which kind, or something beside one."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePath


class FileKind(StrEnum):
    """How a request file is read; told by its extension."""

    LINES = "lines"  # .jsonl, also compressed: one request a line
    JSON = "json"  # .json: one object, or an array of them
    TEXT = "text"  # .txt, .md: the whole file is one prompt
    CSV = "csv"  # a table, one request a row
    TSV = "tsv"  # the same with tabs
    PARQUET = "parquet"  # the same in columns

    @property
    def is_table(self) -> bool:
        """Whether requests are made of rows, by the pipeline's template."""
        return self in {FileKind.CSV, FileKind.TSV, FileKind.PARQUET}


KINDS: Mapping[str, FileKind] = {
    ".jsonl": FileKind.LINES,
    ".jsonl.gz": FileKind.LINES,
    ".jsonl.zst": FileKind.LINES,
    ".json": FileKind.JSON,
    ".txt": FileKind.TEXT,
    ".md": FileKind.TEXT,
    ".csv": FileKind.CSV,
    ".tsv": FileKind.TSV,
    ".parquet": FileKind.PARQUET,
}

REASON_SUFFIX = ".reason.json"
OPTIONS_SUFFIX = ".options.yaml"
OUTBOX_SUFFIXES = (
    ".output.jsonl",
    ".output.txt",
    ".output.csv",
    ".output.tsv",
    ".output.parquet",
    ".errors.jsonl",
    ".report.json",
    ".batch.json",
    ".output.jsonl.partial",
    ".output.txt.partial",
    ".errors.jsonl.partial",
)


def kind_of(name: str) -> FileKind | None:
    """Return how a file of this name is read, or None where it is no request file."""
    return KINDS.get(split_name(name)[1].lower())


def split_name(name: str) -> tuple[str, str]:
    """Return stem and extension as they are written; `.jsonl.gz` is one extension."""
    for suffix in KINDS:
        if len(name) > len(suffix) and name[-len(suffix) :].lower() == suffix:
            return name[: -len(suffix)], name[-len(suffix) :]
    path = PurePath(name)
    return path.stem, path.suffix


def stem_of(name: str) -> str:
    """Return a file's name without its extension."""
    return split_name(name)[0]
