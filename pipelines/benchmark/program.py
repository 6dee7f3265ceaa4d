"""From the options to the tables: what is measured in which order, and what comes of it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pipelines.benchmark.ablation import Plan, ablate, ablation_table
from pipelines.benchmark.cross_check import cross_check, cross_check_table
from pipelines.benchmark.drawing import Panel, draw
from pipelines.benchmark.machine import Machine, device_name
from pipelines.benchmark.measure import Run, Subject, measure, warm_up
from pipelines.benchmark.options import Options
from pipelines.benchmark.report import mode_table, roofline_lines, saving_lines, unexplained_lines
from pipelines.benchmark.results import ModeResult, Saving
from pipelines.benchmark.settings import OptionError, apply_setting
from pipelines.benchmark.subject import model_folder, native_context, open_subject, settled
from pipelines.benchmark.sweep import MAX_CONTEXT, sweep, sweep_table
from pipelines.benchmark.timeline import record, windows
from pipelines.benchmark.traffic import Bandwidth, Traffic
from pipelines.benchmark.workload import Workload, build_workload, round_up
from pipelines.config import BatchConfig, EngineConfig, ModelConfig, Schedule
from pipelines.core.request import Progress, TokenRequest
from pipelines.counted import counted

FORMAT = 1  # of the JSON

Tell = Callable[[str], None]


@dataclass(slots=True)
class Findings:
    """What came out so far; it is shown and saved as it comes, since a later part may fail or be stopped."""

    show: Tell  # gets what is for people, a paragraph at a time
    file: Path | None  # JSON for programs
    record: dict[str, Any] = field(default_factory=lambda: {"format": FORMAT})
    problems: list[str] = field(default_factory=list)  # for which the figures must not be believed

    def save(self) -> None:
        """Write what there is."""
        if self.file is not None:
            self.file.write_text(json.dumps(self.record, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Bench:
    """What is the same for everything measured in one call."""

    options: Options
    config: EngineConfig
    folder: Path | None  # of the model; None: a fake one
    traffic: Traffic | None
    bandwidth: Bandwidth | None
    machine: Machine
    workload: Workload
    findings: Findings
    tell: Tell  # hears of what is done, for people who wait

    @property
    def bytes_per_s(self) -> float | None:
        """The measured bandwidth."""
        return None if self.bandwidth is None else self.bandwidth.bytes_per_s


def run(options: Options, show: Tell, tell: Tell) -> list[str]:
    """Measure what the options ask for; return the reasons not to believe the figures.

    Args:
        options: the command line.
        show: gets the findings.
        tell: hears of each thing done, for people who wait.

    Raises:
        OptionError: they ask for what cannot be.
        CheckError: a run did not do what was measured.
        EngineError: the model cannot be had or run.
    """
    with _prepared(options, Findings(show, options.json), tell) as bench:
        _show_what(bench)
        if options.sweep_batches:
            _sweep(bench)
        if options.ablate:
            _ablate(bench)
        if not (options.sweep_batches or options.ablate):
            _compare_modes(bench)
    return bench.findings.problems


@contextmanager
def _prepared(options: Options, findings: Findings, tell: Tell) -> Iterator[Bench]:
    workload = build_workload(options.workload, options.scale)
    asked = _engine_config(options, round_up(MAX_CONTEXT) if options.sweep_batches else workload.context)
    with model_folder(asked, options.random_config, partial(_tell_progress, tell)) as (found, folder):
        _check_context(found, folder)
        config, traffic = settled(found, folder)
        machine = Machine.read("no device" if folder is None else _device_name(config))  # before anything loads it
        bandwidth = None if folder is None else _bandwidth(config, tell)
        yield Bench(options, config, folder, traffic, bandwidth, machine, workload, findings, tell)


def _check_context(config: EngineConfig, folder: Path | None) -> None:
    longest = native_context(config, folder)
    if longest is not None and config.max_context is not None and longest < config.max_context:
        raise OptionError(
            f"what is asked for needs a context of {config.max_context:,} tokens, found a model made for {longest:,}: lower "
            "--scale, or choose another --workload"
        )


def _engine_config(options: Options, max_context: int) -> EngineConfig:
    config = EngineConfig(
        name="bench",
        model=ModelConfig(options.model, dtype=options.dtype, device=options.device),
        batch=BatchConfig(options.max_num_seqs, options.max_num_batched_tokens),
        max_context=max_context,
    )
    changed = reduce(apply_setting, options.settings, config)
    if changed.max_context is not None and changed.max_context < max_context:
        raise OptionError(
            f"--set max_context={changed.max_context}: the workload needs {max_context:,} tokens; lower --scale, or choose "
            "another --workload"
        )
    return changed


def _bandwidth(config: EngineConfig, tell: Tell) -> Bandwidth:
    from pipelines.benchmark.bandwidth import measure_bandwidth  # noqa: PLC0415  the fake engine does without torch
    from pipelines.runtime.device import resolve_device  # noqa: PLC0415  likewise

    found = measure_bandwidth(resolve_device(config.model.device), config.num_threads)
    tell(f"memory: {found.bytes_per_s / 1e9:,.1f} GB/s ({found.how})")
    return found


def _show_what(bench: Bench) -> None:
    findings, workload, config = bench.findings, bench.workload, bench.config
    findings.show("\n".join([*bench.machine.lines(), *_workload_lines(bench)]))
    findings.record["machine"] = bench.machine.to_record()
    findings.record["engine"] = asdict(config)
    findings.record["random_config"] = bench.options.random_config and str(bench.options.random_config)
    findings.record["warm_up_tokens"] = bench.options.warm_up_tokens
    findings.record["repeat"] = bench.options.repeat
    findings.record["workload"] = {
        "name": workload.name,
        "scale": workload.scale,
        "requests": len(workload.prompts),
        "prompt_tokens": workload.num_prompt_tokens,
        "new_tokens": workload.num_new_tokens,
    }
    findings.record["bandwidth"] = bench.bandwidth and asdict(bench.bandwidth)
    findings.record["traffic"] = bench.traffic and asdict(bench.traffic)


def _workload_lines(bench: Bench) -> list[str]:
    workload, batch = bench.workload, bench.config.batch
    if bench.options.sweep_batches:
        return []
    asked = f"{workload.num_prompt_tokens:,} prompt tokens, {workload.num_new_tokens:,} to generate"
    limits = f"at most {counted(batch.max_num_seqs, 'sequence')} and {batch.max_num_batched_tokens:,} tokens a step"
    return [
        f"workload  {workload.name} at scale {workload.scale:g}: {counted(len(workload.prompts), 'request')}, {asked}; {limits}"
    ]


def _device_name(config: EngineConfig) -> str:
    from pipelines.runtime.device import resolve_device  # noqa: PLC0415  the fake engine does without torch

    return device_name(resolve_device(config.model.device))


def _compare_modes(bench: Bench) -> None:
    options, findings = bench.options, bench.findings
    with open_subject(bench.config, bench.folder, bench.traffic) as subject:
        _show_subject(bench, subject)
        requests = bench.workload.requests(subject.vocab_size)
        warm_up(subject, requests, options.warm_up_tokens)
        results = _measure_modes(bench, subject, requests)
        paragraphs = [mode_table(results)]
        findings.record["modes"] = {schedule: result.to_record() for schedule, result in results.items()}
        findings.problems += unexplained_lines({str(schedule): result for schedule, result in results.items()})
        saving = Saving.of(results)
        if saving is not None:
            paragraphs.append(saving_lines(saving))
            findings.record["saving"] = saving.to_record()
        if bench.traffic is not None and bench.bandwidth is not None:
            paragraphs.append(roofline_lines(bench.traffic, bench.bandwidth))
        findings.show("\n" + "\n\n".join("\n".join(lines) for lines in paragraphs))
        findings.save()
        if options.cross_check:
            _cross_check(bench, subject, requests)
        if options.timeline is not None:
            _draw(bench, subject, requests, results, options.timeline)


def _measure_modes(bench: Bench, subject: Subject, requests: list[TokenRequest]) -> dict[Schedule, ModeResult]:
    """Run the modes in turn, so that what changes on the machine meanwhile meets both."""
    runs: dict[Schedule, list[Run]] = {schedule: [] for schedule in bench.options.modes}
    for number in range(bench.options.repeat):
        for schedule, found in runs.items():
            found.append(measure(subject, requests, schedule))
            bench.tell(f"{schedule}, run {number + 1} of {bench.options.repeat}: {found[-1].seconds:,.2f} s")
    return {schedule: ModeResult.of(found, bench.traffic, bench.bytes_per_s) for schedule, found in runs.items()}


def _cross_check(bench: Bench, subject: Subject, requests: list[TokenRequest]) -> None:
    windows = cross_check(subject, requests, bench.tell)
    bench.findings.show("\n" + "\n".join(cross_check_table(windows)))
    bench.findings.record["cross_check"] = [window.to_record() for window in windows]
    bench.findings.problems += [problem for window in windows for problem in window.problems]
    bench.findings.save()


def _draw(
    bench: Bench,
    subject: Subject,
    requests: list[TokenRequest],
    results: dict[Schedule, ModeResult],
    file: Path,
) -> None:
    timelines = windows([record(subject, requests, schedule) for schedule in results])
    panels = [
        Panel(timeline, result.busy_share, result.share(result.run.device.unproven_s), result.ms_per_step)
        for timeline, result in zip(timelines, results.values(), strict=True)
    ]
    draw(
        panels,
        f"{bench.workload.name}, {counted(subject.config.batch.max_num_seqs, 'sequence')} at once; {subject.detail}",
        file,
    )
    bench.findings.show(f"\ntimeline: {file}")


def _ablate(bench: Bench) -> None:
    options, findings = bench.options, bench.findings
    plan = Plan(bench.config, bench.folder, bench.traffic, bench.workload, options.warm_up_tokens, options.repeat)
    rows = ablate(plan, bench.bytes_per_s, bench.tell)
    findings.show("\n" + "\n".join(ablation_table(rows)))
    findings.record["ablation"] = [row.to_record() for row in rows]
    findings.problems += unexplained_lines({row.name: row.result for row in rows})
    findings.save()


def _sweep(bench: Bench) -> None:
    with open_subject(bench.config, bench.folder, bench.traffic) as subject:
        _show_subject(bench, subject)
        rows = sweep(subject, bench.options.sweep_batches, bench.bytes_per_s, bench.tell)
    title = f"\nms a decode step ({bench.config.schedule}), all sequences decoding:"
    bench.findings.show("\n".join([title, *sweep_table(rows)]))
    bench.findings.record["step_sweep"] = [row.to_record() for row in rows]
    bench.findings.save()


def _show_subject(bench: Bench, subject: Subject) -> None:
    bench.findings.record["model"] = subject.detail
    bench.findings.show(f"model     {subject.detail}")


def _tell_progress(tell: Tell, progress: Progress) -> None:
    if progress.done >= 1.0:
        tell(f"{progress.phase}: done")
