"""Brings together what the text process needs of a model, real or fake."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.config import EngineConfig
from pipelines.core.request import Progress
from pipelines.counted import counted
from pipelines.errors import ModelError
from pipelines.fake import FakeOptions
from pipelines.models.facts import SamplingDefaults, read_facts
from pipelines.models.source import model_name, resolve_model
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.prepare import Preparer
from pipelines.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model as the text process sees it."""

    name: str
    tokenizer: Tokenizer
    preparer: Preparer
    context: int  # tokens a sequence may have
    vocab_size: int
    detail: str  # one line for the log


def load_text_model(
    config: EngineConfig, report: Callable[[Progress], None], *, may_hide_torch: bool = False
) -> TextModel:
    """Find and load it; where nothing else of this process needs torch, it `may_hide_torch`.

    Raises:
        ModelError: the model cannot be found, or its tokenizer not be used.
        EngineError: the cache cannot be written.
    """
    if config.model.is_fake:
        options = FakeOptions.parse(config.model.path)
        fake = ByteTokenizer(options.context, options.token_bytes)
        return _assembled(config, fake, fake.context, fake.vocab_size, SamplingDefaults())
    folder = resolve_model(config.model, report)
    report(Progress("load", 0.0))
    if may_hide_torch and not config.model.trust_remote_code:  # a model's own code may need it
        _hide_torch()
    facts = read_facts(folder, trust_remote_code=config.model.trust_remote_code)
    tokenizer = load_tokenizer(config.model, folder, facts.vocab_size)
    report(Progress("load", 1.0))
    context = facts.context or config.max_context
    if context is None:
        raise ModelError(
            f"model folder {folder}: its configuration does not say how long its context is: set max_context"
        )
    return _assembled(config, tokenizer, context, facts.vocab_size, SamplingDefaults.read(folder))


def _hide_torch() -> None:
    """Have transformers find no torch, for good: it offers tokenizers and configurations without.

    That is all the text process needs, and torch would be most of what it loads: 3.5 s and 360 MB became 1.5 s and 126 MB (two
    cores, transformers 5.24); with transformers 5.17, which then looks for scikit-learn and SciPy too, 5.9 s and 523 MB became
    1.5 s and 142 MB (2026-12-01).
    """
    if "torch" not in sys.modules:  # else a conversion has needed it, and it is paid for
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is not there
        sys.modules["torch"] = None  # type: ignore[assignment]  # by this an import fails, and a search finds nothing


def _assembled(
    config: EngineConfig, tokenizer: Tokenizer, context: int, vocab_size: int, defaults: SamplingDefaults
) -> TextModel:
    context = min(context, config.max_context or context)
    detail = f"context {counted(context, 'token')}"
    if defaults.not_applied:
        detail += f"; generation_config.json also asks for {', '.join(defaults.not_applied)}, which is not applied"
    return TextModel(
        name=model_name(config.model),
        tokenizer=tokenizer,
        preparer=Preparer(tokenizer, vocab_size, context, defaults),
        context=context,
        vocab_size=vocab_size,
        detail=detail,
    )
