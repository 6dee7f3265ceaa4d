"""What each part of the asynchronous engine is worth: the same workload with one of them changed at a time."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pipelines.benchmark.measure import Run, measure, warm_up
from pipelines.benchmark.report import aligned, percent
from pipelines.benchmark.results import ModeResult
from pipelines.benchmark.settings import apply_setting
from pipelines.benchmark.subject import open_subject
from pipelines.benchmark.traffic import Traffic
from pipelines.benchmark.workload import Workload
from pipelines.config import EngineConfig
from pipelines.core.runner import GraphUse

_BASE = (
    "schedule=async",
    "streams.h2d=dedicated",
    "streams.d2h=dedicated",
    "streams.compute_priority=high",
    "buffers.slots=2",
    "buffers.pinned=true",
    "cuda_graphs.enabled=auto",
    "cuda_graphs.per_slot=false",
    "cuda_graphs.share_pool=true",
)
_CHANGES = (
    (),
    ("schedule=sync",),
    ("schedule=sync", "buffers.slots=1"),
    ("streams.h2d=compute",),
    ("streams.d2h=compute",),
    ("streams.h2d=compute", "streams.d2h=compute"),
    ("buffers.slots=3",),
    ("buffers.pinned=false",),
    ("streams.compute_priority=normal",),
    ("cuda_graphs.enabled=false",),
    ("cuda_graphs.per_slot=true",),  # two sets of graphs that share a pool, as the article has them
    ("cuda_graphs.per_slot=true", "cuda_graphs.share_pool=false"),
    (),  # again, at the end: how far it lies from the first row is what the machine itself varies
)


@dataclass(frozen=True, slots=True)
class AblationRow:
    """One configuration."""

    name: str
    config: EngineConfig
    detail: str  # of the runner: device, graphs, cache
    graphs: GraphUse | None  # None: no graphs
    result: ModeResult

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "change": self.name,
            "model": self.detail,
            "engine": asdict(self.config),
            "graphs": asdict(self.graphs) if self.graphs else None,
            **self.result.to_record(),
        }

    def graph_cells(self) -> list[str]:
        """Return what its graphs took, for the table."""
        if self.graphs is None:
            return ["0", "", "", ""]
        use = self.graphs
        sets = "" if use.num_sets == 1 else f"{use.num_sets} x "
        pools = "" if use.num_pools == 1 else f" in {use.num_pools}"
        return [
            f"{sets}{use.num_graphs // use.num_sets}",
            f"{use.pool_bytes / 2**20:,.0f}{pools}",
            f"{use.device_bytes / 2**20:,.0f}",
            f"{use.capture_s:.1f}",
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all rows."""

    config: EngineConfig
    folder: Path | None  # of the model; None: a fake one
    traffic: Traffic | None
    workload: Workload
    warm_up_tokens: int
    repeat: int


def ablate(plan: Plan, bytes_per_s: float | None, tell: Callable[[str], None]) -> list[AblationRow]:
    """Measure every row, each with the model loaded anew; `tell` hears of each as it is done.

    Raises:
        CheckError: a request did not get exactly its number of tokens.
        EngineError: a run failed.
    """
    rows: list[AblationRow] = []
    for changes in _CHANGES:
        name = ", ".join(changes) or ("nothing, again" if rows else "nothing")
        config = reduce(apply_setting, (*_BASE, *changes), plan.config)
        detail, graphs, runs = _measure(plan, config)
        rows.append(AblationRow(name, config, detail, graphs, ModeResult.of(runs, plan.traffic, bytes_per_s)))
        result = rows[-1].result
        tell(f"{name}: {result.run.seconds:.2f} s, stream-busy {percent(result.busy_share)}")
    return rows


def ablation_table(rows: Sequence[AblationRow]) -> list[str]:
    """Return the rows with what each costs against the first, and what that first one is."""
    base = rows[0].result
    head = ["changed", "seconds", "tokens/s", "ms a step", "stream-busy", "idle: host", "time", "same tokens"]
    head += ["graphs", "pool MiB", "device MiB", "capture s"]
    cells = [
        [
            row.name,
            f"{row.result.run.seconds:,.2f}",
            f"{row.result.tokens_per_s:,.1f}",
            f"{row.result.ms_per_step:,.3f}",
            percent(row.result.busy_share),
            percent(row.result.share(row.result.run.device.host_s)),
            f"{100 * (row.result.run.seconds / base.run.seconds - 1):+.1f} %",
            "yes" if row.result.run.tokens == base.run.tokens else "no",
            *row.graph_cells(),
        ]
        for row in rows
    ]
    return [
        *aligned([head, *cells]),
        f"changed against {', '.join(_BASE)}; a part whose row is no slower than the last one brings nothing here",
    ]


def _measure(plan: Plan, config: EngineConfig) -> tuple[str, GraphUse | None, list[Run]]:
    """Load, warm up, measure; no model is kept when it returns, the next row needs the memory."""
    with open_subject(config, plan.folder, plan.traffic) as subject:
        requests = plan.workload.requests(subject.vocab_size)
        warm_up(subject, requests, plan.warm_up_tokens)
        return subject.detail, subject.graphs, [measure(subject, requests, config.schedule) for _ in range(plan.repeat)]
