"""What the journal keeps of a survey is the survey."""

import json
from pathlib import Path

import pytest

from daemon.survey import survey
from daemon.survey_record import MAX_DUPLICATES, survey_from_record, survey_to_record

CASES = Path(__file__).parents[2] / "data" / "cases"


@pytest.mark.parametrize("name", ["good.jsonl", "bad-lines.jsonl", "array.json", "prompt.txt"])
def test_a_survey_comes_back_as_it_was(name: str) -> None:
    """Through JSON, as it lies in the journal: counts, bad lines with their messages, duplicates with their places."""
    found = survey(CASES / name)
    record = json.loads(json.dumps(survey_to_record(found)))
    assert survey_from_record(record, found.fingerprint) == found


def test_a_survey_of_many_duplicates_is_not_kept(tmp_path: Path) -> None:
    """It would make the journal's record as large as the file; a restart surveys again."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": "x", "prompt": "y"}\n' * (MAX_DUPLICATES + 2))
    assert survey_to_record(survey(path)) is None
