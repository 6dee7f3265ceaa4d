"""What text and engine process both have to know of a model folder, read from its configuration files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import ModelError
from pipelines.models.kept_config import from_config

_NOT_APPLIED = ("repetition_penalty", "min_p", "typical_p", "no_repeat_ngram_size", "suppress_tokens", "bad_words_ids")
_NEUTRAL = {"repetition_penalty": 1.0, "min_p": 0.0, "typical_p": 1.0, "no_repeat_ngram_size": 0}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a model."""

    vocab_size: int  # rows of its embedding; a tokenizer may have fewer tokens
    context: int | None  # tokens a sequence may have; None: its configuration does not say


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What `generation_config.json` says for requests that say nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    eos_ids: tuple[int, ...] = ()
    not_applied: tuple[str, ...] = ()  # settings there that this engine does not know, as name=value

    @classmethod
    def read(cls, folder: Path) -> "SamplingDefaults":
        """Read a model folder's. A file that says `do_sample: false` asks for greedy; one that is silent samples.

        The end-of-sequence ids come from `config.json` where the file does not name them.

        Raises:
            ModelError: one of the files is there but no JSON object.
        """
        generation = _read_json(folder / "generation_config.json")
        eos = generation.get("eos_token_id")
        if eos is None:
            eos = _read_json(folder / "config.json").get("eos_token_id")
        is_greedy = generation.get("do_sample") is False
        return cls(
            temperature=0.0 if is_greedy else float(_given(generation, "temperature", 1.0)),
            top_k=max(int(_given(generation, "top_k", 0)), 0),
            top_p=float(_given(generation, "top_p", 1.0)),
            eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
            not_applied=tuple(
                f"{name}={generation[name]}"
                for name in _NOT_APPLIED
                if generation.get(name) not in (None, [], _NEUTRAL.get(name))
            ),
        )


def read_facts(folder: Path, *, trust_remote_code: bool = False) -> ModelFacts:
    """Read the sizes of the model in a folder.

    Raises:
        ModelError: its configuration cannot be read, or names no vocabulary size.
    """
    facts = from_config(folder, __file__, lambda: _read_by_transformers(folder, trust_remote_code))
    return ModelFacts(facts["vocab_size"], facts["context"])


def _read_by_transformers(folder: Path, trust_remote_code: bool) -> dict[str, Any]:
    from transformers import AutoConfig  # noqa: PLC0415  takes seconds, and what it says is kept

    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # whatever transformers says of a folder that it cannot use
        reason = " ".join(str(error).split())
        raise ModelError(f"model folder {folder}: its configuration cannot be read: {reason}") from error
    text = config.get_text_config()
    vocab_size = getattr(text, "vocab_size", None)
    if not isinstance(vocab_size, int):
        raise ModelError(f"model folder {folder}: found no vocab_size in config.json, expected a language model")
    return {"vocab_size": vocab_size, "context": getattr(text, "max_position_embeddings", None)}


def _given(values: dict[str, Any], name: str, default: float) -> float:
    value = values.get(name)
    return default if value is None else value


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: {error}, expected a JSON object") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: found {type(content).__name__}, expected a JSON object")
    return content
