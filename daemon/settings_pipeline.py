"""The sections `pipelines.NAME` of the YAML file: what its files are run with, and what their results look like.

Every key is declared with its default, its range, its meaning and when a change of it can take effect. The reference page is
generated from that (`python -m daemon.settings_reference`).
"""

from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from daemon.errors import SettingsError
from daemon.settings_fields import (
    ANSWER_TEXT,
    MAX_TOKENS,
    TELL_TEXT,
    TOLD_TEXT,
    Answer,
    Change,
    Section,
    TellTarget,
    Told,
    choice,
    key,
    section,
)
from daemon.settings_report import Written, to_problems
from pipelines.core.request import ToolFormat

MAX_LIMIT_S = 366 * 86400


class LongPrompt(StrEnum):
    """What becomes of a prompt that does not fit into the context."""

    REJECT = "reject"  # an error line of its own


class OnBadLine(StrEnum):
    """What a line that cannot be read does to its file."""

    RECORD = "record"  # it becomes an error line, the rest runs
    REJECT = "reject"  # the whole file fails


class OutputOrder(StrEnum):
    """The order of the output lines."""

    INPUT = "input"
    COMPLETION = "completion"


class OutputFormat(StrEnum):
    """What an output line holds."""

    BATCH = "batch"  # a line of an OpenAI Batch output file
    PLAIN = "plain"  # id, text, finish_reason, usage, model


class Reasoning(StrEnum):
    """Where what a model thinks in front of its answer goes."""

    TEXT = "text"
    SPLIT = "split"


class SamplingSettings(Section):
    """Sampling of requests that say nothing themselves; null is the model's own."""

    temperature: float | None = key(None, "0 takes the likeliest token.", Change.CLAIM, ge=0, le=2)
    top_p: float | None = key(
        None, "Share of the probability that tokens are drawn from; 1 is all.", Change.CLAIM, gt=0, le=1
    )
    top_k: int | None = key(
        None, "Number of likeliest tokens that are drawn from; 0 is all.", Change.CLAIM, ge=0, le=MAX_TOKENS
    )
    min_p: float | None = key(
        None,
        "Tokens are drawn from those whose probability is at least this share of the likeliest one's; 0 is all.",
        Change.CLAIM,
        ge=0,
        le=1,
    )
    presence_penalty: float | None = key(
        None, "Taken off the score of each token that the answer has already.", Change.CLAIM, ge=-2, le=2
    )
    frequency_penalty: float | None = key(
        None, "Taken off the score of a token for each time that the answer has it.", Change.CLAIM, ge=-2, le=2
    )
    repetition_penalty: float | None = key(
        None,
        "What the scores of tokens of prompt and answer are divided by; 1 changes nothing. The model's own is not applied.",
        Change.CLAIM,
        gt=0,
        le=10,
    )
    max_tokens: int | None = key(
        None, "Tokens of an answer at most; null is the rest of the context.", Change.CLAIM, ge=1, le=MAX_TOKENS
    )


class LimitsSettings(Section):
    """What is not run, or not to its end."""

    long_prompt: LongPrompt = choice(
        LongPrompt.REJECT, "A prompt that does not fit into the context becomes an error line.", Change.CLAIM
    )
    request_timeout_s: float | None = key(
        None,
        "Seconds in which a request must be finished once the engine has it; else it becomes a `request_timeout` line.",
        Change.CLAIM,
        gt=0,
        le=MAX_LIMIT_S,
    )
    deadline_s: float | None = key(
        None,
        "Seconds in which a file must be finished once it is taken; what is not becomes `batch_expired` lines.",
        Change.CLAIM,
        gt=0,
        le=MAX_LIMIT_S,
    )


class OutputSettings(Section):
    """What the result files look like."""

    order: OutputOrder = choice(
        OutputOrder.INPUT, "Order of the lines: as in the input, or as they are finished.", Change.CLAIM
    )
    format: OutputFormat = choice(
        OutputFormat.BATCH,
        "`batch` lines are OpenAI Batch output; `plain` ones hold id, text, finish_reason, usage, model.",
        Change.CLAIM,
    )


class PipelineSettings(Section):
    """One pipeline: a set of folders whose files an engine runs. A file keeps the settings that it was claimed with."""

    engine: str = key(
        ..., "Name of the engine that runs its requests.", Change.CLAIM, "the name of an engine", min_length=1
    )
    system: str | None = key(None, "System message for chat requests that bring none.", Change.CLAIM)
    template: str | None = key(
        None,
        "Jinja template that makes the user's message of each row of a .csv, .tsv or .parquet file.",
        Change.CLAIM,
        "a Jinja template",
    )
    chat_template_kwargs: Told = key(
        {},
        "What the model's chat template is told besides the messages, as `{enable_thinking: false}`; a request's own go first.",
        Change.CLAIM,
        TOLD_TEXT,
    )
    answer: Answer | None = key(
        None,
        "What answers must look like, to the last character, where a request does not say so: one of some texts, what a "
        "regular expression matches, or JSON by a schema.",
        Change.CLAIM,
        ANSWER_TEXT,
    )
    tool_calls: ToolFormat = choice(
        ToolFormat.AUTO,
        "How the model writes the calls of tools, by which they are found in answers to requests with `tools`: `auto` is as its "
        "chat template tells, `text` leaves them in the text.",
        Change.CLAIM,
    )
    reasoning: Reasoning = choice(
        Reasoning.TEXT,
        "What a model thinks in `<think>...</think>` in front of its answer to a chat: `text` leaves it there; `split` "
        "puts it into `reasoning_content`, and texts and tables get the answer alone.",
        Change.CLAIM,
    )
    sampling: SamplingSettings = section(SamplingSettings)
    models: tuple[str, ...] = key(
        (),
        "Model names that requests may use; any name is served unless `strict_model` is true.",
        Change.CLAIM,
        strict=False,
    )
    strict_model: bool = key(False, "Refuse requests whose model is not in `models`.", Change.CLAIM)
    limits: LimitsSettings = section(LimitsSettings)
    priority: int = key(0, "Requests of a higher priority go first.", Change.CLAIM, ge=-1000, le=1000)
    on_bad_line: OnBadLine = choice(
        OnBadLine.RECORD,
        "`record` makes a bad line an error line and runs the rest; `reject` fails the file.",
        Change.CLAIM,
    )
    output: OutputSettings = section(OutputSettings)
    on_done: TellTarget | None = key(
        None,
        "Told of each file that is done, whatever became of it: a command gets the Batch object on standard input and "
        "`GAPLESS_PIPELINE`, `GAPLESS_STEM`, `GAPLESS_STATUS`, `GAPLESS_OUTPUT`, `GAPLESS_ERRORS`, `GAPLESS_REPORT`, "
        "`GAPLESS_BATCH`; a URL gets it by POST. At least once, at most five tries.",
        Change.CLAIM,
        TELL_TEXT,
    )

    def to_record(self) -> dict[str, Any]:
        """Return these settings as JSON knows it, for the header of a file's journal."""
        return self.model_dump(mode="json")

    @classmethod
    def from_record(cls, record: Any, file: Path) -> Self:
        """Return the settings that `to_record` gave; keys that it did not know yet have their defaults.

        Raises:
            SettingsError: the record is of another version or damaged; the problems name `file`.
        """
        try:
            return cls.read(record, file.parent)
        except ValidationError as error:
            raise SettingsError(to_problems(error, cls, Written(file, ()))) from error
