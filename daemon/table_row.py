"""One row of a table, whatever its format, and the request it becomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daemon.request_line import LineParser
from daemon.request_problem import InvalidRequestError
from daemon.request_record import BadLine, ParsedRequest, Place
from daemon.row_template import RowTemplate


@dataclass(frozen=True, slots=True)
class TableRow:
    """What is known of a row before the template sees it."""

    line: int  # .csv, .tsv: the line on which it starts, from 1, the header's included; .parquet: its number from 1
    cells: Mapping[str, Any]  # what a template sees; empty if there is a problem
    problem: str | None = None  # why it is no row: what was found, what was expected


@dataclass(frozen=True, slots=True)
class RowParser:
    """Makes requests of the rows of one table; as `LineParser`."""

    lines: LineParser  # names file and place in messages
    template: RowTemplate
    columns: Sequence[str]  # all of the table, for messages

    def parse(self, row: TableRow, index: int) -> ParsedRequest | BadLine:
        """Return what a row becomes: the template's text as what a user says to the model."""
        place = Place(index, row.line)
        if row.problem is not None:
            return self.lines.bad(InvalidRequestError("invalid_row", None, row.problem), place, None)
        try:
            prompt = self.template.render(row.cells, self.columns)
        except InvalidRequestError as error:
            return self.lines.bad(error, place, None)
        return self.lines.prompt(prompt, place)
