"""Log-probabilities of token ids, as people read them."""

from collections.abc import Iterable

from pipelines.core.request import TextLogprob, TextLogprobs, TokenLogprobs
from pipelines.text.tokenizer import Tokenizer

_LEAST = -9999.0  # for a token that the model gives no share at all; JSON has no infinity


def text_logprobs(
    tokenizer: Tokenizer, token_ids: Iterable[int], logprobs: Iterable[TokenLogprobs]
) -> tuple[TextLogprobs, ...]:
    """Return what was found of tokens, in words; both in the tokens' order, ending with the shorter."""
    return tuple(
        [
            TextLogprobs(
                _in_words(tokenizer, token_id, found.logprob),
                tuple([_in_words(tokenizer, other, logprob) for other, logprob in found.top]),
            )
            for token_id, found in zip(token_ids, logprobs, strict=False)
        ]
    )


def _in_words(tokenizer: Tokenizer, token_id: int, logprob: float) -> TextLogprob:
    data = tokenizer.detokenizer.piece(token_id)
    text = data.decode("utf-8", "replace") if data else tokenizer.name(token_id)
    return TextLogprob(text, data, max(logprob, _LEAST))
