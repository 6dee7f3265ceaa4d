"""Why a request cannot be run, as the text process finds it."""

from enum import StrEnum

from pipelines.errors import EngineError


class RefusalCode(StrEnum):
    """What programs read; `context_length_exceeded` is OpenAI's word."""

    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_TOKEN_ID = "invalid_token_id"  # noqa: S105  a token of a text, no secret
    INVALID_TEXT = "invalid_text"  # no Unicode text
    INVALID_STOP = "invalid_stop"
    EMPTY_PROMPT = "empty_prompt"
    NO_CHAT_TEMPLATE = "no_chat_template"
    CHAT_TEMPLATE_REFUSES = "chat_template_refuses"
    INVALID_GRAMMAR = "invalid_grammar"
    GRAMMAR_FAILED = "grammar_failed"  # it turned out to be too costly
    UNSUPPORTED_PARAMETER = "unsupported_parameter"  # by this model
    INTERNAL_ERROR = "internal_error"  # a fault of ours; only this request ends by it


class RefusalError(EngineError):
    """A request cannot be run; its text says where, what was found and what was expected."""

    def __init__(self, code: RefusalCode, param: str | None, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
