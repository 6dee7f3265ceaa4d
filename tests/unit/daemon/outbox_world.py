"""The folders of one pipeline with files that were claimed, for tests of what is published."""

from dataclasses import dataclass
from pathlib import Path

from daemon.file_kinds import FileKind
from daemon.journal import Journal
from daemon.journal_records import Header, Sealed
from daemon.outbox import FileNames, Publisher, partial_output


@dataclass
class Spool:
    """The folders of one pipeline."""

    root: Path

    def __post_init__(self) -> None:
        for folder in (self.work, self.outbox, self.done, self.failed):
            folder.mkdir()

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    @property
    def done(self) -> Path:
        return self.root / "done"

    @property
    def failed(self) -> Path:
        return self.root / "failed"

    def claim(self, name: str = "in.jsonl", content: bytes = b"input\n", kind: FileKind = FileKind.LINES) -> FileNames:
        """Put a file into work/."""
        (self.work / name).write_bytes(content)
        return FileNames(Path(name).stem, self.work / name, self.outbox, self.done, self.failed, kind)

    def names_in(self, folder: str) -> list[str]:
        """Return what lies in a folder."""
        return sorted(path.name for path in (self.root / folder).iterdir())


def running(names: FileNames, num_requests: int, journals: list[Journal]) -> Journal:
    """Return the journal of a file that has started."""
    header = Header("f", 1, names.input.name, 1, 1, "m", {})
    journal = Journal.create(names.journal, header)
    journal.append_started(1, num_requests)
    journals.append(journal)
    return journal


def publish(journal: Journal, names: FileNames, sealed: Sealed, *, in_input_order: bool = True) -> Path | None:
    """Seal and publish."""
    journal.append_sealed(sealed)
    return Publisher(journal, names, partial_output(journal, names, in_input_order=in_input_order)).publish()


SEALED = Sealed(batch="{}\n", report="{}\n")
