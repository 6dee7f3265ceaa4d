"""Rebuilds a tokenizer from a GGUF and mends what transformers loses on the way."""

from pathlib import Path
from typing import Any

from gguf import GGUFReader

from pipelines.errors import ModelError

_ROLES = {  # attribute of the tokenizer -> metadata key
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_KINDS = ("gpt2", "llama", "gemma4", "t5")  # byte-level, sentencepiece twice, unigram: what transformers rebuilds
_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|eom_id|>")


def save_tokenizer(reader: GGUFReader, file: Path, folder: Path) -> None:
    """Write the tokenizer of `file`, with its chat template, into `folder` as transformers keeps it.

    Raises:
        ModelError: the file's tokenizer is of a kind that transformers does not rebuild.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds, and only a conversion needs it

    if (kind := _contents(reader, "tokenizer.ggml.model", None)) not in _KINDS:
        raise ModelError(f"{file}: tokenizer.ggml.model: found {kind!r}, expected one of {', '.join(_KINDS)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    except Exception as error:  # whatever transformers says of a file that it cannot use
        raise ModelError(f"the tokenizer in {file} cannot be rebuilt: {_one_line(error)}") from error
    _name_special_tokens(tokenizer, reader, file)
    if _contents(reader, "tokenizer.ggml.pre", "") == "smollm":
        _split_digits(tokenizer)
    if template := _contents(reader, "tokenizer.chat_template", None):
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def generation_config(reader: GGUFReader) -> dict[str, Any]:
    """Return the content of `generation_config.json`: the special ids, every end of sequence among them.

    Older files name only the base model's end of text as end of sequence; the token that ends a turn in the file's chat
    template then counts too, or no answer would ever end.
    """
    ends = {_contents(reader, key, None) for key in _ENDS} - {None}
    template = _contents(reader, "tokenizer.chat_template", "")
    if spoken := {name for name in _TURN_ENDS if name in template}:
        ends |= {index for index, token in enumerate(_contents(reader, "tokenizer.ggml.tokens", [])) if token in spoken}
    eos = _contents(reader, "tokenizer.ggml.eos_token_id", None)
    ids: dict[str, Any] = {
        "bos_token_id": _contents(reader, "tokenizer.ggml.bos_token_id", None),
        "eos_token_id": sorted(ends) if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": _contents(reader, "tokenizer.ggml.padding_token_id", eos),
    }
    return {name: value for name, value in ids.items() if value is not None}


def _name_special_tokens(tokenizer: Any, reader: GGUFReader, file: Path) -> None:
    """Give each role the token that the file names; end of sequence pads where the file names none for it."""
    tokens = _contents(reader, "tokenizer.ggml.tokens", [])
    for role, key in _ROLES.items():
        token_id = _contents(reader, key, None)
        if token_id is None or not 0 <= token_id < len(tokens):
            continue
        setattr(tokenizer, role, tokens[token_id])
        if (found := getattr(tokenizer, f"{role}_id")) != token_id:
            raise ModelError(f"the tokenizer in {file} cannot be rebuilt: {role} became {found}, expected {token_id}")
    if _contents(reader, _ROLES["pad_token"], None) is None:
        tokenizer.pad_token = tokenizer.eos_token


def _split_digits(tokenizer: Any) -> None:
    """Cut every digit off before the byte-level split: so SmolLM's own tokenizer does, and llama.cpp with this file."""
    from tokenizers import pre_tokenizers  # noqa: PLC0415  as transformers above

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )


def _contents(reader: GGUFReader, key: str, default: Any) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
