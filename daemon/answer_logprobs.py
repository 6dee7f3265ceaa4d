"""Log-probabilities in the forms of OpenAI's endpoints: one entry a token, up to and with the one that ended the answer."""

from collections.abc import Sequence
from typing import Any

from pipelines.core.request import TextLogprob, TextLogprobs


def chat_logprobs(tokens: Sequence[TextLogprobs]) -> dict[str, Any]:
    """Return `choices[].logprobs` of a chat."""
    return {
        "content": [
            {**_entry(found.token), "top_logprobs": [_entry(other) for other in found.top]} for found in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[TextLogprobs]) -> dict[str, Any]:
    """Return `choices[].logprobs` of a completion; `text_offset` counts characters of the tokens' texts before each."""
    offsets, end = [], 0
    for found in tokens:
        offsets.append(end)
        end += len(found.token.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [found.token.logprob for found in tokens],
        "tokens": [found.token.text for found in tokens],
        "top_logprobs": [_by_text(found) for found in tokens],
    }


def _entry(token: TextLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data) or None}


def _by_text(found: TextLogprobs) -> dict[str, float]:
    """Return the likeliest tokens by their texts; of two with one text, as parts of characters have it, the likelier."""
    return {other.text: other.logprob for other in reversed(found.top)}
