"""What comes to a text process: requests of the daemon, and what the engine says of them."""

from typing import Any

from pipelines.core.request import FinishReason, SamplingParams, TextRequest, TokenOutput
from pipelines.models.facts import SamplingDefaults
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.prepare import Preparer
from pipelines.text.text_worker import TextProcessor

EOS = ByteTokenizer().eos_id


def new_processor() -> TextProcessor:
    tokenizer = ByteTokenizer(128)
    return TextProcessor(Preparer(tokenizer, tokenizer.vocab_size, 128, SamplingDefaults()), tokenizer)


def request(key: int, **sampling: Any) -> TextRequest:
    """A greedy request, unless told otherwise."""
    return TextRequest(
        key, file=0, priority=0, sampling=SamplingParams(**{"temperature": 0.0} | sampling), text="hello"
    )


def output(
    key: int, text: bytes, choice: int = 0, *, ended: bool = False, reason: FinishReason | None = None
) -> TokenOutput:
    ids = (*text, EOS) if ended else tuple(text)
    return TokenOutput(
        key, choice, ids, reason or (FinishReason.STOP if ended else FinishReason.LENGTH), ended_by_token=ended
    )
