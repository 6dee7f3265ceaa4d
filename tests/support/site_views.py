"""What a site shows in tests: one snapshot, empty metrics, an empty log."""

from dataclasses import replace

from daemon.batch_object import BatchStatus
from daemon.device_history import BandSlice
from daemon.logs import LogTail
from daemon.metrics import Metrics
from daemon.site import Views
from daemon.status import (
    ConfigStatus,
    EndedFile,
    EngineState,
    EngineStatus,
    FileState,
    FileStatus,
    PipelineStatus,
    StatusSnapshot,
)
from pipelines.core.request import IdleCause

HOSTILE = "<img src=x onerror=\"document.title='owned'\">&'\"\u202e\ud800<script>document.title='owned'</script>.jsonl"

READY = StatusSnapshot(
    taken_s=1000.0,
    started_s=900.0,
    engines=(
        EngineStatus(
            "main", EngineState.READY, "tiny, cpu, float32", num_running=3, num_seats=16, num_used_blocks=5,
            num_blocks=50, generation_tokens_per_s=1234.4, busy_ratio=0.875,
            band=(BandSlice(0.75, 0.0, {IdleCause.NO_WORK: 0.25}), BandSlice(1.0, 0.0, {})),
        ),
    ),
    pipelines=(
        PipelineStatus(
            "chat", "main", num_waiting_files=2,
            files=(
                FileStatus(
                    "a<b>.jsonl", FileState.IN_PROGRESS, num_done=5, num_failed=1, num_total=9, stem="a<b>",
                    num_tokens=50, tokens_per_s=12.5, left_s=90.0,
                ),
            ),
            ended=(EndedFile("old.jsonl", "old", BatchStatus.COMPLETED, 7, 2, 1_700_000_000, 61.0, number=4),),
        ),
    ),
    config=ConfigStatus(1_700_000_000.0),
)  # fmt: skip
STARTING = replace(READY, engines=(*READY.engines, EngineStatus("big", EngineState.STARTING, "load 40 %")))


def views_of(status=READY, metrics=None, log=None, reports=None):
    """Views of one snapshot, or of whatever a function returns."""
    return Views(
        metrics=metrics or Metrics(),
        status=status if callable(status) else lambda: status,
        log=log or LogTail(),
        report=lambda pipeline, number: (reports or {}).get((pipeline, number)),
    )
