"""Converts a GGUF file into a folder that transformers loads: configuration, safetensors, tokenizer.

Llama-architecture files are read by our own code, which needs neither torch nor the model in memory. For the others
transformers' loader is used, where it knows them.
"""

import importlib.util
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader

from pipelines.errors import EngineError, ModelError
from pipelines.models.gguf_llama import LlamaShape, llama_config, llama_tensors
from pipelines.models.gguf_tokenizer import generation_config, save_tokenizer
from pipelines.models.safetensors_file import StoredDtype, write_safetensors

CONVERTER_VERSION = 2  # part of a converted folder's name: raise it when the same file would convert differently
_FLOAT32_ELEMENTS = 1 << 30  # up to so many parameters a model is kept as exact float32, above in bfloat16
_READ_SHARE = 0.1  # of the progress: reading the head
_WEIGHTS_SHARE = 0.7  # of the progress: writing the tensors; the rest is the tokenizer


def convert_gguf(file: Path, folder: Path, report: Callable[[float], None]) -> None:
    """Fill the empty `folder` with the model in `file`. `report` hears the share of the work done.

    Raises:
        ModelError: the file is damaged, or holds a model that cannot be converted.
        EngineError: the disk is too full for the converted model.
        OSError: the file cannot be read or the folder not written.
    """
    report(0.0)
    reader = _open(file)
    report(_READ_SHARE)
    dtype = _stored_dtype(reader)
    _check_room(reader, dtype, folder)
    match _architecture(reader, file):
        case "llama":
            _write_llama(reader, file, folder, dtype, lambda done: report(_READ_SHARE + _WEIGHTS_SHARE * done))
        case architecture:
            _write_by_transformers(file, folder, architecture, dtype)
    _write_arithmetic(folder / "config.json", reader, dtype)
    _write_json(folder / "generation_config.json", generation_config(reader))
    report(_READ_SHARE + _WEIGHTS_SHARE)
    save_tokenizer(reader, file, folder)
    report(1.0)


def _open(file: Path) -> GGUFReader:
    """Read the file's head; whatever its bytes are."""
    try:
        with warnings.catch_warnings(action="ignore"):  # arithmetic on the numbers of a damaged head
            reader = GGUFReader(file)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(f"{file} is no readable GGUF file, or it is cut short: {_one_line(error)}") from error
    if reader.byte_order == "S":
        raise ModelError(f"{file}: found a GGUF of the other byte order, expected this machine's")
    split = reader.get_field("split.count")
    if split is not None and (count := split.contents()) > 1:
        raise ModelError(
            f"{file} is one part of a GGUF split in {count}: merge them with llama-gguf-split --merge first"
        )
    return reader


def _architecture(reader: GGUFReader, file: Path) -> str:
    field = reader.get_field("general.architecture")
    name = None if field is None else field.contents()
    if not isinstance(name, str):
        raise ModelError(f"{file}: metadata general.architecture is missing, so that the model in it is unknown")
    return name


def _stored_dtype(reader: GGUFReader) -> StoredDtype:
    num_elements = sum(tensor.n_elements for tensor in reader.tensors)
    return StoredDtype.FLOAT32 if num_elements <= _FLOAT32_ELEMENTS else StoredDtype.BFLOAT16


def _write_arithmetic(config: Path, reader: GGUFReader, dtype: StoredDtype) -> None:
    """Say what a GPU is to compute in where nobody says it: nothing wider than what most of the file is."""
    num_wide = sum(tensor.n_elements for tensor in reader.tensors if tensor.tensor_type is GGMLQuantizationType.F32)
    num_others = sum(tensor.n_elements for tensor in reader.tensors) - num_wide
    name = "float32" if dtype is StoredDtype.FLOAT32 and num_wide > num_others else "bfloat16"
    _write_json(config, json.loads(config.read_text("utf-8")) | {"dtype": name})


def _check_room(reader: GGUFReader, dtype: StoredDtype, folder: Path) -> None:
    needed_bytes = sum(tensor.n_elements for tensor in reader.tensors) * dtype.num_bytes
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise EngineError(
            f"too little room for the converted model in {folder.parent}: found {free_bytes / 1e6:.0f} MB, "
            f"expected {needed_bytes / 1e6:.0f} MB; $GAPLESS_CACHE names another place"
        )


def _write_llama(
    reader: GGUFReader, file: Path, folder: Path, dtype: StoredDtype, report: Callable[[float], None]
) -> None:
    try:
        shape = LlamaShape.read(reader)
        tensors = llama_tensors(reader, shape)
        config = llama_config(reader, shape)
        write_safetensors(folder / "model.safetensors", tensors, dtype, report)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from error
    special = {name: value for name, value in generation_config(reader).items() if value is not None}
    _write_json(folder / "config.json", config | special)


def _write_by_transformers(file: Path, folder: Path, architecture: str, dtype: StoredDtype) -> None:
    if importlib.util.find_spec("accelerate") is None:
        raise ModelError(
            f"{file}: a GGUF of architecture {architecture!r} is read by transformers, which needs accelerate for it: "
            "pip install accelerate, or use the safetensors checkpoint"
        )
    import torch  # noqa: PLC0415  only these architectures need it here
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()  # progress goes to whoever waits, not to this process's terminal
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(file.parent),
            gguf_file=file.name,
            dtype=torch.float32 if dtype is StoredDtype.FLOAT32 else torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(folder)
    except Exception as error:  # whatever transformers says of a file that it cannot use
        raise ModelError(f"{file}: transformers cannot read this GGUF: {_one_line(error)}") from error


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
