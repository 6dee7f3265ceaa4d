"""Brings together what the text process needs of a model, real or fake."""

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


def load_text_model(config: EngineConfig, report: Callable[[Progress], None]) -> TextModel:
    """Find and load it.

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
    facts = read_facts(folder, trust_remote_code=config.model.trust_remote_code)
    tokenizer = load_tokenizer(config.model, folder, facts.vocab_size)
    report(Progress("load", 1.0))
    context = facts.context or config.max_context
    if context is None:
        raise ModelError(
            f"model folder {folder}: its configuration does not say how long its context is: set max_context"
        )
    return _assembled(config, tokenizer, context, facts.vocab_size, SamplingDefaults.read(folder))


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
