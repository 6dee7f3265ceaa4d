"""`gapless status` as a person reads it."""

from dataclasses import replace

from daemon.status import (
    EngineState,
    EngineStatus,
    FileState,
    FileStatus,
    PipelineStatus,
    StatusSnapshot,
)
from daemon.status_table import render_status, table

SNAPSHOT = StatusSnapshot(
    taken_s=7500.0,
    started_s=0.0,
    engines=(EngineStatus("main", EngineState.READY, "cuda:0, bfloat16", 1024, 256, 1),),
    pipelines=(
        PipelineStatus(
            "chat",
            "main",
            None,
            12,
            (
                FileStatus("a.jsonl", FileState.IN_PROGRESS, 1200, 34, 5000),
                FileStatus("long name.jsonl", FileState.VALIDATING, 0, 0, None),
            ),
        ),
        PipelineStatus("rollouts", "main", "paused by hand: the GPU is\nneeded", 0, left_files=("x.cancel: it waits",)),
    ),
)


def test_the_tables():
    """To the letter: columns line up, numbers stand to the right, what a person wrote cannot break a line."""
    assert render_status(SNAPSHOT.to_json()) == (
        "up for 2 h 05 min\n"
        "\n"
        "ENGINE  STATE  RUNNING  WAITING  RESTARTS\n"
        "main    ready      256    1,024         1  cuda:0, bfloat16\n"
        "\n"
        "PIPELINE  ENGINE  IN INBOX  BEING RUN\n"
        "chat      main          12          2\n"
        "rollouts  main           0          0  paused: by hand: the GPU is\\nneeded\n"
        "\n"
        "FILE                  STATE         DONE     OF       IN ERRORS\n"
        "chat/a.jsonl          in_progress  1,234  5,000  25%         34\n"
        "chat/long name.jsonl  validating       0      ?               0\n"
        "\n"
        "rollouts: x.cancel: it waits\n"
    )


def test_a_daemon_that_stops_is_not_said_to_have_stopped_for_all_its_life():
    stopping = replace(SNAPSHOT, is_draining=True)
    assert render_status(stopping.to_json()).startswith("stopping, up for 2 h 05 min\n")


def test_a_status_that_is_old_is_said_to_be():
    """The HTTP server answers though the main loop hangs; what it shows is how things were."""
    said = render_status(SNAPSHOT.to_json(age_s=42.0)).splitlines()
    assert said[1] == ("the daemon hangs: the main loop has not come round for 42.0 s; what follows is how it was then")
    assert "hangs" not in render_status(SNAPSHOT.to_json(age_s=9.0))


def test_a_table_without_rows_has_its_heads():
    """As of an engine that is not there."""
    assert table(("A", "B"), []) == ["A  B"]
