"""The pipeline's template, which makes the user's message of a row of a table.

A template sees each column by its name and all of them as `row`, for names that are no words: `{{ text }}`,
`{{ row["the text"] }}`. Nothing is guessed: a column that is not there is an error that names those that are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError, meta

from daemon.request_problem import InvalidRequestError, escaped, shown
from daemon.template_sandbox import Row, RowEnvironment

ROW = "row"  # the name of all columns together
PARAM = "template"  # what errors call the field at fault
_FILE = "<template>"  # Jinja's name for the code of a template that comes from no file
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
_MAX_LISTED = 20
_MAX_MESSAGE = 300  # characters of what a template's error says
_RENDER_ERRORS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class TemplateMistakeError(Exception):
    """A template cannot be compiled; the text says where in it, what was found and what was expected."""


class RowTemplate:
    """One compiled template; for one thread at a time."""

    def __init__(self, source: str) -> None:
        """Compile.

        Raises:
            TemplateMistakeError: it cannot be.
        """
        self._environment = RowEnvironment()
        try:
            tree = self._environment.bounded(source)
            # A column may have the name of a global.
            names = meta.find_undeclared_variables(tree) | self._environment.globals.keys()
            self._template = self._environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise TemplateMistakeError(f"line {error.lineno} of the template: {_one_line(error.message)}") from error
        except (TemplateError, SyntaxError, ValueError, RecursionError) as error:
            raise TemplateMistakeError(f"the template: {_one_line(error)}") from error
        self.columns = None if ROW in names else frozenset(names)  # the ones it looks at, and maybe more; None = all

    def render(self, cells: Mapping[str, Any], columns: Sequence[str]) -> str:
        """Return what the template makes of a row whose cells are `cells`; the file's columns are `columns`, for messages.

        Raises:
            InvalidRequestError: it makes nothing of it, or goes beyond its bounds.
        """
        self._environment.budget.renew()
        try:
            prompt = self._template.render({ROW: Row(cells), **cells})
        except UndefinedError as error:
            raise _refused(error, f"{_one_line(error)}{_columns_hint(error, columns)}") from None
        except _RENDER_ERRORS as error:
            raise _refused(error, _one_line(error)) from None
        if not prompt.strip():
            raise InvalidRequestError("invalid_value", PARAM, "found an empty prompt, expected words")
        return prompt


def visible_cells(columns: Sequence[str], cells: Sequence[Any]) -> dict[str, Any]:
    """Return what a template sees of a row: the columns that have a name of their own."""
    visible = dict(zip(columns, cells, strict=True))
    if len(visible) < len(columns):
        for name, count in Counter(columns).items():
            if count > 1:
                del visible[name]
    return visible


def _refused(error: BaseException, text: str) -> InvalidRequestError:
    line = _line_of(error.__traceback__)
    place = f"line {line} of the template: " if line else ""
    return InvalidRequestError("template_error", PARAM, place + text)


def _columns_hint(error: UndefinedError, columns: Sequence[str]) -> str:
    if "which is no column" not in str(error):
        return ""
    twice = [name for name, count in Counter(columns).items() if count > 1 and shown(name) in str(error)]
    if twice:
        return ": more than one has this name"
    if len(columns) == 1 and (other := next((mark for mark in _OTHER_SEPARATORS if mark in columns[0]), None)):
        name = _OTHER_SEPARATORS[other]
        return f", expected {shown(columns[0])}: is the table separated by {name}? A .csv is by commas, a .tsv by tabs"
    listed = ", ".join(shown(name) for name in columns[:_MAX_LISTED])
    more = f" and {len(columns) - _MAX_LISTED} more" if len(columns) > _MAX_LISTED else ""
    return f", expected one of {listed}{more}"


def _line_of(traceback: TracebackType | None) -> int | None:
    """Return the line of the template that an error came from; Jinja has put the template into its traceback."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _one_line(error: BaseException | str | None) -> str:
    text = escaped(str(error) or type(error).__name__)
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."
