"""Files in the folders of pipelines that are in no configuration any more: nobody runs them, so somebody is told."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.durable import printable
from daemon.file_kinds import kind_of
from daemon.folders import MARK, Folders


@dataclass(frozen=True, slots=True)
class ForgottenPipeline:
    """Folders that gapless made, of a pipeline that is not there, with files that wait for it."""

    folders: Folders
    waiting: tuple[Path, ...]  # in its inbox
    begun: tuple[Path, ...]  # in its work/

    def __str__(self) -> str:
        root = self.folders.root
        files = f"begun: {len(self.begun):,}, in the inbox: {len(self.waiting):,}"
        return (
            f"{printable(root)} has files ({files}) and the configuration no pipeline {printable(root.name)}: "
            "nothing happens to them until it has"
        )


def forgotten_pipelines(spool: Path, pipelines: Collection[str]) -> Iterator[ForgottenPipeline]:
    """Yield those with files, by name; what cannot be listed is left out."""
    roots: list[Path] = []
    with suppress(OSError):
        roots = sorted(root for root in spool.iterdir() if root.name not in pipelines and (root / MARK).is_file())
    for root in roots:
        folders = Folders(root)
        found = ForgottenPipeline(folders, _files_in(folders.inbox), _files_in(folders.work))
        if found.waiting or found.begun:
            yield found


def count_left(spool: Path, pipelines: Collection[str]) -> tuple[int, int]:
    """Return how many files of pipelines are begun, and how many lie in their inboxes; what cannot be listed has none."""
    folders = [Folders(spool / name) for name in pipelines]
    return sum(len(_files_in(each.work)) for each in folders), sum(len(_files_in(each.inbox)) for each in folders)


def _files_in(folder: Path) -> tuple[Path, ...]:
    with suppress(OSError):
        return tuple(sorted(path for path in folder.iterdir() if kind_of(path.name) is not None and path.is_file()))
    return ()
