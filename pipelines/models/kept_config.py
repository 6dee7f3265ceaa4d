"""What follows from a model's config.json, kept so that the next start knows it without transformers.

To read a configuration as transformers does takes its class, and with that class comes most of transformers and of what that
looks for: 6 of the 10 s that an engine process spent on imports (H200 machine, transformers 5.17, scikit-learn and SciPy
installed, 2026-12-01). What comes out depends on the file and on the code that reads it, and these are what it is kept under.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.models.cache import cache_folder, put_text

_READERS = ("transformers", "torch")
_ELSEWHERE = frozenset({"auto_map", "configuration_files"})  # they name other files that say what the configuration is


def from_config(folder: Path, module: str, work_out: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `work_out` makes of the folder's config.json, from the cache where it did so before.

    `module` is the `__file__` of the module whose code that is: where it changes, the work is done again, as it is where
    another version of transformers is installed. A cache that cannot be read or written is done without.

    Raises:
        Exception: whatever `work_out` raises; that is not kept.
    """
    name = _name(folder, Path(module))
    if name is None:
        return work_out()
    kept = cache_folder() / "configs" / name
    with suppress(OSError, ValueError):
        known = json.loads(kept.read_text("utf-8"))
        if isinstance(known, dict):
            return known
    found = work_out()
    with suppress(OSError):
        put_text(kept, json.dumps(found))
    return found


def _name(folder: Path, module: Path) -> str | None:
    """Return what names all that the outcome depends on, None where that is more than is known here."""
    try:
        content = (folder / "config.json").read_bytes()
        config = json.loads(content)
        versions = [f"{package} {version(package)}".encode() for package in _READERS]
        source = module.read_bytes()
    except (OSError, ValueError, PackageNotFoundError):
        return None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str) or _ELSEWHERE & config.keys():
        return None  # without a type the folder's name may tell it
    digest = hashlib.sha256()
    for part in (content, *versions, source):
        digest.update(hashlib.sha256(part).digest())
    return f"{module.stem}-{digest.hexdigest()[:32]}.json"
