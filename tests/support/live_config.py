"""A configuration of a running daemon, edited as people and programs edit files."""

import json
from pathlib import Path

from commands import gapless

from daemon.reload_files import ReloadFiles
from daemon.settings import load_settings

ENDLESS = "fake:step_ms=2"


def save_in_place(path, text):
    """Truncate, then write."""
    Path(path).write_text(text)


def save_by_rename(path, text):
    """As editors do: the new file gets the old one's name."""
    new = Path(path).with_name(f".{Path(path).name}.new")
    new.write_text(text)
    new.rename(path)


def save_by_link(path, text):
    """A link that leads to another file each time."""
    path = Path(path)
    target = path.with_name(f"target-{len(list(path.parent.iterdir()))}.txt")
    target.write_text(text)
    link = path.with_name(".link")
    link.symlink_to(target.name)
    link.rename(path)


def mount_as_configmap(path, text):
    """As Kubernetes mounts it: path -> ..data/NAME, and the folder ..data -> a new one at each change."""
    path = Path(path)
    folder = path.parent / f"..{len(list(path.parent.iterdir()))}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    link = path.parent / "..data_tmp"
    link.symlink_to(folder.name)
    link.rename(path.parent / "..data")
    if not path.is_symlink() or path.readlink() != Path("..data", path.name):
        path.unlink(missing_ok=True)
        path.symlink_to(f"..data/{path.name}")


def config_error(daemon):
    """Why the last edit is refused, None if it is not."""
    return json.loads(daemon.get("/status"))["config"]["error"]


def running(daemon):
    """The settings in effect."""
    return load_settings([ReloadFiles(daemon.folder / "spool").running])


def edit(daemon, *changes):
    """Change words of the configuration in place; return the text before."""
    before = text = daemon.config.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    daemon.config.write_text(text)
    return before


def tokens_of(daemon, stem):
    """How many tokens the answers of a finished file have."""
    return {line["response"]["body"]["usage"]["completion_tokens"] for line in daemon.lines(f"{stem}.output.jsonl")}


def reload(daemon):
    """Have it look now; an edit is applied when this returns."""
    return gapless("reload", cwd=daemon.folder)


def says(daemon, text):
    return daemon.until(lambda: text in daemon.log.read_text(), text)


def counts(daemon, stem):
    return (daemon.batch(stem) or {"request_counts": {"completed": 0}})["request_counts"]
