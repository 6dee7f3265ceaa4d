"""What a survey found, as the journal keeps it: so that a restart in the middle of a file need not read all of it first."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from daemon.request_record import BadLine, Place, Survey

MAX_DUPLICATES = 10_000  # of more the journal keeps nothing, and a restart surveys again


def survey_to_record(found: Survey) -> dict[str, Any] | None:
    """Return a survey as JSON knows it, without the fingerprint, which the journal has; None if it is too large to keep."""
    if len(found.duplicates) > MAX_DUPLICATES:
        return None
    return {
        "num_bytes": found.num_bytes,
        "num_lines": found.num_lines,
        "num_blank": found.num_blank,
        "num_requests": found.num_requests,
        "num_bad": found.num_bad,
        "endpoint": found.endpoint,
        "bad_lines": [asdict(bad) for bad in found.bad_lines],
        "duplicates": [[index, first.index, first.line] for index, first in found.duplicates.items()],
    }


def survey_from_record(record: Mapping[str, Any], fingerprint: str) -> Survey:
    """Return the survey of which `survey_to_record` made `record`."""
    counts = {
        name: record[name] for name in ("num_bytes", "num_lines", "num_blank", "num_requests", "num_bad", "endpoint")
    }
    return Survey(
        fingerprint=fingerprint,
        bad_lines=tuple(BadLine(**bad) for bad in record["bad_lines"]),
        duplicates={index: Place(first, line) for index, first, line in record["duplicates"]},
        **counts,
    )
