"""What a request asks of tools, held against what is known of the model: how calls in its answers are written."""

from typing import Protocol

from pipelines.core.request import TextRequest, ToolFormat
from pipelines.text.refusal import RefusalCode, RefusalError

_FORMATS = "hermes, llama3_json or mistral"


class KnowsCalls(Protocol):
    """What can be told of how a model calls."""

    tool_format: ToolFormat | None


def format_of(request: TextRequest, model: KnowsCalls) -> ToolFormat | None:
    """Return how the calls in a request's answers are written; None where none are looked for.

    Raises:
        RefusalError: nobody knows, or the request asks for calls in a way that excludes them.
    """
    tools = request.tools
    if tools is None or not tools.definitions:
        return None
    if request.tool_format is ToolFormat.TEXT:
        if tools.must_call:
            message = (
                "found a call that must be, expected auto or none: tool_calls of the pipeline leaves calls in the text"
            )
            raise _refusal("tool_choice", message)
        return None
    if request.grammar is not None:
        param = request.grammar.param
        raise _refusal(
            "tools",
            f"found beside {param}, which leaves no room for calls: expected one of the two, or tool_choice none",
        )
    if request.tool_format is not ToolFormat.AUTO:
        return request.tool_format
    if model.tool_format is None:
        message = (
            "how this model writes calls cannot be told from its chat template: expected "
            f"tool_calls of the pipeline to be {_FORMATS}, or text to leave them in the text"
        )
        raise _refusal("tools", message)
    return model.tool_format


def _refusal(param: str, message: str) -> RefusalError:
    return RefusalError(RefusalCode.UNSUPPORTED_PARAMETER, param, f"{param}: {message}")
