"""Names of request files: where the stem ends."""

import pytest

from daemon.file_kinds import split_name


@pytest.mark.parametrize(
    ("name", "stem", "suffix"),
    [
        ("a.jsonl", "a", ".jsonl"),
        ("a.b.jsonl.gz", "a.b", ".jsonl.gz"),
        ("A.JSONL.Zst", "A", ".JSONL.Zst"),
        ("a.jsonl.gz.jsonl", "a.jsonl.gz", ".jsonl"),
        (".jsonl.gz", ".jsonl", ".gz"),
        ("a.gz", "a", ".gz"),
        ("a", "a", ""),
        ("\u0130.jsonl", "\u0130", ".jsonl"),
    ],
)
def test_stem_and_extension_are_the_name(name: str, stem: str, suffix: str) -> None:
    """A compressed file has one extension of two parts, and nothing of a name is lost."""
    assert split_name(name) == (stem, suffix)
    assert stem + suffix == name
